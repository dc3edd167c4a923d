//! Fetching published weights, from a server in this process, into the place that PyTorch uses.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use kiln::weights::torchvision::{HOME, RESNET18, directory, fetch_from};
use tempfile::tempdir;

use super::assert_line;

/// 200,000 bytes of 'k'; their SHA-256 begins with these digits (`sha256sum`).
static CONTENT: [u8; 200_000] = [b'k'; 200_000];
const NAME: &str = "kiln-dbbfafda.pth";

/// Answers one request with a head and `body`; then hangs up. Returns the request's line.
fn serve(head: String, body: Vec<u8>) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/models/", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines: Vec<String> =
            BufReader::new(&stream).lines().map(Result::unwrap).take_while(|it| !it.is_empty()).collect();
        // Whoever has seen enough hangs up first.
        let _ = write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").and_then(|()| stream.write_all(&body));
        lines[0].clone()
    });
    (url, server)
}

fn good() -> (String, JoinHandle<String>) {
    serve("200 OK\r\ncontent-length: 200000".into(), CONTENT.to_vec())
}

fn listing(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The line with which fetching fails; afterwards nothing is left in the folder.
#[track_caller]
fn complaint(url: &str, name: &str) -> String {
    let dir = tempdir().unwrap();
    let message = fetch_from(url, name, dir.path(), &|_, _| {}).unwrap_err().to_string();
    assert_line(&message, &[]);
    assert!(listing(dir.path()).is_empty());
    message.replace(&dir.path().display().to_string(), "DIR")
}

#[test]
fn weights_arrive_once_under_the_name_that_pytorch_gives_them() {
    let dir = tempdir().unwrap();
    let cache = dir.path().join("hub/checkpoints");
    let (url, server) = good();
    let seen = RefCell::new(Vec::new());
    let path = fetch_from(&url, NAME, &cache, &|done, total| seen.borrow_mut().push((done, total))).unwrap();
    assert_eq!(server.join().unwrap(), format!("GET /models/{NAME} HTTP/1.1"));
    assert_eq!((path.as_path(), listing(&cache)), (cache.join(NAME).as_path(), vec![NAME.to_owned()]));
    assert!(fs::read(path).unwrap() == CONTENT);
    assert_eq!(seen.borrow().last(), Some(&(200_000, Some(200_000))));
    // The server is gone: a second fetch would fail.
    fetch_from(&url, NAME, &cache, &|_, _| panic!("fetched again")).unwrap();
}

#[test]
fn a_damaged_file_in_the_cache_is_fetched_again() {
    let dir = tempdir().unwrap();
    let mut damaged = CONTENT;
    damaged[100_000] ^= 1;
    fs::write(dir.path().join(NAME), damaged).unwrap();
    let (url, server) = good();
    let path = fetch_from(&url, NAME, dir.path(), &|_, _| {}).unwrap();
    server.join().unwrap();
    assert!(fs::read(path).unwrap() == CONTENT);
}

#[test]
fn a_wrong_checksum_leaves_nothing_and_names_both() {
    let (url, server) = serve("200 OK".into(), vec![b'x'; 200_000]);
    let message = complaint(&url, NAME);
    server.join().unwrap();
    assert_line(&message, &["SHA-256", "begin with 'dbbfafda'", &format!("{url}{NAME}")]);
}

#[test]
fn more_than_the_file_can_have_is_not_taken_in() {
    let (url, server) = serve("200 OK".into(), vec![b'k'; (64 << 20) + 1]);
    let message = complaint(&url, NAME);
    server.join().unwrap();
    assert_line(&message, &["more than 67108864 bytes"]);
}

#[test]
fn without_a_network_the_line_says_what_to_put_where() {
    // Nobody listens on a port that was just given back.
    let url = format!("http://{}/models", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let message = complaint(&url, RESNET18);
    assert_line(
        &message,
        &[&format!("'{url}/{RESNET18}'"), "try again", "save the file as 'DIR/resnet18-f37072fd.pth'"],
    );
    let (url, server) = serve("404 Not Found\r\ncontent-length: 0".into(), vec![]);
    assert_line(&complaint(&url, RESNET18), &["404", &url]);
    server.join().unwrap();
}

#[test]
fn a_name_without_a_checksum_is_refused() {
    for name in ["resnet18.pth", "resnet18-f37072.pth", "resnet18-f37072fg.pth", "resnet18-f37072fd.bin"] {
        assert_line(&complaint(HOME, name), &[name, "SHA-256"]);
    }
}

#[test]
fn the_cache_is_where_pytorch_has_it() {
    let home = || Some(PathBuf::from("/home/ada"));
    let place =
        |torch: Option<&str>, cache: Option<&str>| directory(torch.map(Into::into), cache.map(Into::into), home());
    assert_eq!(place(None, None), Path::new("/home/ada/.cache/torch/hub/checkpoints"));
    assert_eq!(place(None, Some("/c")), Path::new("/c/torch/hub/checkpoints"));
    assert_eq!(place(Some("/t"), Some("/c")), Path::new("/t/hub/checkpoints"));
    assert_eq!(place(Some(""), Some("")), Path::new("/home/ada/.cache/torch/hub/checkpoints"));
    assert_eq!(place(Some("~/t"), None), Path::new("/home/ada/t/hub/checkpoints"));
}
