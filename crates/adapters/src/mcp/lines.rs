//! Lines of a child's standard output, each within a limit.
//!
//! What is over the limit is discarded up to the end of its line, so that neighbours are heard.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use super::scan::Scan;

/// What was read.
#[derive(Debug)]
pub(super) enum Line {
    /// A line, without its end.
    Whole(Vec<u8>),
    /// A line over the limit, of which only the structure is known.
    TooLong(Box<Scan>),
    /// The output is over; what stood after its last line.
    End(Vec<u8>),
}

/// Reads lines. Cancel-safe: what was read stays.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    bytes_max: usize,
    buffer: Vec<u8>,
    over: Option<Box<Scan>>,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, bytes_max: usize) -> Self {
        Self { reader, bytes_max, buffer: Vec::new(), over: None }
    }

    /// The next line.
    pub(super) async fn next(&mut self) -> Line {
        loop {
            let Ok(chunk) = self.reader.fill_buf().await else {
                return Line::End(Vec::new());
            };
            if chunk.is_empty() {
                return match self.over.take() {
                    Some(scan) => Line::TooLong(scan),
                    None => Line::End(std::mem::take(&mut self.buffer)),
                };
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            match &mut self.over {
                Some(scan) => scan.feed(part),
                None if self.buffer.len() + part.len() > self.bytes_max => {
                    let mut scan = Box::<Scan>::default();
                    scan.feed(&std::mem::take(&mut self.buffer));
                    scan.feed(part);
                    self.over = Some(scan);
                }
                None => self.buffer.extend_from_slice(part),
            }
            let used = end.map_or(chunk.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                return match self.over.take() {
                    Some(scan) => Line::TooLong(scan),
                    None => Line::Whole(std::mem::take(&mut self.buffer)),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;

    #[tokio::test]
    async fn a_line_over_the_limit_costs_itself_alone() {
        let long = format!("{{\"result\":\"{}\",\"id\":7}}", "x".repeat(100));
        let text = format!("one\n{long}\ntwo\r\nrest");
        let mut lines = Lines::new(text.as_bytes(), 16);
        assert!(matches!(lines.next().await, Line::Whole(line) if line == b"one"));
        let Line::TooLong(scan) = lines.next().await else { panic!("it is too long") };
        let found = scan.unreadable("r");
        assert!(matches!(found.as_slice(), [Message::Unreadable { id: Some(7), .. }]), "{found:?}");
        assert!(matches!(lines.next().await, Line::Whole(line) if line == b"two\r"));
        assert!(matches!(lines.next().await, Line::End(rest) if rest == b"rest"));
    }
}
