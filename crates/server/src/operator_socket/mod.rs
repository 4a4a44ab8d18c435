//! The messages at a gateway's socket for its operator: decisions on approvals, served and asked for.
//!
//! Who uses this makes and finds the socket.
//!
//! Path: 1. Doc: front-doors.md#operator-socket

mod asking;
mod serving;

pub use asking::{Answer, decide};
pub use serving::serve;
