#![doc = include_str!("../README.md")]

pub mod backend;
pub mod checkpoint;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod digest;
pub mod export;
pub mod ledger;
#[cfg(feature = "memory")]
pub mod memory;
pub mod note;
pub mod proof;
pub mod queue;
pub mod reads;
pub mod redact;
pub mod stats;
pub mod verify;

pub use backend::recorder::Recorder;
pub use digest::Digester;
pub use ledger::{Ledger, LedgerError};
pub use queue::CallQueue;
pub use reads::LedgerReads;
