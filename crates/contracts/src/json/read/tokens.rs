//! Reads the tokens of JSON: texts with their escapes, numbers, words, white space. It also creates the
//! fault for a place with an unexpected token.
//!
//! Doc: contract.md#json-safe

use serde_json::Value;

use super::{BorrowedStep, Reader};
use crate::json::canonical::plain_length;
use crate::json::{FAULTS_MAX, JsonFault, JsonFaultKind, NUMBER_TOO_LARGE, Step, overflows};

impl<'t> Reader<'t> {
    pub(in crate::json) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(in crate::json) fn pass_blanks(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\n' | b'\r')) = self.peek() {
            self.blanks = true;
            self.line_breaks |= matches!(byte, b'\n' | b'\r');
            self.at += 1;
        }
    }

    pub(in crate::json) fn fault(
        &self,
        kind: JsonFaultKind,
        offset: usize,
        message: impl Into<String>,
    ) -> JsonFault {
        let step = |step_read: &BorrowedStep<'t>| match step_read {
            BorrowedStep::Key(key) => Step::Key(key.clone().into_owned()),
            BorrowedStep::Index(index) => Step::Index(*index),
        };
        let path = self.path.iter().map(step).collect();
        JsonFault { kind, path, offset, message: message.into() }
    }

    pub(in crate::json) fn pass_or(&mut self, fault: JsonFault) -> Result<(), JsonFault> {
        match &mut self.soft {
            Some(soft) if soft.len() < FAULTS_MAX => {
                soft.push(fault);
                Ok(())
            }
            _ => Err(fault),
        }
    }

    pub(in crate::json) fn syntax(&self, message: &str) -> JsonFault {
        let message = match self.peek() {
            None => format!("{message}, found the end"),
            Some(_) => {
                let found = self.text.get(self.at..).and_then(|rest| rest.chars().next());
                format!("{message}, found `{}`", found.unwrap_or('\u{fffd}').escape_debug())
            }
        };
        self.fault(JsonFaultKind::Syntax, self.at, message)
    }

    pub(in crate::json) fn word(&mut self) -> Result<Value, JsonFault> {
        let words =
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)];
        let rest = self.text.get(self.at..).unwrap_or_default();
        let found = words.into_iter().find(|(word, _)| rest.starts_with(word));
        let (word, value) = found.ok_or_else(|| self.syntax("expected a JSON value"))?;
        self.at += word.len();
        Ok(value)
    }

    /// Reads the literal of a number; `None` for a number out of range.
    pub(in crate::json) fn number(&mut self) -> Result<Option<&'t str>, JsonFault> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.syntax("expected a digit")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        let literal = self.text.get(start..self.at).unwrap_or_default();
        if overflows(literal) {
            let fault = self.fault(JsonFaultKind::NumberTooLarge, start, NUMBER_TOO_LARGE);
            self.pass_or(fault)?;
            return Ok(None);
        }
        Ok(Some(literal))
    }

    fn some_digits(&mut self) -> Result<(), JsonFault> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.syntax("expected a digit"));
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    /// Consumes the opening quotation mark of a text, and the text up to its first escape or its end.
    pub(in crate::json) fn pass_plain(&mut self) -> Result<(), JsonFault> {
        if self.peek() != Some(b'"') {
            return Err(self.syntax("expected a text in double quotes"));
        }
        self.at += 1;
        self.at += plain_length(self.bytes.get(self.at..).unwrap_or_default());
        Ok(())
    }

    /// Reads the rest of a text after its plain beginning, and appends it to `out`.
    pub(in crate::json) fn rest_of_text(
        &mut self,
        out: &mut Option<&mut String>,
    ) -> Result<(), JsonFault> {
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let character = self.escape()?;
                    if let Some(out) = out {
                        out.push(character);
                    }
                }
                _ => return Err(self.syntax("expected the end of a string")),
            }
            let start = self.at;
            self.at += plain_length(self.bytes.get(start..).unwrap_or_default());
            if let Some(out) = out {
                out.push_str(self.text.get(start..self.at).unwrap_or_default());
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonFault> {
        let start = self.at;
        self.at += 1;
        let plain = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.code_point(start);
            }
            _ => return Err(self.syntax("expected an escape sequence")),
        };
        self.at += 1;
        Ok(plain)
    }

    /// Reads the character of one `\u` escape, or of two escapes that are a surrogate pair.
    fn code_point(&mut self, start: usize) -> Result<char, JsonFault> {
        let first = self.hex4()?;
        let low_follows = self.bytes.get(self.at..self.at + 2) == Some(b"\\u");
        let code = match first {
            0xd800..=0xdbff if low_follows => {
                self.at += 2;
                match self.hex4()? {
                    low @ 0xdc00..=0xdfff => 0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00),
                    _ => first,
                }
            }
            code => code,
        };
        match char::from_u32(code) {
            Some(character) => Ok(character),
            None => {
                let fault = self.fault(JsonFaultKind::LoneSurrogate, start, "a lone surrogate");
                self.pass_or(fault)?;
                Ok(char::REPLACEMENT_CHARACTER)
            }
        }
    }

    fn hex4(&mut self) -> Result<u32, JsonFault> {
        let digits = self.bytes.get(self.at..self.at + 4).unwrap_or_default();
        if digits.len() != 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.syntax("expected four hexadecimal digits"));
        }
        let text = std::str::from_utf8(digits).unwrap_or("0");
        self.at += 4;
        Ok(u32::from_str_radix(text, 16).unwrap_or(0))
    }
}
