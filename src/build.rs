//! Compiles the shims to C++ libraries: Gloo's with the feature `gloo`, ATen's with the feature `tch`.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    // LibTorch contains another Gloo under the same names: the one linked first is used.
    #[cfg(feature = "gloo")]
    gloo();
    if std::env::var_os("CARGO_FEATURE_TCH").is_some() {
        aten();
    }
    println!("cargo:rerun-if-changed=src/build.rs");
}

/// Gloo's headers and library are the system's.
#[cfg(feature = "gloo")]
fn gloo() {
    println!("cargo:rerun-if-changed=src/parallel/gloo");
    cxx_build::bridge("src/parallel/gloo/mod.rs")
        .std("c++17")
        .files(["src/parallel/gloo/shim.cc", "src/parallel/gloo/sockets.cc"])
        .compile("kiln_gloo");
    println!("cargo:rustc-link-lib=gloo");
}

/// torch-sys finds LibTorch but does not export its headers, so they are found here in the same way: `LIBTORCH`, or the
/// PyTorch of `python3`.
fn aten() {
    println!("cargo:rerun-if-changed=src/ops/torch/shim.cpp");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let torch = std::env::var_os("LIBTORCH").map(PathBuf::from).or_else(of_python).unwrap_or_else(|| {
        panic!("LibTorch 2.9.0 was not found: set LIBTORCH to its directory, or run 'make setup-tch' and use make")
    });
    let mut build = cc::Build::new();
    build.cpp(true);
    // LibTorch uses GNU's OpenMP. Without it the shim's own loops use one thread.
    if build.get_compiler().is_like_gnu() {
        build.flag("-fopenmp");
        println!("cargo:rustc-link-lib=gomp");
    }
    build
        .std("c++17")
        .warnings(false)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        .file("src/ops/torch/shim.cpp")
        .compile("kiln_aten");
    println!("cargo:rustc-link-search=native={}", torch.join("lib").display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
}

/// The directory of the PyTorch that `python3` would import.
fn of_python() -> Option<PathBuf> {
    let script = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)";
    let output = Command::new("python3").args(["-c", script]).output().ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}
