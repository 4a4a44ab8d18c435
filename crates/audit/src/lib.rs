#![doc = include_str!("../README.md")]

pub mod chain;
pub mod checkpoint;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod digest;
pub mod export;
pub mod ledger;
#[cfg(feature = "memory")]
pub mod memory;
pub mod merkle;
pub mod note;
pub mod proof;
pub mod pruning;
pub mod queue;
pub mod reads;
pub mod recorder;
pub mod redact;
pub mod room;
pub mod stats;
pub mod steps;
pub mod verify;
pub mod watch;
pub mod working;
pub mod writer;

pub use digest::Digester;
pub use ledger::{Ledger, LedgerError};
pub use queue::CallQueue;
pub use reads::LedgerReads;
pub use recorder::Recorder;
