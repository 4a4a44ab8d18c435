#![doc = include_str!("../README.md")]

pub mod code;
mod error;
pub mod greeting;
pub mod header;
pub mod header_table;
pub mod lines;
pub mod version;

pub use error::AnnotationError;
pub use version::Era;
