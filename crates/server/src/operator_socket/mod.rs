//! The messages at a gateway's socket for its operator, served and asked for: decisions on approvals, and the
//! definitions that its servers list.
//!
//! The caller of this module creates and finds the socket.
//!
//! Path: 1. Doc: front-doors.md#operator-socket

mod asking;
mod serving;

pub use asking::{Answer, decide, definitions};
pub use serving::serve;

/// The path of the definitions.
const DEFINITIONS: &str = "/v1/definitions";
