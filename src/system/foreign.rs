//! Tables of functions of C libraries that are loaded at run time: nothing is linked, and a program runs on machines
//! without the libraries.

use std::ffi::OsStr;

pub use libloading::Library;

/// Declares a table of functions of a C library, with the names of its header.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        struct $table {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// # Safety
            /// The types are those of the header; the library stays loaded.
            unsafe fn of(library: &$crate::foreign::Library) -> ::std::result::Result<Self, ::std::string::String> {
                // SAFETY: the caller's.
                Ok(Self { $($field: unsafe { $crate::foreign::symbol(library, $name) }?,)* })
            }
        }
    };
}

/// The library with this path or name, which stays loaded.
///
/// # Errors
/// The loader's own words.
///
/// # Safety
/// The constructors of the library may run at any time.
pub unsafe fn load(name: &OsStr) -> Result<&'static Library, String> {
    // SAFETY: the caller's.
    let library = unsafe { Library::new(name) }.map_err(cause)?;
    Ok(Box::leak(Box::new(library)))
}

/// A function of the library, or another symbol.
///
/// # Errors
/// The loader's own words.
///
/// # Safety
/// The type is that of the header.
pub unsafe fn symbol<T: Copy>(library: &Library, name: &[u8]) -> Result<T, String> {
    // SAFETY: the caller's.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(cause)
}

fn cause(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}
