//! Reads an event stream (WHATWG server-sent events), each event within a limit.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::error::Error;

use futures_util::{Stream, StreamExt};
use toolbooth_contracts::causes::with_causes;

/// Longest id of an event, in bytes; it is sent back to the server in a header.
const ID_BYTES_MAX: usize = 1 << 10;

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) data: Vec<u8>,
    pub(super) id: Option<String>,
    /// Milliseconds to wait before the stream is opened again.
    pub(super) retry: Option<u64>,
}

/// The reason why a stream ended early.
#[derive(Debug)]
pub(super) enum Broken {
    /// An event is over the limit.
    TooLarge,
    /// The connection broke.
    Lost(String),
}

/// Returns the data of a chunk that is one whole message and nothing else, in the form that most servers send: an
/// optional `event: message` and one line of data. Most answers are such a chunk, so that no line is copied.
fn only_message(chunk: &[u8]) -> Option<&[u8]> {
    let line = chunk.strip_prefix(b"event: message\n").unwrap_or(chunk);
    let data = line.strip_prefix(b"data: ")?.strip_suffix(b"\n\n")?;
    (!data.is_empty() && memchr::memchr2(b'\n', b'\r', data).is_none()).then_some(data)
}

/// The events of a stream. Cancel-safe.
#[derive(Debug)]
pub(super) struct Events<S> {
    chunks: S,
    bytes_max: usize,
    buffer: Vec<u8>,
    /// The offset of the next line in the buffer. The bytes before it are removed when the next
    /// chunk arrives.
    start: usize,
    /// The end of the bytes of the buffer that are known to contain no further line end.
    scanned: usize,
    begun: bool,
    after_cr: bool,
    event: Event,
    other: bool,
}

