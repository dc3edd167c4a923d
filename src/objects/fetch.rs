//! Downloads a published file, so that a file of its name is always complete and correct.
//!
//! Bytes are written to `<name>.part` next to the target while their checksum is computed; only a complete file with
//! the published checksum is flushed to disk and renamed. The checksum protects against damage: the transport is HTTPS,
//! and the files are never executed. The rooms that read files define them.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kiln_system::file::{self, TEXT};
use kiln_system::{Error, Result, shown};
use sha2::Digest;
use ureq::tls::{PemItem, TlsConfig, parse_pem};

/// How long a connection, an answer, or the next bytes may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variable that OpenSSL reads, too.
pub const AUTHORITIES: &str = "SSL_CERT_FILE";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its file name, in the folder it is fetched to.
    pub name: String,
    pub url: String,
    /// The name of its checksum, such as "MD5".
    pub hash: &'static str,
    /// The checksum in lower-case hexadecimal, or the first digits of it.
    pub checksum: String,
    /// The most bytes that are accepted.
    pub limit: u64,
    /// Another remedy; completes "try again, or ".
    pub remedy: String,
}

/// Makes sure that `dir` holds `file` with the checksum `D`; downloads it if not.
///
/// `progress` gets the bytes so far, and the total if the server sends it.
///
/// # Errors
/// If the server cannot be reached, ends too early or sends something else, or if `dir` cannot be written. An existing
/// file of the same name is then unchanged.
pub fn ensure<D: Digest + Write>(file: &Published, dir: &Path, progress: &dyn Fn(u64, Option<u64>)) -> Result<PathBuf> {
    let path = dir.join(&file.name);
    let part = dir.join(format!("{}.part", file.name));
    // Locked until the file has its final name or is removed.
    let mut target = loop {
        if path.is_file() && checksum::<D>(&path)?.starts_with(&file.checksum) {
            return Ok(path);
        }
        std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        if let Some(target) = open_alone(&part)? {
            break target;
        }
    };
    let outcome = fetch::<D>(file, &mut target, &part, progress)
        .and_then(|()| std::fs::rename(&part, &path).map_err(Error::io("replace", &path)));
    match outcome {
        Ok(()) => Ok(path),
        Err(reason) => {
            // The first error is returned; a remaining file is overwritten next time.
            let _ = std::fs::remove_file(&part);
            Err(reason)
        }
    }
}

/// Opens the partial file, empty, for this process only: two writers would produce a file that neither has checked.
/// `None` if another process was writing it and has ended.
fn open_alone(part: &Path) -> Result<Option<File>> {
    let file = file::open_to_write(part).map_err(Error::io("create", part))?;
    match file.try_lock() {
        Ok(()) if part.is_file() => file.set_len(0).map_err(Error::io("write", part)).map(|()| Some(file)),
        // Its writer finished between the two calls, and this is the finished file.
        Ok(()) => Ok(None),
        // Processes of one launch all want the file, and one of them fetches it.
        Err(TryLockError::WouldBlock) => file.lock().map_err(Error::io("lock", part)).map(|()| None),
        Err(TryLockError::Error(reason)) => Err(Error::io("lock", part)(reason)),
    }
}

fn fetch<D: Digest>(
    file: &Published,
    target: &mut File,
    part: &Path,
    progress: &dyn Fn(u64, Option<u64>),
) -> Result<()> {
    let failed = |reason: &dyn std::fmt::Display| {
        Error::Data(format!("cannot fetch '{}': {reason}; try again, or {}", file.url, file.remedy))
    };
    let mut response = agent()?.get(&file.url).call().map_err(|reason| failed(&reason))?;
    let total = response.body().content_length();
    let mut body = response.body_mut().as_reader();
    let (mut hash, mut done, mut buffer) = (D::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = match body.read(&mut buffer).map_err(|reason| failed(&reason))? {
            0 => break,
            count => count,
        };
        done += count as u64;
        if done > file.limit {
            return Err(failed(&format!("more than {} bytes arrived", file.limit)));
        }
        hash.update(&buffer[..count]);
        target.write_all(&buffer[..count]).map_err(Error::io("write", part))?;
        progress(done, total);
    }
    let found = hexadecimal(hash);
    if !found.starts_with(&file.checksum) {
        let rule = if found.len() == file.checksum.len() { "be" } else { "begin with" };
        let complaint =
            format!("{done} bytes arrived with {} '{found}', which should {rule} '{}'", file.hash, file.checksum);
        return Err(failed(&complaint));
    }
    target.sync_all().map_err(Error::io("write", part))
}

/// A client of HTTP with those authorities and bounded waiting.
///
/// # Errors
/// Those of [`tls`].
pub fn agent() -> Result<ureq::Agent> {
    let patience = Some(PATIENCE);
    let config = ureq::Agent::config_builder().timeout_connect(patience).timeout_recv_response(patience);
    Ok(config.timeout_per_read(patience).tls_config(tls()?).build().into())
}

/// The trusted certificate authorities: from the file that `SSL_CERT_FILE` names, if it is set, else those that
/// browsers trust.
///
/// # Errors
/// If that file cannot be read or holds no certificate.
pub fn tls() -> Result<TlsConfig> {
    let config = TlsConfig::builder();
    let named = std::env::var_os(AUTHORITIES).filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(path) = named else { return Ok(config.build()) };
    let bytes = file::read(&path, TEXT).map_err(Error::io("read", &path))?;
    let certificate = |item| if let Ok(PemItem::Certificate(it)) = item { Some(it) } else { None };
    let certificates: Vec<_> = parse_pem(&bytes).filter_map(certificate).collect();
    if certificates.is_empty() {
        let rule =
            format!("has no certificate; set {AUTHORITIES} to a PEM file of certificate authorities, or unset it");
        return Err(Error::usage(format!("'{}' {rule}", shown(&path))));
    }
    Ok(config.root_certs(certificates.into()).build())
}

fn checksum<D: Digest + Write>(path: &Path) -> Result<String> {
    let mut hash = D::new();
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    std::io::copy(&mut file, &mut hash).map_err(Error::io("read", path))?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: impl Digest) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
