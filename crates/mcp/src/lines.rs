//! Reads lines of bounded length. A line over the bound is discarded up to its end, so that the lines
//! after it can still be read.
//!
//! Doc: front-doors.md#messages

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// A consumer of the bytes of a line that is too long.
pub trait Overlong: Default + Send {
    /// Receives the beginning of the line, within the bound.
    fn begin(&mut self, beginning: Vec<u8>) {
        self.feed(&beginning);
    }

    /// Receives the next bytes of the line.
    fn feed(&mut self, bytes: &[u8]);
}

/// A result of reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<S> {
    /// A line, without its end.
    Whole(Vec<u8>),
    /// A line over the bound.
    TooLong(Box<S>),
    /// The end of the input, with the bytes after its last line.
    End(Vec<u8>),
}

/// A reader of lines. Cancel-safe: bytes already read are retained.
#[derive(Debug)]
pub struct Lines<R, S> {
    reader: R,
    bytes_max: usize,
    buffer: Vec<u8>,
    over: Option<Box<S>>,
}

impl<R: AsyncBufRead + Unpin, S: Overlong> Lines<R, S> {
    /// Creates a reader of lines of at most `bytes_max` bytes.
    pub fn new(reader: R, bytes_max: usize) -> Self {
        Self { reader, bytes_max, buffer: Vec::new(), over: None }
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// Where the input fails.
    pub async fn next(&mut self) -> std::io::Result<Line<S>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(match self.over.take() {
                    Some(over) => Line::TooLong(over),
                    None => Line::End(std::mem::take(&mut self.buffer)),
                });
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            match &mut self.over {
                Some(over) => over.feed(part),
                None if self.buffer.len() + part.len() > self.bytes_max => {
                    let mut over = Box::<S>::default();
                    over.begin(std::mem::take(&mut self.buffer));
                    over.feed(part);
                    self.over = Some(over);
                }
                None => self.buffer.extend_from_slice(part),
            }
            let used = end.map_or(chunk.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                return Ok(match self.over.take() {
                    Some(over) => Line::TooLong(over),
                    None => Line::Whole(std::mem::take(&mut self.buffer)),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Count(usize);

    impl Overlong for Count {
        fn feed(&mut self, bytes: &[u8]) {
            self.0 += bytes.len();
        }
    }

    #[tokio::test]
    async fn a_line_over_the_bound_costs_itself_alone() {
        let text = format!("one\n{}\ntwo\r\n\nrest", "x".repeat(100));
        let mut lines = Lines::<_, Count>::new(text.as_bytes(), 16);
        let mut next = async || lines.next().await.unwrap();
        assert_eq!(next().await, Line::Whole(b"one".to_vec()));
        assert_eq!(next().await, Line::TooLong(Box::new(Count(100))));
        assert_eq!(next().await, Line::Whole(b"two\r".to_vec()));
        assert_eq!(next().await, Line::Whole(Vec::new()));
        assert_eq!(next().await, Line::End(b"rest".to_vec()));
        assert_eq!(next().await, Line::End(Vec::new()));
    }
}
