//! Where the tests find the files of the repository, and when files seem to have changed.
//!
//! The repository is where the tests were built, or the directory in `KILN_TEST_ROOT`: a bundle that was carried to
//! another machine holds the files under their names in the repository.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

/// The directory that [`file`] is about.
pub static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    // Members of the workspace are built in folders of it.
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("tests/fixtures").is_dir());
    carried().or(built.map(Path::to_path_buf)).unwrap().canonicalize().unwrap()
});

/// The directory of a bundle.
pub fn carried() -> Option<PathBuf> {
    std::env::var_os("KILN_TEST_ROOT").map(PathBuf::from)
}

/// A file of the repository, by its name there.
pub fn file(name: impl AsRef<Path>) -> PathBuf {
    ROOT.join(name)
}

/// Makes every file of a folder a minute older than now.
pub fn age(dir: &Path) {
    date(dir, SystemTime::now() - Duration::from_secs(60));
}

/// Says that every file of a folder changed at this time.
pub fn date(dir: &Path, time: SystemTime) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            date(&entry.path(), time);
        }
        File::open(entry.path()).unwrap().set_modified(time).unwrap();
    }
    File::open(dir).unwrap().set_modified(time).unwrap();
}
