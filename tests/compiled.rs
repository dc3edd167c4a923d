//! Stand-ins for libraries in C and C++, and where a program finds them before the others.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::files::file;
use crate::skipped::skip;

/// Compiles a stand-in of `tests/fixtures`; whether there is a compiler.
pub fn compiled(source: &str, to: &Path) -> bool {
    let (compiler, options): (_, &[_]) =
        if source.ends_with(".c") { ("cc", &[]) } else { ("c++", &["-std=c++17", "-O2", "-pthread"]) };
    let mut command = Command::new(compiler);
    command.args(options).args(["-shared", "-fPIC", "-o"]).arg(to).arg(file("tests/fixtures").join(source));
    match command.status() {
        Ok(status) => status.success() || panic!("{source} does not compile"),
        Err(_) => {
            skip(&format!("there is no compiler '{compiler}'"));
            false
        }
    }
}

/// Where a process looks for libraries that is to find those in `place` first.
pub fn before_others(place: &Path) -> OsString {
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    [place.as_os_str(), &others].join(OsStr::new(":"))
}
