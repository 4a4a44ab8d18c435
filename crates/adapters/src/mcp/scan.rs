//! Finds the request of a malformed response, in constant memory.
//!
//! Bytes that are not valid JSON may still contain the id of the request. The scan reads only the
//! structure and retains everything that it has found.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use toolbooth_mcp::lines::Overlong;

use super::message::{BATCH_MAX, Message};

/// Maximum digits of an id that the gateway assigned.
const DIGITS_MAX: usize = 20;
/// Stored bytes of a key, one more than the longest relevant key.
const KEY_BYTES_MAX: usize = 7;

/// The relevant members of a top-level object.
#[derive(Debug, Default, Clone, Copy)]
struct Found {
    id: Option<u64>,
    /// Whether it has a method and thus is not a response.
    method: bool,
    /// Whether its id was not assigned by the gateway.
    foreign: bool,
}

/// The state of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    batch: bool,
    noise: bool,
    in_string: bool,
    escaped: bool,
    expects_key: bool,
    in_key: bool,
    key: Vec<u8>,
    /// Digits of the id that is being read.
    digits: Option<String>,
    current: Option<Found>,
    found: Vec<Found>,
}

impl Overlong for Scan {
    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.noise {
                return;
            }
            self.step(*byte);
        }
    }
}

impl Scan {
    /// Returns the depth inside a top-level object.
    fn top(&self) -> usize {
        1 + usize::from(self.batch)
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    return;
                }
                _ => (),
            }
            if self.in_key && self.key.len() < KEY_BYTES_MAX {
                self.key.push(byte);
            }
            return;
        }
        let at_top = self.depth == self.top() && self.current.is_some();
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => self.end_id(),
            b'"' => {
                self.in_string = true;
                self.in_key = at_top && self.expects_key;
                if self.in_key {
                    self.key.clear();
                    self.expects_key = false;
                } else if self.digits.take().is_some() {
                    self.set_foreign();
                }
            }
            b':' if at_top && self.in_key => {
                self.in_key = false;
                match (self.key.as_slice(), &mut self.current) {
                    (b"id", Some(found)) if found.id.is_none() => {
                        self.digits = Some(String::new());
                    }
                    (b"method", Some(found)) => found.method = true,
                    _ => (),
                }
            }
            b'{' | b'[' => {
                if self.digits.take().is_some() {
                    self.set_foreign();
                }
                if self.depth == 0 && byte == b'[' {
                    self.batch = true;
                }
                self.depth += 1;
                if byte == b'{' && self.depth == self.top() {
                    self.current = Some(Found::default());
                    self.expects_key = true;
                    self.in_key = false;
                }
            }
            b'}' | b']' => {
                self.end_id();
                if at_top && byte == b'}' {
                    self.end_object();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => {
                self.end_id();
                if at_top {
                    self.expects_key = true;
                }
            }
            // Only a byte order mark can precede the first brace of a message.
            _ if self.depth == 0 && self.found.is_empty() => {
                self.noise = !matches!(byte, 0xef | 0xbb | 0xbf);
            }
            _ => {
                if let Some(digits) = &mut self.digits
                    && digits.len() <= DIGITS_MAX
                {
                    digits.push(char::from(byte));
                }
            }
        }
    }

    fn set_foreign(&mut self) {
        if let Some(found) = &mut self.current {
            found.foreign = true;
        }
    }

    fn end_id(&mut self) {
        let Some(digits) = self.digits.take_if(|digits| !digits.is_empty()) else { return };
        if let Some(found) = &mut self.current {
            found.id = digits.parse().ok();
            found.foreign = found.id.is_none() && digits != "null";
        }
    }

    fn end_object(&mut self) {
        if let Some(found) = self.current.take()
            && self.found.len() < BATCH_MAX
        {
            self.found.push(found);
        }
    }

    /// Returns the responses in the bytes, all of them unreadable for `reason`.
    pub(super) fn unreadable(mut self, reason: &str) -> Vec<Message> {
        self.end_id();
        self.end_object();
        if self.noise || self.found.is_empty() {
            return vec![Message::Noise];
        }
        let answers = self.found.iter().filter(|found| !found.method && !found.foreign);
        answers
            .map(|found| Message::Unreadable { id: found.id, reason: reason.to_owned() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &[u8]) -> Option<Vec<Option<u64>>> {
        // One byte at a time: the result must not depend on chunk boundaries.
        let mut scan = Scan::default();
        text.chunks(1).for_each(|piece| scan.feed(piece));
        let messages = scan.unreadable("r");
        let id = |message: &Message| match message {
            Message::Unreadable { id, .. } => Some(*id),
            _ => None,
        };
        messages.iter().map(id).collect()
    }

    #[test]
    fn ids_are_found_at_the_top_only() {
        let deep =
            format!(r#"{{"result":{}{{"id":9}}{},"id":4}}"#, "[".repeat(500), "]".repeat(500));
        for (text, expected) in [
            (&br#"{"id":1,"result":NaN}"#[..], vec![Some(1)]),
            (br#"{"result":{"id":7},"id" : 2 }"#, vec![Some(2)]),
            (b"{\"id\":3,\"result\":{\"t\":\"\xff\xfe\"}}", vec![Some(3)]),
            (br#"{"id":5,"result":{"text":"{\"id\":6}"#, vec![Some(5)]),
            (deep.as_bytes(), vec![Some(4)]),
            (br#"[{"id":1,"result":{}},{"id":2,"result":NaN}]"#, vec![Some(1), Some(2)]),
            (br#"{"result":NaN}"#, vec![None]),
            (br#"{"id":null,"error":NaN}"#, vec![None]),
            (br#"{"id":1,"id":2}"#, vec![Some(1)]),
            (br#"{"id":1,"method":"x","params":NaN}"#, vec![]),
            (br#"{"id":"abc","result":NaN}"#, vec![]),
            (br#"{"x":"id","y":8,"result":NaN}"#, vec![None]),
        ] {
            assert_eq!(ids(text), Some(expected), "{}", String::from_utf8_lossy(text));
        }
        for noise in [&b"ready {\"id\":1}"[..], b"[INFO] up", b"", b"]]"] {
            assert_eq!(ids(noise), None, "{}", String::from_utf8_lossy(noise));
        }
    }
}
