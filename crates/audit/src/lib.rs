#![doc = include_str!("../README.md")]

pub mod chain;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod digest;
pub mod ledger;
#[cfg(feature = "memory")]
pub mod memory;
pub mod reads;
pub mod redact;
pub mod steps;
pub mod verify;

pub use digest::Digester;
pub use ledger::{Ledger, LedgerError};
pub use reads::LedgerReads;
