//! Classic Macintosh volumes: HFS and MFS, with both forks of their files.
//!
//! - [`macroman`] is the character set, and names as Unix writes them.
//! - [`relstring`] is the order of names.
//! - [`interchange`] packs both forks of a file for other systems, and unpacks them.
//!
//! The crate is `no_std` with `alloc` and without `unsafe`; the feature `std` (on unless switched
//! off) adds what needs devices and the engine.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

#[cfg(feature = "std")]
pub mod interchange;
pub mod macroman;
pub mod relstring;
