//! The canonical form of JSON, for digests.
//!
//! Doc: contract.md#json-safe

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

use super::tokens::plain_length;

/// Returns the canonical form for digests: RFC 8785, except that integers are written digit for digit.
/// RFC 8785 would round integers beyond 2⁵³, and two different arguments would have the same hash.
/// Literals with `.` or `e` are doubles (`1.0` equals `1`), and `-0` is `0`.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    // Writing to a `String` does not fail.
    let _ = write_canonical(value, &mut out);
    out
}

/// Writes the form of [`canonical`] piece by piece, for a hash that does not need the whole text.
///
/// # Errors
/// Those of `out`.
pub fn write_canonical(value: &Value, out: &mut impl fmt::Write) -> fmt::Result {
    match value {
        Value::Null => out.write_str("null"),
        Value::Bool(true) => out.write_str("true"),
        Value::Bool(false) => out.write_str("false"),
        Value::Number(number) => out.write_str(&canonical_number(&number.to_string())),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.write_char('[')?;
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                write_canonical(item, out)?;
            }
            out.write_char(']')
        }
        Value::Object(members) => write_members(members, out),
    }
}

fn write_members(members: &Map<String, Value>, out: &mut impl fmt::Write) -> fmt::Result {
    out.write_char('{')?;
    let mut first = true;
    let mut member = |(key, value): (&String, &Value), out: &mut _| {
        if !std::mem::take(&mut first) {
            fmt::Write::write_char(out, ',')?;
        }
        write_text(key, out)?;
        fmt::Write::write_char(out, ':')?;
        write_canonical(value, out)
    };
    if members.keys().is_sorted_by(|a, b| a.encode_utf16().le(b.encode_utf16())) {
        members.iter().try_for_each(|one| member(one, out))?;
    } else {
        let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        sorted.into_iter().try_for_each(|one| member(one, out))?;
    }
    out.write_char('}')
}

fn canonical_number(literal: &str) -> String {
    if literal.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        let double: f64 = literal.parse().unwrap_or(f64::NAN);
        // ECMAScript prints `-0.0` as `0`, and so does this form.
        ryu_js::Buffer::new().format(double).to_owned()
    } else if literal == "-0" {
        "0".to_owned()
    } else {
        literal.to_owned()
    }
}

/// Writes a text in double quotes, with the escapes of RFC 8785.
///
/// # Errors
/// Those of `out`.
pub fn write_text(text: &str, out: &mut impl fmt::Write) -> fmt::Result {
    out.write_char('"')?;
    let mut rest = text;
    // Most texts have nothing to escape, so the text between escapes is copied in one piece.
    loop {
        let (plain, escaped) = rest.split_at(plain_length(rest.as_bytes()));
        out.write_str(plain)?;
        match escaped.as_bytes().first() {
            None => break,
            Some(b'"') => out.write_str("\\\"")?,
            Some(b'\\') => out.write_str("\\\\")?,
            Some(0x08) => out.write_str("\\b")?,
            Some(0x0c) => out.write_str("\\f")?,
            Some(b'\n') => out.write_str("\\n")?,
            Some(b'\r') => out.write_str("\\r")?,
            Some(b'\t') => out.write_str("\\t")?,
            Some(control) => write!(out, "\\u{control:04x}")?,
        }
        // Every escaped character is ASCII, of one byte.
        rest = escaped.get(1..).unwrap_or_default();
    }
    out.write_char('"')
}

/// A writer of an object in canonical form (RFC 8785). The caller adds the members in the order of their
/// names.
pub(crate) struct CanonicalObject {
    out: String,
}

impl CanonicalObject {
    pub(crate) fn new() -> Self {
        Self { out: String::with_capacity(1024) }
    }

    /// Writes a name, which must not contain a character that JSON escapes.
    fn name(&mut self, name: &str) {
        self.out.push_str(if self.out.is_empty() { "{\"" } else { ",\"" });
        self.out.push_str(name);
        self.out.push_str("\":");
    }

    pub(crate) fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.name(name);
            let _ = write_text(text, &mut self.out);
        }
    }

    pub(crate) fn number(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.name(name);
            let _ = write!(self.out, "{number}");
        }
    }

    /// Writes a flag; an unset flag is omitted.
    pub(crate) fn flag(&mut self, name: &str, is: bool) {
        if is {
            self.name(name);
            self.out.push_str("true");
        }
    }

    pub(crate) fn double(&mut self, name: &str, double: Option<f64>) {
        if let Some(double) = double {
            self.name(name);
            // JSON cannot represent an infinity or NaN.
            match double.is_finite() {
                true => self.out.push_str(ryu_js::Buffer::new().format_finite(double)),
                false => self.out.push_str("null"),
            }
        }
    }

    pub(crate) fn members(&mut self, name: &str, members: Option<&Map<String, Value>>) {
        if let Some(members) = members {
            self.name(name);
            let _ = write_members(members, &mut self.out);
        }
    }

    pub(crate) fn object(&mut self, name: &str, object: Option<Self>) {
        if let Some(object) = object {
            self.name(name);
            self.out.push_str(&object.end());
        }
    }

    pub(crate) fn end(mut self) -> String {
        self.out.push_str(if self.out.is_empty() { "{}" } else { "}" });
        self.out
    }
}
