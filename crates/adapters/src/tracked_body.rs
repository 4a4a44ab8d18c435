//! A request body that records whether all of it was passed to the connection.
//!
//! A server that never received the end of a request cannot have processed it, regardless of the
//! later failure.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderValue};

/// Size of one chunk, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// A flag that is set when the last bytes of a body were passed to the connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent(Arc<AtomicBool>);

impl Sent {
    /// Whether the server may have received the whole body.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Sets the body of a request. Returns the request and the flag that is set when all of the body
/// was passed on.
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
    // With a length the body is not sent in chunked encoding, so its end is not marked separately.
    let request = request.header(CONTENT_LENGTH, length);
    (request.body(reqwest::Body::wrap_stream(chunks)), sent)
}

/// Whether a status means that the request was not processed. With any other status it may have
/// been.
pub(crate) fn says_not_taken(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        400 | 401 | 403..=407 | 410 | 411 | 413..=417 | 422 | 426 | 428 | 429 | 431
    )
}
