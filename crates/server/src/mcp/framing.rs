//! Reads one message per line; skips a line that is too long and goes on with the next.
//!
//! Path: 1. Doc: front-doors.md#messages

use std::io::Result;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use super::codec::{Id, id_of_beginning};
use crate::http::BODY_BYTES_MAX;

/// The outcome of reading a line.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// A line, which is in the buffer.
    Message,
    /// A line that is too long, with its id if the part that was read has one.
    TooLong(Option<Id>),
    /// The end of the input.
    End,
}

/// Reads the next line that is not blank into `line`, at most [`BODY_BYTES_MAX`] bytes of it.
pub(super) async fn read_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> Result<Line> {
    let limit = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    loop {
        line.clear();
        if (&mut *input).take(limit).read_until(b'\n', line).await? == 0 {
            return Ok(Line::End);
        }
        if line.len() > BODY_BYTES_MAX {
            let id = id_of_beginning(line);
            if line.last() != Some(&b'\n') {
                skip_line(input).await?;
            }
            line.clear();
            line.shrink_to(64 << 10);
            return Ok(Line::TooLong(id));
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Line::Message);
        }
    }
}

/// Skips the rest of a line.
async fn skip_line(input: &mut (impl AsyncBufRead + Unpin)) -> Result<()> {
    loop {
        let buffered = input.fill_buf().await?;
        if buffered.is_empty() {
            return Ok(());
        }
        let (read, ended) = match buffered.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffered.len(), false),
        };
        input.consume(read);
        if ended {
            return Ok(());
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
        let (mut input, mut line) = (&text[..], Vec::new());
        let id = Id::of(&serde_json::json!(7));
        assert_eq!(read_line(&mut input, &mut line).await.unwrap(), Line::TooLong(id));
        assert_eq!(read_line(&mut input, &mut line).await.unwrap(), Line::Message);
        assert_eq!(line, b"next\n");
        assert_eq!(read_line(&mut input, &mut line).await.unwrap(), Line::Message);
        assert_eq!(line, b"last");
        assert_eq!(read_line(&mut input, &mut line).await.unwrap(), Line::End);
    }
}
