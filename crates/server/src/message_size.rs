//! The size of messages that every door accepts.
//!
//! Doc: front-doors.md#limits

/// Bytes of one request's body, and of one message over stdio, unless a setting allows more.
pub const BODY_BYTES_MAX: usize = 8 << 20;
