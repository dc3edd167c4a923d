//! One integration binary; each module is about one promise of the product.

#[macro_use]
mod backends;
mod parity;
mod reference;
