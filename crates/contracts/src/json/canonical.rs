//! The canonical form of JSON, for digests.
//!
//! Doc: contract.md#json-safe

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

/// Returns the canonical form for digests: RFC 8785, except that integers are written digit for digit, and so are
/// decimals that no double prints. RFC 8785 would round both, and two different arguments would have the same hash.
/// Equal numbers have one form (`1.0` is `1`, and `-0` is `0`), but for integers of more than 21 digits.
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
        let shortest = ryu_js::Buffer::new().format(double).to_owned();
        match Decimal::of(literal) {
            Some(exact) if Decimal::of(&shortest).as_ref() != Some(&exact) => exact.to_string(),
            Some(_) => shortest,
            // Its exponent is beyond all numbers.
            None => literal.to_owned(),
        }
    } else if literal == "-0" {
        "0".to_owned()
    } else {
        literal.to_owned()
    }
}

/// The digits of a number without zeros at their ends, and the power of ten by which they are multiplied.
#[derive(PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(literal: &str) -> Option<Self> {
        let (is_negative, rest) = match literal.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, literal),
        };
        let (digits, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (ones, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let digits = format!("{ones}{fraction}");
        let significant = digits.trim_end_matches('0');
        let shift = digits.len().checked_sub(significant.len())?;
        let shift = i64::try_from(shift).ok()? - i64::try_from(fraction.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        Some(match significant.trim_start_matches('0') {
            "" => Self { is_negative: false, digits: "0".to_owned(), exponent: 0 },
            digits => Self { is_negative, digits: digits.to_owned(), exponent },
        })
    }
}

/// Zeros that a number is written with, at most, in place of an exponent.
const ZEROS_MAX: i64 = 21;

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_negative, digits, exponent } = self;
        f.write_str(if *is_negative { "-" } else { "" })?;
        match exponent {
            0..=ZEROS_MAX => {
                (0..*exponent).try_fold(f.write_str(digits)?, |(), _| f.write_char('0'))
            }
            _ => write!(f, "{digits}e{exponent}"),
        }
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

/// Returns the number of bytes before the first escape, quotation mark or forbidden control character.
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let ends = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    // Without an early exit from the inner loop, the compiler compares a whole block at once.
    let is_plain = |block: &&[u8]| !block.iter().fold(false, |any, byte| any | ends(*byte));
    let plain = bytes.chunks_exact(BLOCK).take_while(is_plain).count() * BLOCK;
    let rest = bytes.get(plain..).unwrap_or_default();
    plain + rest.iter().position(|byte| ends(*byte)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_numbers_have_one_form_and_others_have_others() {
        for same in [
            &["1", "1.0", "1e0", "10e-1", "0.1E+1"][..],
            &["0", "-0", "0.0", "-0e9", "0e-400"],
            &["0.1", "1e-1", "0.10"],
            &["9007199254740993", "9007199254740993.0", "9007199254740993e0"],
            &["0.1000000000000000055", "1000000000000000055e-19"],
            &["-1e-400", "-0.1e-399"],
            &["1e400", "10e399"],
            &["1.5e21", "15e20"],
        ] {
            let forms: Vec<String> = same.iter().map(|one| canonical_number(one)).collect();
            assert!(forms.iter().all(|form| *form == forms[0]), "{forms:?}");
        }
        for [one, other] in [
            ["9007199254740992.0", "9007199254740993.0"],
            ["0.1", "0.1000000000000000055"],
            ["0", "1e-400"],
            ["1e400", "1e401"],
            ["-0.30000000000000001", "0.30000000000000001"],
        ] {
            assert_ne!(canonical_number(one), canonical_number(other));
        }
        assert_eq!(canonical_number("1.50"), "1.5");
        assert_eq!(canonical_number("123456789012345678.9"), "1234567890123456789e-1");
        let beyond = format!("1e{}", "9".repeat(30));
        assert_eq!(canonical_number(&beyond), beyond);
    }

    proptest! {
        #[test]
        fn doubles_are_as_in_rfc_8785(bits in any::<u64>()) {
            let double = f64::from_bits(bits);
            prop_assume!(double.is_finite());
            let form = ryu_js::Buffer::new().format(double).to_owned();
            prop_assert_eq!(canonical_number(&format!("{double:e}")), form);
        }
    }
}
