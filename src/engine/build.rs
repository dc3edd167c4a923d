//! Compiles the shim to Gloo with the feature `gloo`.

fn main() {
    // LibTorch contains another Gloo under the same names: the one linked first is used.
    #[cfg(feature = "gloo")]
    gloo();
    println!("cargo:rerun-if-changed=build.rs");
}

/// Gloo's headers and library are the system's.
#[cfg(feature = "gloo")]
fn gloo() {
    println!("cargo:rerun-if-changed=parallel/gloo");
    cxx_build::bridge("parallel/gloo/mod.rs")
        .std("c++17")
        .files(["parallel/gloo/shim.cc", "parallel/gloo/sockets.cc"])
        .compile("kiln_gloo");
    println!("cargo:rustc-link-lib=gloo");
}
