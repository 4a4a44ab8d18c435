//! Rejects heads that an intermediary may read differently. Such a head has a line that ends with LF alone
//! (RFC 9112, 2.2), or an ambiguous body length (RFC 9112, 6.3).
//!
//! Path: 1. Doc: front-doors.md#who-may-call

/// Bytes of a line that are examined: enough for the names that frame a message.
const LINE_BYTES: usize = 64;
/// A byte that the parser rejects anywhere in a head.
const REFUSED: u8 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A head, or the bytes before one.
    Head,
    /// The number of remaining bytes of a body.
    Body(u64),
    /// A body with an unknown end. No head after it is read.
    Lost,
    /// A head that the parser answers with an error before it closes the connection.
    Refused,
}

/// Follows the heads that a client sends over one connection.
#[derive(Debug)]
pub(super) struct LineEnds {
    state: State,
    /// The beginning of the line.
    line: Vec<u8>,
    /// Whether the last byte was CR.
    after_return: bool,
    /// Whether a line of the head has arrived.
    has_line: bool,
    /// Whether a line has stated the length of the body.
    is_framed: bool,
    length: u64,
    is_chunked: bool,
}

impl Default for LineEnds {
    fn default() -> Self {
        Self {
            state: State::Head,
            line: Vec::new(),
            after_return: false,
            has_line: false,
            is_framed: false,
            length: 0,
            is_chunked: false,
        }
    }
}

impl LineEnds {
    /// Examines received bytes. Replaces a bare LF in a head, and the LF of a line that makes the length of the body
    /// ambiguous, by a byte that the parser rejects.
    pub(super) fn check(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.state {
                State::Lost | State::Refused => return,
                State::Body(left) => {
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    rest = rest.get_mut(taken..).unwrap_or_default();
                    match left.saturating_sub(taken as u64) {
                        0 => *self = Self::default(),
                        left => self.state = State::Body(left),
                    }
                }
                State::Head => {
                    let Some((byte, after)) = rest.split_first_mut() else { return };
                    self.head(byte);
                    rest = after;
                }
            }
        }
    }

    /// Whether received bytes are no longer followed. The connection must then end with this
    /// request.
    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    fn head(&mut self, byte: &mut u8) {
        let after_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
        if *byte != b'\n' {
            if self.line.len() < LINE_BYTES {
                self.line.push(*byte);
            }
            return;
        }
        if !after_return {
            *byte = REFUSED;
            self.state = State::Refused;
            return;
        }
        let line = std::mem::take(&mut self.line);
        if line != b"\r" {
            self.has_line = true;
            if !self.framing(&line) {
                *byte = REFUSED;
                self.state = State::Refused;
            }
        } else if self.has_line {
            self.state = match (self.is_chunked, self.length) {
                (true, _) => State::Lost,
                (false, 0) => State::Head,
                (false, length) => State::Body(length),
            };
            (self.has_line, self.is_framed) = (false, false);
            (self.length, self.is_chunked) = (0, false);
        }
    }

    /// Reads the framing of the body from a header line; `false` if it is ambiguous.
    fn framing(&mut self, line: &[u8]) -> bool {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { return true };
        let (name, value) = line.split_at(at);
        let is_coding = name.eq_ignore_ascii_case(b"transfer-encoding");
        if !is_coding && !name.eq_ignore_ascii_case(b"content-length") {
            return true;
        }
        // The value of a longer line is unknown, because only the beginning of the line is stored.
        let value = value.get(1..).filter(|_| line.len() < LINE_BYTES);
        let value = value.and_then(|value| std::str::from_utf8(value).ok()).map(str::trim);
        let is_first = !std::mem::replace(&mut self.is_framed, true);
        if is_coding {
            self.is_chunked = true;
            return is_first && value.is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        }
        match value.and_then(|value| value.parse().ok()) {
            Some(length) => self.length = length,
            // The parser rejects this value, or reads it in an unknown way.
            None => self.is_chunked = true,
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes after the check, when they arrive in pieces of this size.
    fn given(text: &str, size: usize) -> String {
        let mut lines = LineEnds::default();
        let mut bytes = text.as_bytes().to_vec();
        bytes.chunks_mut(size).for_each(|piece| lines.check(piece));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_bare_line_end_of_a_head_is_refused_and_one_of_a_body_is_not() {
        let fine = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\na\nb\nc";
        let bare = [
            "GET / HTTP/1.1\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n\n",
            "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\nContent-Length: 9\r\n\r\n",
        ];
        for size in [1, 3, 1_000] {
            assert_eq!(given(fine, size), fine);
            for text in bare {
                assert_eq!(given(text, size).matches('\0').count(), 1, "{text:?}");
                // The head follows other requests, whether or not these were answered.
                let later = given(&format!("{fine}GET / HTTP/1.1\r\nHost: h\r\n\r\n{text}"), size);
                assert_eq!(later.matches('\0').count(), 1, "{text:?}");
            }
        }
    }

    #[test]
    fn a_body_with_two_lengths_is_refused() {
        let (five, ten) = ("Content-Length: 5\r\n", "content-length: 10\r\n");
        let chunked = "Transfer-Encoding: chunked\r\n";
        for two in [[five, five], [five, ten], [five, chunked], [chunked, five], [chunked, chunked]]
        {
            let text = format!("POST / HTTP/1.1\r\n{}Host: h\r\n\r\n", two.concat());
            assert_eq!(given(&text, 3).matches('\0').count(), 1, "{text:?}");
        }
        for coding in ["gzip", "gzip, chunked", "chunked, chunked", "identity", ""] {
            let text = format!("POST / HTTP/1.1\r\nTransfer-Encoding: {coding}\r\n\r\n");
            assert_eq!(given(&text, 3).matches('\0').count(), 1, "{text:?}");
        }
        // Each request has a length of its own.
        let one = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde";
        assert_eq!(given(&one.repeat(2), 3), one.repeat(2));
    }

    #[test]
    fn behind_a_body_whose_end_is_not_known_nothing_is_followed() {
        let blank = " ".repeat(LINE_BYTES);
        let cut = format!("Content-Length:{}1234", " ".repeat(LINE_BYTES - 17));
        for head in ["Transfer-Encoding: chunked", &format!("Content-Length: {blank}5"), &cut] {
            let mut lines = LineEnds::default();
            let mut bytes = format!("POST / HTTP/1.1\r\n{head}\r\n\r\n").into_bytes();
            lines.check(&mut bytes);
            assert!(lines.is_lost() && !bytes.contains(&0), "{head}");
        }
        let mut lines = LineEnds::default();
        lines.check(&mut b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde".to_vec());
        assert!(!lines.is_lost());
    }
}
