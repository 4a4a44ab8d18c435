//! The text of an answer, in pieces that answers can share.
//!
//! Path: 10. Doc: front-doors.md#answers

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// The text of an answer, in pieces: those of a listing are in memory only once, however many clients read them.
#[derive(Debug)]
pub(super) struct AnswerText([Bytes; 3]);

impl From<Bytes> for AnswerText {
    fn from(whole: Bytes) -> Self {
        Self([whole, Bytes::new(), Bytes::new()])
    }
}

impl AnswerText {
    /// Returns a text that begins with the first piece.
    pub(super) fn of_pieces(pieces: [Bytes; 3]) -> Self {
        Self(pieces)
    }

    /// Returns the text in one piece.
    pub(super) fn whole(self) -> Bytes {
        let [first, second, third] = self.0;
        if second.is_empty() && third.is_empty() {
            return first;
        }
        [first, second, third].concat().into()
    }
}

impl HttpBody for AnswerText {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.iter_mut().find(|piece| !piece.is_empty()).map(std::mem::take);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.0.iter().map(Bytes::len).sum::<usize>();
        SizeHint::with_exact(bytes as u64)
    }
}
