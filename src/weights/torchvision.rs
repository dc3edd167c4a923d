//! The published weights of torchvision's ResNets (`IMAGENET1K_V1`), cached in PyTorch's directory.
//!
//! The name of a published file ends with the first digits of its SHA-256. `kiln_objects::fetch` downloads, `pth`
//! reads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kiln_objects::fetch::{self, Published};
use kiln_system::{Error, Result, shown};
use sha2::Sha256;

/// ResNet-18, 46.8 MB, a head of 1000 classes.
pub const RESNET18: &str = "resnet18-f37072fd.pth";
/// The files, all with that head, and most bytes of each, in MiB: a little more than they have.
const FILES: [(&str, u64); 10] = [
    (RESNET18, 48),
    ("resnet34-b627a593.pth", 96),
    ("resnet50-0676ba61.pth", 112),
    ("resnet101-63fe2227.pth", 192),
    ("resnet152-394f9c45.pth", 256),
    ("resnext50_32x4d-7cdf4587.pth", 112),
    ("resnext101_32x8d-8ba56ff5.pth", 384),
    ("resnext101_64x4d-173b62eb.pth", 352),
    ("wide_resnet50_2-95faca4d.pth", 144),
    ("wide_resnet101_2-32ee1156.pth", 272),
];
/// PyTorch's home of published weights.
pub const HOME: &str = "https://download.pytorch.org/models";

/// The file of torchvision's network `name`, as in `resnet18`.
pub fn file_of(name: &str) -> Option<&'static str> {
    FILES.iter().map(|(file, _)| *file).find(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
}

/// The path of the weights `name`, which is `NAME-CHECKSUM.pth`, in the folder `cache`; fetches them from below the URL
/// `base`, as [`HOME`], if they are missing or damaged.
///
/// `progress` is called with the bytes so far and, if the server reports it, the total.
///
/// # Errors
/// If `name` has no checksum, if the server cannot be reached, ends too early or sends other content, or if `cache`
/// cannot be written. The message says where to put the file by hand.
pub fn fetch_from(base: &str, name: &str, cache: &Path, progress: &dyn Fn(u64, Option<u64>)) -> Result<PathBuf> {
    let checksum = name.rsplit_once('-').and_then(|(_, end)| end.strip_suffix(".pth"));
    let is_digits = |it: &&str| it.len() == 8 && it.bytes().all(|digit| digit.is_ascii_hexdigit());
    let checksum = checksum.filter(is_digits).ok_or_else(|| {
        Error::usage(format!("'{name}' does not end with the first 8 digits of a SHA-256, as in '{RESNET18}'"))
    })?;
    let url = format!("{}/{name}", base.trim_end_matches('/'));
    let file = Published {
        name: name.into(),
        hash: "SHA-256",
        checksum: checksum.to_ascii_lowercase(),
        limit: FILES.iter().find(|(file, _)| *file == name).map_or(64, |(_, most)| *most) << 20,
        remedy: format!("save the file as '{}' by hand", shown(cache.join(name))),
        url,
    };
    fetch::ensure::<Sha256>(&file, cache, progress)
}

/// PyTorch's directory of fetched weights: `$TORCH_HOME/hub/checkpoints`, else below `$XDG_CACHE_HOME/torch`, else
/// below `~/.cache/torch`.
pub fn cache_directory() -> PathBuf {
    let [torch_home, cache_home] = ["TORCH_HOME", "XDG_CACHE_HOME"].map(std::env::var_os);
    directory(torch_home, cache_home, std::env::home_dir())
}

/// [`cache_directory`] for these values of the environment; empty values count as unset.
pub fn directory(torch_home: Option<OsString>, cache_home: Option<OsString>, home: Option<PathBuf>) -> PathBuf {
    let given = |value: Option<OsString>| value.filter(|it| !it.is_empty()).map(PathBuf::from);
    let home = home.unwrap_or_default();
    let cache = given(cache_home).unwrap_or_else(|| Path::new("~/.cache").into());
    let torch = given(torch_home).unwrap_or_else(|| cache.join("torch"));
    // Like Python's os.path.expanduser.
    let torch = torch.strip_prefix("~").map(|rest| home.join(rest)).unwrap_or(torch);
    torch.join("hub/checkpoints")
}
