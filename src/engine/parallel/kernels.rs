//! Where CubeCL keeps the kernels that it compiles for CUDA, so that only a program's first run compiles them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What compiled kernels depend on in addition to their names and constants, which CubeCL knows them by.
#[derive(Debug, Clone, Hash)]
pub(super) struct Origin<'a> {
    /// The program's file: another build may have another kernel of the same name.
    pub(super) program: &'a [u8],
    pub(super) compiler: (i32, i32),
    /// The compute capability of each device.
    pub(super) capabilities: &'a [(i32, i32)],
}

/// A directory below `cache` for kernels of this origin. None if nothing can be written there, which CubeCL answers
/// with a panic, or if the devices differ: CubeCL keeps the kernels of all of them together.
pub(super) fn directory(cache: &Path, origin: &Origin<'_>) -> Option<PathBuf> {
    let (first, others) = origin.capabilities.split_first()?;
    if others.iter().any(|other| other != first) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    origin.hash(&mut hasher);
    let directory = cache.join("kiln").join("kernels").join(format!("{:016x}", hasher.finish()));
    std::fs::create_dir_all(&directory).ok()?;
    let mut note = kiln_system::file::open_to_write(&directory.join("README")).ok()?;
    writeln!(note, "Kernels that train compiled; they may be removed at any time.").ok()?;
    Some(directory)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const ORIGIN: Origin<'_> = Origin { program: b"program", compiler: (12, 9), capabilities: &[(9, 0)] };

    #[test]
    fn kernels_of_another_build_compiler_or_device_lie_elsewhere() {
        let cache = tempfile::tempdir().unwrap();
        let place = |origin: Origin<'_>| directory(cache.path(), &origin).unwrap();
        let usual = place(ORIGIN);
        assert!(usual.is_dir() && usual.starts_with(cache.path().join("kiln/kernels")));
        assert_eq!(place(ORIGIN), usual);
        assert_eq!(place(Origin { capabilities: &[(9, 0), (9, 0)], ..ORIGIN }).parent(), usual.parent());
        let others = [
            Origin { program: b"another", ..ORIGIN },
            Origin { compiler: (13, 0), ..ORIGIN },
            Origin { capabilities: &[(8, 0)], ..ORIGIN },
        ];
        for other in others {
            assert_ne!(place(other.clone()), usual, "{other:?}");
        }
    }

    #[test]
    fn where_no_kernel_can_be_kept_there_is_no_directory() {
        let cache = tempfile::tempdir().unwrap();
        let mixed = Origin { capabilities: &[(9, 0), (8, 0)], ..ORIGIN };
        assert_eq!(directory(cache.path(), &mixed), None);
        assert_eq!(directory(cache.path(), &Origin { capabilities: &[], ..ORIGIN }), None);
        std::fs::write(cache.path().join("kiln"), "a file in its place").unwrap();
        assert_eq!(directory(cache.path(), &ORIGIN), None);
    }
}
