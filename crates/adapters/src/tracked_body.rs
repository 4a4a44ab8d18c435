//! A request body that knows whether all of it was handed to the connection.
//!
//! A server that was never given the end of a request cannot have taken it, whatever broke then.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderValue};

/// Bytes that are handed over at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// Tells whether the last bytes of a body were handed to the connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent(Arc<AtomicBool>);

impl Sent {
    /// Whether the server may have the whole body.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Gives a request its body, and a mark that says when all of it was handed over.
pub(crate) fn attach(
    request: reqwest::RequestBuilder,
    body: Vec<u8>,
) -> (reqwest::RequestBuilder, Sent) {
    let sent = Sent::default();
    let length = HeaderValue::from(body.len());
    let (mark, body) = (sent.clone(), bytes::Bytes::from(body));
    let chunks = stream::unfold((body, mark), |(mut rest, mark)| async move {
        if rest.is_empty() {
            return None;
        }
        let chunk = rest.split_to(rest.len().min(CHUNK_BYTES));
        if rest.is_empty() {
            mark.0.store(true, Ordering::Release);
        }
        Some((Ok::<_, std::io::Error>(chunk), (rest, mark)))
    });
    // With a length the body is sent as it is, and no chunk ends it early.
    let request = request.header(CONTENT_LENGTH, length);
    (request.body(reqwest::Body::wrap_stream(chunks)), sent)
}

/// Whether a status says that the request was not taken; whatever else failed may have begun.
pub(crate) fn says_not_taken(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        400 | 401 | 403..=407 | 410 | 411 | 413..=417 | 422 | 426 | 428 | 429 | 431
    )
}