impl<S, B, E> Events<S>
where
    S: Stream<Item = Result<B, E>> + Unpin,
    B: AsRef<[u8]>,
    E: Error + 'static,
{
    pub(super) fn new(chunks: S, bytes_max: usize) -> Self {
        Self {
            chunks,
            bytes_max,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            begun: false,
            after_cr: false,
            event: Event::default(),
            other: false,
        }
    }

    /// Returns the next event; `None` = the stream has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Broken> {
        loop {
            while let Some(line) = self.line() {
                if let Some(event) = self.take(&line) {
                    return Ok(Some(event));
                }
                if self.event.data.len() > self.bytes_max {
                    return Err(Broken::TooLarge);
                }
            }
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            if self.buffer.len() > self.bytes_max {
                return Err(Broken::TooLarge);
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) => {
                    let chunk = chunk.as_ref();
                    if self.is_between_events()
                        && let Some(data) = only_message(chunk)
                    {
                        // The end of the line counts, as it does in pieces.
                        if data.len() >= self.bytes_max {
                            return Err(Broken::TooLarge);
                        }
                        self.begun = true;
                        return Ok(Some(Event { data: data.to_vec(), ..Event::default() }));
                    }
                    self.buffer.extend_from_slice(chunk);
                }
                Some(Err(error)) => return Err(Broken::Lost(with_causes(&error))),
                None => return Ok(None),
            }
        }
    }

    /// Returns the remaining chunks.
    pub(super) fn into_rest(self) -> S {
        self.chunks
    }

    /// Whether nothing of the next event was read.
    fn is_between_events(&self) -> bool {
        self.buffer.is_empty() && !self.after_cr && !self.other && self.event == Event::default()
    }

    /// Returns the next whole line.
    fn line(&mut self) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.after_cr) {
            match self.buffer.get(self.start) {
                Some(b'\n') => {
                    self.start += 1;
                    self.scanned = self.start;
                }
                Some(_) => (),
                None => {
                    self.after_cr = true;
                    return None;
                }
            }
        }
        let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(end) = memchr::memchr2(b'\n', b'\r', unseen) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let end = self.scanned + end;
        self.after_cr = self.buffer.get(end) == Some(&b'\r');
        let mut line = self.buffer.get(self.start..end).unwrap_or_default().to_vec();
        self.start = end + 1;
        self.scanned = self.start;
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        Some(line)
    }

    /// Processes a line and returns the event that it completes.
    fn take(&mut self, line: &[u8]) -> Option<Event> {
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            if event.data.last() == Some(&b'\n') {
                event.data.pop();
            }
            if std::mem::take(&mut self.other) {
                // An event of another type is not a message, but its id counts.
                event.data.clear();
            }
            return (event != Event::default()).then_some(event);
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (line.get(..at)?, line.get(at + 1..)?),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                self.event.data.extend_from_slice(value);
                self.event.data.push(b'\n');
            }
            b"event" => self.other = !matches!(value, b"" | b"message"),
            b"id" if !value.contains(&0) && value.len() <= ID_BYTES_MAX => {
                self.event.id = std::str::from_utf8(value).ok().map(str::to_owned);
            }
            b"retry" => {
                self.event.retry =
                    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            }
            _ => (),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn all(text: &str, piece: usize) -> Vec<(String, Option<String>)> {
        let chunks: Vec<_> = text
            .as_bytes()
            .chunks(piece)
            .map(|part| Ok::<_, std::io::Error>(part.to_vec()))
            .collect();
        let mut events = Events::new(stream::iter(chunks), 64);
        let mut out = Vec::new();
        while let Ok(Some(event)) = events.next().await {
            out.push((String::from_utf8(event.data).unwrap(), event.id));
        }
        out
    }

    #[tokio::test]
    async fn events_are_read_however_they_are_cut() {
        let text = "\u{feff}data: a\r\ndata:b\r\n\r\n: ping\n\nid: 7\ndata: c\n\nevent: other\ndata: d\n\nevent: message\rdata: e\r\r\nid\ndata: cut off";
        let expected = [("a\nb", None), ("c", Some("7")), ("e", None)]
            .map(|(data, id)| (data.to_owned(), id.map(str::to_owned)));
        for piece in [1, 2, 3, 7, 1_000] {
            assert_eq!(all(text, piece).await, expected, "{piece}");
        }
    }

    #[tokio::test]
    async fn a_chunk_that_is_one_message_is_read_as_its_pieces_are() {
        let whole =
            ["data: a b\n\n", "event: message\ndata:  c\n\n", "data: \n\n", "data: d\n\n\n"];
        let others =
            ["data: e\r\r", "event: other\ndata: f\n\n", "data: g\ndata: h\n\n", "id: 1\n"];
        let others = others.into_iter().chain([
            "\u{feff}data: i\n\n",
            "data: j\rdata: k\n\n",
            "data: l",
            "\n\n",
        ]);
        // Each may follow each, as a chunk of its own.
        let texts: Vec<&str> = whole.into_iter().chain(others).collect();
        for first in &texts {
            for second in &texts {
                let chunks = [*first, second, "data: end\n\n"]
                    .map(|part| Ok::<_, std::io::Error>(part.to_owned()));
                let mut events = Events::new(stream::iter(chunks), 64);
                let mut out = Vec::new();
                while let Ok(Some(event)) = events.next().await {
                    out.push((String::from_utf8(event.data).unwrap(), event.id));
                }
                let joined = format!("{first}{second}data: end\n\n");
                assert_eq!(out, all(&joined, 1).await, "{first:?}, {second:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_chunk_of_very_many_lines_is_read_in_one_pass() {
        // Moving the rest of the chunk for each line would take hours.
        let chunk = "\n".repeat(8 << 20) + "data: a\n\n";
        assert_eq!(all(&chunk, chunk.len()).await, [("a".to_owned(), None)]);
    }

    #[tokio::test]
    async fn an_event_over_the_limit_breaks_the_stream() {
        let long = format!("data: {}\n\n", "x".repeat(100));
        let many = "data: 0123456789\n".repeat(10);
        for text in [long, many] {
            let chunks = vec![Ok::<_, std::io::Error>(text.into_bytes())];
            let mut events = Events::new(stream::iter(chunks), 64);
            assert!(matches!(events.next().await, Err(Broken::TooLarge)));
        }
        // A message that comes alone has the limit of one after a comment.
        for (length, fits) in [(63, true), (64, false)] {
            for before in ["", ": a comment\n"] {
                let text = format!("{before}data: {}\n\n", "x".repeat(length));
                let chunks = vec![Ok::<_, std::io::Error>(text.into_bytes())];
                let event = Events::new(stream::iter(chunks), 64).next().await;
                assert_eq!(event.is_ok(), fits, "{length} after {before:?}");
            }
        }
    }
}
