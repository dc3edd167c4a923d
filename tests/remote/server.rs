//! An HTTP server in the test's process: files of a directory by range requests, and a bucket of S3; it counts what it
//! sends and misbehaves as told.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Right,
    /// 503.
    Busy,
    /// No byte for longer than the client waits.
    Stall,
    /// The connection ends in the middle of the bytes.
    Cut,
    /// As many bytes, but others.
    WrongBytes,
    /// The bytes of another place, which the header admits.
    WrongRange,
    /// The whole object.
    Whole,
    /// Another ETag.
    Changed,
    /// 404.
    Gone,
    /// 403, and a body that names a key.
    Denied,
    /// The right bytes, and 256 MiB behind them.
    Endless,
}

type Script = Box<dyn Fn(usize, &str) -> Answer + Send + Sync>;

pub struct Server {
    pub url: String,
    state: Arc<State>,
}

struct State {
    root: PathBuf,
    script: Mutex<Script>,
    /// Of GET requests for a range.
    requests: AtomicU64,
    bytes: AtomicU64,
    heads: Mutex<Vec<String>>,
}

impl Server {
    /// Serves the files below `root`.
    pub fn new(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            root: root.to_path_buf(),
            script: Mutex::new(Box::new(|_, _| Answer::Right)),
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            heads: Mutex::default(),
        });
        let of_connections = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), of_connections.clone());
                std::thread::spawn(move || while state.answer(&stream).is_some() {});
            }
        });
        Self { url, state }
    }

    /// From now on the `n`-th request for a range, from 0, of a path gets the answer of `script`.
    pub fn misbehave(&self, script: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) {
        self.state.requests.store(0, Ordering::SeqCst);
        *self.state.script.lock().unwrap() = Box::new(script);
    }

    /// Requests and bytes since the last call.
    pub fn sent(&self) -> (u64, u64) {
        (self.state.requests.swap(0, Ordering::SeqCst), self.state.bytes.swap(0, Ordering::SeqCst))
    }

    /// The heads of all requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }
}

impl State {
    /// Answers one request; `None` ends the connection.
    fn answer(&self, mut stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_string()),
            }
        }
        self.heads.lock().unwrap().push(head.join("\n"));
        let mut words = head[0].split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if query.contains("list-type=2") {
            return self.list(stream, path, query);
        }
        let file = self.root.join(path.trim_start_matches('/'));
        let header = |name: &str| head.iter().find_map(|line| line.to_lowercase().strip_prefix(name).map(String::from));
        if ["PUT", "DELETE"].contains(&method) {
            let mut body = vec![0; header("content-length: ").map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body).ok()?;
            let number = self.requests.fetch_add(1, Ordering::SeqCst) as usize;
            let answer = (self.script.lock().unwrap())(number, path);
            if answer == Answer::Right && method == "PUT" {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, body).unwrap();
            } else if answer == Answer::Right {
                fs::remove_file(&file).unwrap();
            }
            let status = match answer {
                Answer::Right => "200 OK\r\netag: \"1\"",
                Answer::Denied => "403 Forbidden",
                _ => "503 Slow Down",
            };
            return write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok();
        }
        let range = header("range: bytes=");
        let (Ok(content), true) = (fs::read(&file), file.is_file()) else {
            return write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").ok();
        };
        let answer = if range.is_some() {
            let number = self.requests.fetch_add(1, Ordering::SeqCst) as usize;
            (self.script.lock().unwrap())(number, path)
        } else {
            Answer::Right
        };
        let status = match answer {
            Answer::Busy => "503 Slow Down",
            Answer::Gone => "404 Not Found",
            Answer::Denied => "403 Forbidden",
            Answer::Stall => {
                std::thread::sleep(Duration::from_secs(4));
                return None;
            }
            _ => "",
        };
        if !status.is_empty() {
            let body = "<Error><AWSAccessKeyId>kiln-test-key</AWSAccessKeyId></Error>";
            let length = body.len();
            return write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").ok();
        }
        let tag = if answer == Answer::Changed { "other".into() } else { format!("{:x}", content.len()) };
        let common =
            format!("etag: \"{tag}\"\r\nlast-modified: Tue, 01 Oct 2024 10:00:00 GMT\r\naccept-ranges: bytes\r\n");
        let Some(range) = range.filter(|_| answer != Answer::Whole) else {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{common}\r\n", content.len()).ok()?;
            return if method == "HEAD" { Some(()) } else { stream.write_all(&content).ok() };
        };
        let (start, end) = range.split_once('-')?;
        let (mut start, mut end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        end = end.min(content.len() - 1);
        if answer == Answer::WrongRange {
            (start, end) = (start + 1, end + 1);
        }
        let mut body = content.get(start..=end)?.to_vec();
        if answer == Answer::WrongBytes {
            // No picture begins or ends like that.
            body.iter_mut().for_each(|byte| *byte = 0x5a);
        }
        if answer == Answer::Endless {
            body.resize(body.len() + (256 << 20), 0);
        }
        let (length, total) = (body.len(), content.len());
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\ncontent-range: bytes {start}-{end}/{total}\r\n\
             {common}\r\n"
        )
        .ok()?;
        let sent = if answer == Answer::Cut { &body[..length / 2] } else { &body[..] };
        for part in sent.chunks(1 << 20) {
            self.bytes.fetch_add(part.len() as u64, Ordering::SeqCst);
            stream.write_all(part).ok()?;
        }
        (answer != Answer::Cut).then_some(())
    }

    /// The objects in a folder of a bucket, `/bucket?list-type=2&prefix=folder/&delimiter=/`.
    fn list(&self, mut stream: &TcpStream, bucket: &str, query: &str) -> Option<()> {
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default();
        let prefix = prefix.replace("%2F", "/");
        let folder = self.root.join(bucket.trim_matches('/')).join(&prefix);
        let mut objects = String::new();
        for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap).filter(|it| it.path().is_file()) {
            let (name, size) = (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len());
            objects += &format!(
                "<Contents><Key>{prefix}{name}</Key><Size>{size}</Size><ETag>\"{size:x}\"</ETag>\
                 <LastModified>2024-10-01T10:00:00.000Z</LastModified></Contents>"
            );
        }
        let body = format!("<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>");
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).ok()
    }
}
