//! Serves MCP in both eras of the protocol, over stdio and streamable HTTP.
//!
//! [`codec`] reads and writes messages, [`door`] answers requests, [`http`] and [`stdio`] are the
//! transports.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

mod answer_text;
mod call_result;
mod call_rules;
mod client;
mod codec;
mod declared;
mod door;
mod exchange;
mod framing;
mod greeting;
mod headers;
mod http;
mod in_flight;
mod line_writer;
mod listen;
mod lists;
mod notifications;
mod outbox;
mod outgoing;
mod page;
mod reply;
mod request_future;
mod rpc_error;
mod search;
mod session_table;
mod sessions;
mod standard_input;
mod stdio;
mod tools;

pub(crate) use http::{Endpoint, everything, toolset};
pub use sessions::SessionLimits;
pub use stdio::{refuse_stdio, serve_stdio};

/// Entry points for fuzz targets: the readers of outside bytes.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Reads a body as a message with its parameters, and checks the answer to an invalid one.
    pub fn body(bytes: &[u8]) {
        match super::codec::read(bytes) {
            Ok(super::codec::Incoming::One(super::codec::Message::Request(request))) => {
                let _ = request.params.meta();
                let _ = super::headers::name(&request);
                let _ = super::listen::filter(&request);
                assert!(
                    !super::codec::answer(&request.id, Ok(serde_json::Value::Null.into()))
                        .is_empty()
                );
            }
            Ok(_) => (),
            Err(fault) => {
                let answer: serde_json::Value =
                    serde_json::from_slice(&fault.answer()).unwrap_or_default();
                let code = answer.pointer("/error/code");
                assert!(code.is_some_and(serde_json::Value::is_i64));
            }
        }
    }

    /// Reads lines until the end, each as a body.
    pub fn lines(bytes: &[u8]) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
        runtime.block_on(async {
            let mut messages =
                super::framing::Messages::new(bytes, crate::message_size::BODY_BYTES_MAX);
            while let Ok(read) = messages.next().await {
                match read {
                    super::framing::Read::End => return,
                    super::framing::Read::Message(line) => body(&line),
                    super::framing::Read::TooLong(_) => (),
                }
            }
        });
    }
}
