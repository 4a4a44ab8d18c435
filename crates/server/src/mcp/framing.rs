//! Reads one message per line, and skips lines that are too long.
//!
//! Path: 1. Doc: front-doors.md#messages

use std::io::Result;

use tokio::io::AsyncBufRead;
use toolbooth_mcp::lines::{Line, Lines, Overlong};

use super::codec::{Id, id_of_beginning};
use crate::message_size::BODY_BYTES_MAX;

/// The result of a read.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    /// A line that is not blank.
    Message(Vec<u8>),
    /// A line that is too long, with its id if the part that was read has one.
    TooLong(Option<Id>),
    /// The end of the input.
    End,
}

/// The beginning of a line that is too long.
#[derive(Debug, Default)]
struct Beginning(Vec<u8>);

impl Overlong for Beginning {
    fn begin(&mut self, beginning: Vec<u8>) {
        self.0 = beginning;
    }

    fn feed(&mut self, bytes: &[u8]) {
        let space = BODY_BYTES_MAX.saturating_sub(self.0.len()).min(bytes.len());
        self.0.extend_from_slice(bytes.get(..space).unwrap_or_default());
    }
}

/// The messages of a client, each within a limit.
pub(super) struct Messages<R>(Lines<R, Beginning>);

impl<R: AsyncBufRead + Unpin> Messages<R> {
    pub(super) fn new(input: R, most: usize) -> Self {
        Self(Lines::new(input, most))
    }

    /// Reads the next message.
    pub(super) async fn next(&mut self) -> Result<Read> {
        loop {
            let (line, is_last) = match self.0.next().await? {
                Line::Whole(line) => (line, false),
                Line::TooLong(beginning) => {
                    return Ok(Read::TooLong(id_of_beginning(&beginning.0)));
                }
                Line::End(rest) => (rest, true),
            };
            if !line.trim_ascii().is_empty() {
                return Ok(Read::Message(line));
            }
            if is_last {
                return Ok(Read::End);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_only_itself() {
        let mut text = br#"{"jsonrpc":"2.0","id":7,"x":""#.to_vec();
        text.resize(BODY_BYTES_MAX * 2, b'x');
        text.extend_from_slice(b"\n\n  \r\nnext\nlast");
        let mut messages = Messages::new(&text[..], BODY_BYTES_MAX);
        let id = Id::of(&serde_json::json!(7));
        assert_eq!(messages.next().await.unwrap(), Read::TooLong(id));
        assert_eq!(messages.next().await.unwrap(), Read::Message(b"next".to_vec()));
        assert_eq!(messages.next().await.unwrap(), Read::Message(b"last".to_vec()));
        assert_eq!(messages.next().await.unwrap(), Read::End);
    }
}
