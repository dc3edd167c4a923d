//! Fetching, from a server in this process: only a whole, right file ever gets the archive's name.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread::JoinHandle;

use kiln_data::Progress;
use kiln_data::cifar::{base_url, ensure};
use tempfile::tempdir;

use super::assert_names;

/// 200,000 bytes of 'k' are what the server has; the checksum is `md5sum`'s.
static CONTENT: [u8; 200_000] = [b'k'; 200_000];
const ARCHIVE: &str = "kiln.tar.gz";
const MD5: &str = "d7d367235ba13fb4289cb6bd9c4f5c04";

/// Answers one request with `status`, the length of [`CONTENT`], and `body`; then hangs up. Returns the request's line.
fn serve(status: &'static str, body: &'static [u8]) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/kriz", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines: Vec<String> =
            BufReader::new(&stream).lines().map(Result::unwrap).take_while(|it| !it.is_empty()).collect();
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", CONTENT.len()).unwrap();
        stream.write_all(body).unwrap();
        lines[0].clone()
    });
    (url, server)
}

/// The names of the files in a folder.
fn listing(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_good_file_arrives_under_its_name_and_is_not_fetched_twice() {
    let dir = tempdir().unwrap();
    let target = dir.path().join("new/folder");
    let (url, server) = serve("200 OK", &CONTENT);
    let seen = RefCell::new(Vec::new());
    let path = ensure(ARCHIVE, MD5, &target, &url, &|progress| seen.borrow_mut().push(progress)).unwrap();
    assert_eq!(server.join().unwrap(), "GET /kriz/kiln.tar.gz HTTP/1.1");
    assert_eq!((fs::read(path).unwrap() == CONTENT, listing(&target)), (true, vec!["kiln.tar.gz".to_owned()]));
    let all = Progress::Bytes { what: "kiln.tar.gz".into(), done: 200_000, total: Some(200_000) };
    assert_eq!(seen.borrow().last(), Some(&all));
    // The server is gone: a second fetch would fail.
    ensure(ARCHIVE, MD5, &target, &url, &|_| panic!("fetched again")).unwrap();
}

#[test]
fn a_wrong_checksum_leaves_no_file_and_names_both_sums() {
    let dir = tempdir().unwrap();
    let (url, server) = serve("200 OK", &[b'x'; 200_000]);
    let error = ensure(ARCHIVE, MD5, dir.path(), &url, &|_| {}).unwrap_err().to_string();
    server.join().unwrap();
    assert_names(&error, &[&format!("{url}/kiln.tar.gz"), MD5, "MD5", "--data-dir"]);
    assert!(listing(dir.path()).is_empty());
}

#[test]
fn a_connection_cut_half_way_leaves_the_old_file_as_it_was() {
    let dir = tempdir().unwrap();
    let path = dir.path().join(ARCHIVE);
    fs::write(&path, "damaged").unwrap();
    let (url, server) = serve("200 OK", &CONTENT[..100_000]);
    let error = ensure(ARCHIVE, MD5, dir.path(), &url, &|_| {}).unwrap_err().to_string();
    server.join().unwrap();
    assert_names(&error, &["cannot fetch", "try again"]);
    assert_eq!((listing(dir.path()), fs::read(&path).unwrap()), (vec![ARCHIVE.to_owned()], b"damaged".to_vec()));
}

#[test]
fn a_server_that_refuses_or_is_not_there_is_named() {
    let dir = tempdir().unwrap();
    let (url, server) = serve("404 Not Found", &CONTENT);
    assert_names(&ensure(ARCHIVE, MD5, dir.path(), &url, &|_| {}).unwrap_err().to_string(), &[&url, "404"]);
    server.join().unwrap();
    assert_names(&ensure(ARCHIVE, MD5, dir.path(), &url, &|_| {}).unwrap_err().to_string(), &["cannot fetch", &url]);
    assert!(listing(dir.path()).is_empty());
}

#[test]
fn a_file_that_another_process_is_writing_is_waited_for() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("kiln.tar.gz.part");
    let mut part = fs::File::create(&path).unwrap();
    part.lock().unwrap();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        part.write_all(&CONTENT).unwrap();
        fs::rename(&path, path.with_extension("")).unwrap();
    });
    // Nobody answers there: the file can only be the other's.
    let found = ensure(ARCHIVE, MD5, dir.path(), "http://127.0.0.1:9", &|_| {}).unwrap();
    writer.join().unwrap();
    assert_eq!(fs::read(found).unwrap(), CONTENT);
}

#[test]
fn a_link_in_the_place_of_the_partial_file_is_refused() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("victim"), "precious").unwrap();
    std::os::unix::fs::symlink("victim", dir.path().join("kiln.tar.gz.part")).unwrap();
    let error = ensure(ARCHIVE, MD5, dir.path(), "http://127.0.0.1:9", &|_| {}).unwrap_err().to_string();
    assert!(error.contains("kiln.tar.gz.part") && error.contains("it is a symlink"), "{error}");
    assert_eq!(fs::read(dir.path().join("victim")).unwrap(), b"precious");
}

#[test]
fn a_mirror_replaces_the_home_of_the_data_set() {
    assert!(base_url(None).starts_with("https://www.cs.toronto.edu/"));
    assert_eq!(base_url(Some(String::new())), base_url(None));
    assert_eq!(base_url(Some("http://127.0.0.1:80/cifar/".into())), "http://127.0.0.1:80/cifar");
}
