//! Compiles the shim to LibTorch's C++ library with the feature `tch`.

#[cfg(not(feature = "tch"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}

#[cfg(feature = "tch")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    aten::compile();
}

#[cfg(feature = "tch")]
mod aten {
    use std::path::PathBuf;
    use std::process::Command;

    /// torch-sys finds LibTorch but does not export its headers, so they are found here in the same way: `LIBTORCH`, or
    /// the PyTorch of `python3`.
    pub fn compile() {
        println!("cargo:rerun-if-changed=torch/shim.cpp");
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
            .file("torch/shim.cpp")
            .compile("kiln_aten");
        println!("cargo:rustc-link-search=native={}", torch.join("lib").display());
        println!("cargo:rustc-link-lib=torch_cpu");
        println!("cargo:rustc-link-lib=c10");
    }

    /// The directory of the PyTorch that `python3` would import.
    fn of_python() -> Option<PathBuf> {
        let script = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)";
        let output =
            Command::new("python3").args(["-c", script]).output().ok().filter(|output| output.status.success())?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    }
}
