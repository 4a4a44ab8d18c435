//! Reads request bodies within a size limit, a deadline, and a budget that all connections share.
//!
//! Path: 1. Doc: front-doors.md#limits

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};
use toolbooth_contracts::ErrorCode;

use super::connections::{Activity, InProgress};
use super::{Limits, Problem, ProblemCode};
use crate::error::BodyError;

/// The time after which a client may retry when the budget is used up, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// The budget for bytes of request bodies in memory, shared by all connections.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    held: AtomicUsize,
    max: usize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Account { held: AtomicUsize::new(0), max }))
    }

    /// Opens an empty lease for one request.
    pub(super) fn lease(&self) -> Arc<Lease> {
        Arc::new(Lease { budget: self.clone(), held: AtomicUsize::new(0) })
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }
}

/// The bytes of the budget that one request uses. Dropping the lease returns them.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Budget,
    held: AtomicUsize,
}

/// Keeps a request's lease open while its call runs, even after the client has disconnected.
#[derive(Debug, Clone)]
pub(crate) struct Held(#[expect(dead_code, reason = "it is only dropped")] pub(super) Arc<Lease>);

impl Lease {
    /// Takes `bytes` from the budget. Returns false and takes nothing if they do not fit.
    #[must_use]
    fn take(&self, bytes: usize) -> bool {
        let account = &self.budget.0;
        let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= account.max);
        let taken = account.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if taken {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(*self.held.get_mut(), Ordering::Relaxed);
    }
}

impl BodyError {
    fn problem(&self) -> Problem {
        let code = match self {
            Self::TooLarge { .. } => ProblemCode::TOO_LARGE,
            Self::OverBudget => ErrorCode::Overloaded.into(),
            Self::Timeout => ProblemCode::REQUEST_TIMEOUT,
            Self::Malformed(_) => ProblemCode::INVALID_REQUEST,
        };
        let retry_after_ms = matches!(self, Self::OverBudget).then_some(RETRY_AFTER_MS);
        Problem { retry_after_ms, ..Problem::new(code, self.to_string()) }
    }
}

/// A request's body within the limits. It ends after its first error.
pub(super) struct LimitedBody {
    incoming: Incoming,
    activity: Arc<Activity>,
    lease: Arc<Lease>,
    read: usize,
    most: usize,
    deadline: Instant,
    /// Created at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl LimitedBody {
    pub(super) fn new(
        incoming: Incoming,
        activity: Arc<Activity>,
        lease: Arc<Lease>,
        limits: &Limits,
    ) -> Self {
        let deadline = Instant::now() + limits.body_timeout;
        let most = limits.body_bytes_max;
        Self { incoming, activity, lease, read: 0, most, deadline, timer: None, ended: false }
    }

    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), BodyError> {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.read = self.read.saturating_add(bytes);
        if self.read > self.most {
            return Err(BodyError::TooLarge { most: self.most });
        }
        if self.lease.take(bytes) { Ok(()) } else { Err(BodyError::OverBudget) }
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        // A body that declares too many bytes is not read at all.
        let declared = usize::try_from(this.incoming.size_hint().lower()).unwrap_or(usize::MAX);
        let failed = match Pin::new(&mut this.incoming).poll_frame(context) {
            _ if this.read == 0 && declared > this.most => BodyError::TooLarge { most: this.most },
            Poll::Ready(Some(Ok(frame))) => match this.count(&frame) {
                Ok(()) => return Poll::Ready(Some(Ok(frame))),
                Err(error) => error,
            },
            Poll::Ready(Some(Err(error))) => BodyError::Malformed(error),
            Poll::Ready(None) => {
                this.ended = true;
                return Poll::Ready(None);
            }
            Poll::Pending => {
                let deadline = this.deadline;
                let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                BodyError::Timeout
            }
        };
        this.ended = true;
        this.activity.leave_unread();
        Poll::Ready(Some(Err(failed)))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            self.activity.leave_unread();
        }
    }
}

