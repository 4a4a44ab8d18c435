//! Enforces deadlines on reads and writes of a client's connection.
//!
//! A head must be complete in time, counted from its first byte. Once the kernel's buffer is full,
//! a client must read part of its answer in time. Idle connections and streams with nothing to send
//! have no deadline. A problem document replaces the empty answer by which hyper refuses a
//! malformed head.
//!
//! Doc: front-doors.md#limits

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connections::Activity;
use super::limits::HEAD_BYTES_MAX;
use super::line_ends::LineEnds;
use super::{Limits, Problem, ProblemCode};
use crate::message_size::BODY_BYTES_MAX;

/// The minimum bytes that a client must accept within the write deadline.
const PROGRESS_BYTES_MIN: usize = 16 << 10;
/// The time for which reading continues after a request was refused early, up to `LINGER_BYTES_MAX`
/// bytes. Closing at once would reset the connection, and the client would lose the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

type Timer = Pin<Box<Sleep>>;

fn timer(after: Duration) -> Timer {
    Box::pin(sleep(after))
}

pub(super) struct DeadlineStream<S> {
    stream: S,
    activity: Arc<Activity>,
    header_timeout: Duration,
    write_timeout: Duration,
    /// The deadline of an incomplete head, with the number of requests before it.
    head: Option<(u64, Timer)>,
    /// The deadline of a write while the kernel's buffer is full.
    write: Option<Timer>,
    /// Bytes that the kernel has accepted since `write` was set; below TLS, those that TLS has.
    written: usize,
    /// Below TLS: the bytes that the kernel has accepted so far, and their number when `write` was set.
    sent: Option<(Arc<AtomicU64>, u64)>,
    /// The problem that replaces hyper's own refusal, and the number of its bytes already sent.
    refusal: Option<(Vec<u8>, usize)>,
    closing: Closing,
    line_ends: LineEnds,
}

enum Closing {
    Open,
    Lingering(Timer, usize),
}

impl<S: AsyncRead + AsyncWrite + Unpin> DeadlineStream<S> {
    pub(super) fn new(
        stream: S,
        sent: Option<Arc<AtomicU64>>,
        activity: Arc<Activity>,
        limits: &Limits,
    ) -> Self {
        Self {
            stream,
            activity,
            header_timeout: limits.header_timeout,
            write_timeout: limits.write_timeout,
            head: None,
            write: None,
            written: 0,
            sent: sent.map(|sent| (sent, 0)),
            refusal: None,
            closing: Closing::Open,
            line_ends: LineEnds::default(),
        }
    }

    fn poll_head_deadline(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let requests = self.activity.requests();
        self.head.take_if(|(before, _)| *before != requests);
        let Some((_, timer)) = &mut self.head else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        let title = "the request's head was not complete in time".to_owned();
        let message = Problem::new(ProblemCode::REQUEST_TIMEOUT, title).as_message();
        // Nothing else is being written while no request is in progress, so the buffer is empty.
        let _ = Pin::new(&mut self.stream).poll_write(context, &message);
        let _ = Pin::new(&mut self.stream).poll_flush(context);
        Poll::Ready(ErrorKind::TimedOut.into())
    }

    /// Counts the bytes that the kernel accepted. Fails if they are too few within the deadline.
    fn within_deadline(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.written = self.written.saturating_add(bytes);
                if self.written >= PROGRESS_BYTES_MIN {
                    self.write = None;
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if let Some((sent, before)) = &mut self.sent {
                    let now = sent.load(Ordering::Relaxed);
                    // A flush of TLS takes a while, although the client reads.
                    if self.write.is_none() || now - *before >= PROGRESS_BYTES_MIN as u64 {
                        (*before, self.write) = (now, None);
                    }
                }
                if self.write.is_none() {
                    self.written = 0;
                }
                let after = self.write_timeout;
                let write = self.write.get_or_insert_with(|| timer(after));
                ready!(write.as_mut().poll(context));
                tracing::debug!("a client does not take its answer");
                Poll::Ready(Err(ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Sends a problem instead of hyper's own refusal. The refusal has `length` bytes and begins
    /// with `head`.
    fn poll_refusal(
        &mut self,
        context: &mut Context<'_>,
        head: &[u8],
        length: usize,
    ) -> Poll<Result<usize>> {
        if self.refusal.is_none() {
            // The bytes after the refused head are not read.
            self.activity.leave_unread();
            self.refusal = Some((refusal(head).as_message(), 0));
        }
        loop {
            let Some((message, sent)) = &mut self.refusal else { return Poll::Pending };
            let rest = message.get(*sent..).unwrap_or_default();
            if rest.is_empty() {
                return Poll::Ready(Ok(length));
            }
            let written = Pin::new(&mut self.stream).poll_write(context, rest);
            if let Poll::Ready(Ok(bytes)) = &written {
                *sent += bytes;
            }
            ready!(self.within_deadline(context, written))?;
        }
    }
}

/// Returns the problem for a refusal that hyper answers with a bare status.
fn refusal(head: &[u8]) -> Problem {
    if head.starts_with(b"HTTP/1.1 431") {
        let title =
            format!("a request's head has at most {HEAD_BYTES_MAX} bytes and 100 header lines");
        return Problem::new(ProblemCode::HEAD_TOO_LARGE, title);
    }
    Problem::new(ProblemCode::INVALID_REQUEST, "the request is not HTTP/1.1")
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                let come = buffer.filled_mut().get_mut(before..).unwrap_or_default();
                this.line_ends.check(come);
                if this.line_ends.is_lost() {
                    this.activity.end_after_this();
                }
                let requests = this.activity.requests();
                let runs = this.head.as_ref().is_some_and(|(before, _)| *before == requests);
                if buffer.filled().len() > before && !runs && this.activity.is_idle() {
                    this.head = Some((requests, timer(this.header_timeout)));
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.poll_head_deadline(context).map(Err),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let this = &mut *self;
        // INVARIANT: a request is in progress until its whole answer is flushed, so bytes written
        // on an idle connection are hyper's own refusal.
        if this.activity.is_idle() {
            return this.poll_refusal(context, bytes, bytes.len());
        }
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.within_deadline(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let this = &mut *self;
        if this.activity.is_idle() {
            let head = pieces.iter().find(|piece| !piece.is_empty());
            let length = pieces.iter().map(|piece| piece.len()).sum();
            return this.poll_refusal(context, head.map_or(&[], |head| head), length);
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        this.within_deadline(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper calls this only when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // TLS keeps bytes that the kernel has not accepted yet.
        let flushed = Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0);
        ready!(self.within_deadline(context, flushed))?;
        self.write = None;
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::Open => {
                    let ended = Pin::new(&mut this.stream).poll_shutdown(context).map_ok(|()| 0);
                    ready!(this.within_deadline(context, ended))?;
                    if !this.activity.has_unread() {
                        return Poll::Ready(Ok(()));
                    }
                    this.closing = Closing::Lingering(timer(LINGER), 0);
                }
                Closing::Lingering(timer, read) => {
                    if *read > LINGER_BYTES_MAX || timer.as_mut().poll(context).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                    let mut scratch = [0; 8 << 10];
                    let mut buffer = ReadBuf::new(&mut scratch);
                    let ended = ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer));
                    if ended.is_err() || buffer.filled().is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    *read += buffer.filled().len();
                }
            }
        }
    }
}
