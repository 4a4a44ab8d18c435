//! A client's connection with deadlines for what it sends and takes.
//!
//! A head must be complete in time from its first byte; a client must take some of an answer in
//! time once the kernel's buffer is full. A connection without a request, and a stream with
//! nothing to send, wait as long as they like. Where hyper itself refuses a head, with an empty
//! body, a problem document goes out in its place.
//!
//! Doc: front-doors.md#limits

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::connections::Activity;
use super::limits::HEAD_BYTES_MAX;
use super::{BODY_BYTES_MAX, Limits, Problem};

/// A client that takes fewer bytes than these within the write deadline is too slow.
const PROGRESS_BYTES_MIN: usize = 16 << 10;
/// How long, and how much, is still read from a client whose request was refused before it was
/// all there. Closing at once would reset the connection, and the client would lose the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

type Timer = Pin<Box<Sleep>>;

fn timer(after: Duration) -> Timer {
    Box::pin(sleep(after))
}

pub(super) struct DeadlineStream {
    stream: TcpStream,
    activity: Arc<Activity>,
    header_timeout: Duration,
    write_timeout: Duration,
    /// Runs while a head is incomplete, with the number of requests that came before it.
    head: Option<(u64, Timer)>,
    /// Runs while the kernel takes no more.
    write: Option<Timer>,
    /// Bytes that the kernel has taken since that began.
    written: usize,
    /// The problem that goes out in place of hyper's own refusal, and how much of it has.
    refusal: Option<(Vec<u8>, usize)>,
    closing: Closing,
}

enum Closing {
    Open,
    Lingering(Timer, usize),
}

impl DeadlineStream {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>, limits: &Limits) -> Self {
        Self {
            stream,
            activity,
            header_timeout: limits.header_timeout,
            write_timeout: limits.write_timeout,
            head: None,
            write: None,
            written: 0,
            refusal: None,
            closing: Closing::Open,
        }
    }

    fn poll_head_deadline(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let requests = self.activity.requests();
        self.head.take_if(|(before, _)| *before != requests);
        let Some((_, timer)) = &mut self.head else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        let title = "the request's head was not complete in time".to_owned();
        // Nothing else is being written while no request is in progress.
        let _ = self.stream.try_write(&Problem::new(408, "request-timeout", title).as_message());
        Poll::Ready(ErrorKind::TimedOut.into())
    }

    /// Counts what the kernel took, and fails where that is too little for too long.
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

    /// Sends a problem in place of hyper's own refusal, which is `length` bytes with this head.
    fn poll_refusal(
        &mut self,
        context: &mut Context<'_>,
        head: &[u8],
        length: usize,
    ) -> Poll<Result<usize>> {
        if self.refusal.is_none() {
            // What follows the head that was refused is not read any more.
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

/// The problem that hyper answered with a status alone.
fn refusal(head: &[u8]) -> Problem {
    if head.starts_with(b"HTTP/1.1 431") {
        let title =
            format!("a request's head has at most {HEAD_BYTES_MAX} bytes and 100 header lines");
        return Problem::new(431, "head-too-large", title);
    }
    Problem::new(400, "invalid-request", "the request is not HTTP/1.1".to_owned())
}

impl AsyncRead for DeadlineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
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

impl AsyncWrite for DeadlineStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let this = &mut *self;
        // INVARIANT: a request is in progress until its whole answer is flushed, so that what is
        // written without one is hyper's own.
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

    /// Asked by hyper only when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.write = None;
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::Open => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
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
