//! Structs whose fields are declared with their defaults.

/// Declares a struct; what follows the `=` of each field is its value in the struct's [`Default`].
#[macro_export]
macro_rules! with_defaults {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$about])*
        pub struct $name { $($(#[$of])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