/// An answer's body. Until it is dropped, its request is in progress and its lease stays open.
pub(super) struct AnswerBody {
    pub(super) body: Body,
    pub(super) _held: (InProgress, Arc<Lease>),
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a whole body, which must be declared as JSON.
///
/// # Errors
/// The problem to answer with: 400, 408, 413, 415 or 503.
pub(crate) async fn read_json(headers: &HeaderMap, body: Body) -> Result<Bytes, Box<Problem>> {
    if !is_json(headers) {
        let title = "the body must be sent with `content-type: application/json`";
        return Err(Box::new(Problem::new(ProblemCode::UNSUPPORTED_MEDIA_TYPE, title)));
    }
    read(body).await
}

/// How many times the bytes that have arrived are reserved for those that follow.
const RESERVED_RATIO: usize = 4;

async fn read(mut body: Body) -> Result<Bytes, Box<Problem>> {
    // A single piece is returned without a copy. Several are copied into one buffer, so that many
    // tiny pieces take little more memory than the bytes that were counted.
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) =
        std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        let piece = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) => return Err(Box::new(problem_of(error))),
        };
        if first.is_empty() && whole.is_empty() {
            first = piece;
        } else {
            if !first.is_empty() {
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            if whole.len() + piece.len() > whole.capacity() {
                // A client must send bytes before memory for the stated rest is reserved.
                let rest = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
                whole.reserve(piece.len() + rest.min(whole.len() * RESERVED_RATIO));
            }
            whole.extend_from_slice(&piece);
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

fn problem_of(error: axum::Error) -> Problem {
    match error.into_inner().downcast::<BodyError>() {
        Ok(error) => {
            tracing::debug!(%error, "a request's body is refused");
            error.problem()
        }
        Err(error) => {
            tracing::debug!(%error, "a request's body is not read");
            Problem::new(ProblemCode::INVALID_REQUEST, "the request's body cannot be read")
        }
    }
}

/// Whether there is exactly one `content-type` and it specifies JSON, with or without parameters
/// (RFC 9110, 8.3).
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split_once(';').map_or(text, |(essence, _)| essence);
    essence.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_takes_within_the_budget_and_gives_back() {
        let budget = Budget::new(10);
        let (one, other) = (budget.lease(), budget.lease());
        assert!(one.take(6) && other.take(4));
        assert!(!other.take(1) && !other.take(usize::MAX));
        assert_eq!(budget.held(), 10);
        drop(one);
        assert!(other.take(6));
        drop(other);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn only_one_json_content_type_passes() {
        let passes = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_TYPE, value.parse().unwrap());
            }
            is_json(&headers)
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/json ;a=b"]
        {
            assert!(passes(&[good]), "{good}");
        }
        for bad in ["text/plain", "application/jsonp", "", "text/plain; application/json"] {
            assert!(!passes(&[bad]), "{bad}");
        }
        assert!(!passes(&[]) && !passes(&["application/json", "text/plain"]));
    }

    #[tokio::test]
    async fn pieces_are_read_as_one() {
        let whole = read(Body::from("one piece")).await.unwrap();
        assert_eq!(whole, "one piece");
        assert_eq!(read(Body::empty()).await.unwrap(), "");
        for sizes in [&[1usize, 2, 3][..], &[1, 0, 1], &[0, 5], &[1_000, 100_000, 7]] {
            let pieces = (b'a'..).zip(sizes).map(|(byte, size)| vec![byte; *size].into());
            let pieces: Vec<Bytes> = pieces.collect();
            let whole = pieces.concat();
            assert_eq!(read(Body::new(Pieces(pieces.into()))).await.unwrap(), whole, "{sizes:?}");
        }
    }

    /// A body with a stated length.
    struct Pieces(std::collections::VecDeque<Bytes>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
        }
    }
}
