//! The gate for JSON from outside: strict parsing with places, and the canonical form for digests.
//!
//! It is a parser of its own because none of the well-kept ones reports duplicate keys, numbers
//! beyond an IEEE double and lone surrogates with their place, and because a JSON object that
//! spells `serde_json`'s private number key must not turn into a number on the way in.
//!
//! Path: 4. Doc: contract.md#json-safe

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde_json::{Map, Number, Value};

/// Nesting deeper than this is refused.
pub const DEPTH_MAX: usize = 128;

/// Keys that `serde_json` uses internally; a document that spells them is refused, because it
/// would be read as another value than it is.
const PRIVATE_PREFIX: &str = "$serde_json::private::";

/// One step of the way from the root of a document to a place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A member of an object.
    Key(String),
    /// An element of an array, from 0.
    Index(usize),
}

/// What is wrong with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonFaultKind {
    /// Not JSON by RFC 8259.
    Syntax,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// An object names a key twice.
    DuplicateKey,
    /// A number that an IEEE double cannot hold, such as `1e400`.
    NumberTooLarge,
    /// Half of a surrogate pair.
    LoneSurrogate,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// A key that is reserved by the JSON library.
    ReservedKey,
}

/// Where and why a document was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonFault {
    /// What is wrong.
    pub kind: JsonFaultKind,
    /// The way to the place, from the root.
    pub path: Vec<Step>,
    /// Byte offset of the place.
    pub offset: usize,
    /// A sentence for people; it holds no value of the document, only key names.
    pub message: String,
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.message, self.offset)
    }
}

impl std::error::Error for JsonFault {}

impl JsonFault {
    /// The place as an RFC 6901 JSON Pointer.
    #[must_use]
    pub fn pointer(&self) -> String {
        pointer(&self.path)
    }

    /// The place as a dotted path, `root` for the document itself.
    #[must_use]
    pub fn dotted(&self) -> String {
        dotted(&self.path)
    }
}

/// An RFC 6901 JSON Pointer for `path`.
#[must_use]
pub fn pointer(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => {
                out.push('/');
                out.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Step::Index(index) => {
                let _ = write!(out, "/{index}");
            }
        }
    }
    out
}

/// A dotted path such as `capabilities.locales[1]`; the empty path is `root`.
#[must_use]
pub fn dotted(path: &[Step]) -> String {
    if path.is_empty() {
        return "root".to_owned();
    }
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            Step::Index(index) => {
                let _ = write!(out, "[{index}]");
            }
        }
    }
    out
}

/// Line and column of a byte offset, both from 1; the column counts characters.
#[must_use]
pub fn line_column(text: &[u8], offset: usize) -> (usize, usize) {
    let before = text.get(..offset.min(text.len())).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let tail = before.get(start..).unwrap_or_default();
    (line, String::from_utf8_lossy(tail).chars().count() + 1)
}

/// Parses a whole document through the gate.
///
/// # Errors
/// The first [`JsonFault`] in reading order.
pub fn parse(text: &[u8]) -> Result<Value, JsonFault> {
    parse_observed(text, &mut |_, _, _| ())
}

/// Called for each member and element: the way to it, the offset of its key (or of its value in
/// an array), and the offset of its value.
pub type Observer<'o> = dyn FnMut(&[Step], usize, usize) + 'o;

/// As [`parse`], and tells `observer` where members stand.
///
/// # Errors
/// As [`parse`].
pub fn parse_observed(text: &[u8], observer: &mut Observer<'_>) -> Result<Value, JsonFault> {
    parse_with(text, observer, None)
}

/// As [`parse_observed`], but goes on after faults that leave the rest readable (duplicate keys,
/// numbers out of range, lone surrogates, reserved keys), and gives all of them. The value is for
/// looking at, not for use, when there are any.
///
/// # Errors
/// The first fault that leaves the rest unreadable, with those before it.
pub fn parse_all_faults(
    text: &[u8],
    observer: &mut Observer<'_>,
) -> Result<(Value, Vec<JsonFault>), Vec<JsonFault>> {
    let mut soft = Vec::new();
    match parse_with(text, observer, Some(&mut soft)) {
        Ok(value) => Ok((value, soft)),
        Err(fault) => {
            soft.push(fault);
            Err(soft)
        }
    }
}

fn parse_with(
    text: &[u8],
    observer: &mut Observer<'_>,
    soft: Option<&mut Vec<JsonFault>>,
) -> Result<Value, JsonFault> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            return Err(JsonFault {
                kind: JsonFaultKind::NotUtf8,
                path: Vec::new(),
                offset: error.valid_up_to(),
                message: "the bytes are not UTF-8".to_owned(),
            });
        }
    };
    let mut parser =
        Parser { text, bytes: text.as_bytes(), at: 0, path: Vec::new(), observer, soft };
    parser.blanks();
    let value = parser.value(1)?;
    parser.blanks();
    if parser.at < parser.bytes.len() {
        return Err(parser.syntax("unexpected text after the end of the document"));
    }
    Ok(value)
}

/// Levels that a record may wrap around a payload, so that it can still be read back.
pub const WRAPPED_DEPTH_MAX: usize = DEPTH_MAX - 16;

/// Whether a value is nested no deeper than `most` levels; a text or a number is none.
#[must_use]
pub fn is_within(value: &Value, most: usize) -> bool {
    let nested = |item: &Value| most > 0 && is_within(item, most - 1);
    match value {
        Value::Array(items) => most > 0 && items.iter().all(nested),
        Value::Object(members) => most > 0 && members.values().all(nested),
        _ => true,
    }
}

/// Checks an already parsed value: number range, depth and reserved keys.
///
/// # Errors
/// The first fault in reading order; its offset is 0.
pub fn check_value(value: &Value) -> Result<(), JsonFault> {
    fn fault(kind: JsonFaultKind, path: &[Step], message: &str) -> JsonFault {
        JsonFault { kind, path: path.to_vec(), offset: 0, message: message.to_owned() }
    }
    fn walk(value: &Value, path: &mut Vec<Step>, depth: usize) -> Result<(), JsonFault> {
        match value {
            Value::Number(number) if overflows(&number.to_string()) => {
                Err(fault(JsonFaultKind::NumberTooLarge, path, NUMBER_TOO_LARGE))
            }
            Value::Array(_) | Value::Object(_) if depth > DEPTH_MAX => {
                Err(fault(JsonFaultKind::TooDeep, path, "nested deeper than 128 levels"))
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    walk(item, path, depth + 1)?;
                    path.pop();
                }
                Ok(())
            }
            Value::Object(members) => {
                for (key, member) in members {
                    path.push(Step::Key(key.clone()));
                    if key.starts_with(PRIVATE_PREFIX) {
                        return Err(fault(JsonFaultKind::ReservedKey, path, RESERVED_KEY));
                    }
                    walk(member, path, depth + 1)?;
                    path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
    walk(value, &mut Vec::new(), 1)
}

const NUMBER_TOO_LARGE: &str = "a number beyond the range of an IEEE double";
const RESERVED_KEY: &str = "a key that is reserved by the JSON library";

fn overflows(literal: &str) -> bool {
    let long = literal.len() > 300;
    let exponent = literal.bytes().any(|byte| matches!(byte, b'e' | b'E'));
    (long || exponent) && literal.parse::<f64>().map_or(true, f64::is_infinite)
}

struct Parser<'t, 'o, 'f> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    path: Vec<Step>,
    observer: &'o mut Observer<'f>,
    /// Where faults go that leave the rest readable; `None` = the first one ends the reading.
    soft: Option<&'o mut Vec<JsonFault>>,
}

impl Parser<'_, '_, '_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fault(&self, kind: JsonFaultKind, offset: usize, message: impl Into<String>) -> JsonFault {
        JsonFault { kind, path: self.path.clone(), offset, message: message.into() }
    }

    fn pass_or(&mut self, fault: JsonFault) -> Result<(), JsonFault> {
        match &mut self.soft {
            Some(soft) => {
                soft.push(fault);
                Ok(())
            }
            None => Err(fault),
        }
    }

    fn syntax(&self, message: &str) -> JsonFault {
        let message = match self.peek() {
            None => format!("{message}, found the end"),
            Some(_) => {
                let found = self.text.get(self.at..).and_then(|rest| rest.chars().next());
                format!("{message}, found `{}`", found.unwrap_or('\u{fffd}').escape_debug())
            }
        };
        self.fault(JsonFaultKind::Syntax, self.at, message)
    }

    fn value(&mut self, depth: usize) -> Result<Value, JsonFault> {
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(self.syntax("expected a JSON value")),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, JsonFault> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.syntax("expected a JSON value"))
        }
    }

    fn deeper(&self, depth: usize) -> Result<(), JsonFault> {
        if depth > DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels");
            return Err(self.fault(JsonFaultKind::TooDeep, self.at, message));
        }
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonFault> {
        self.deeper(depth)?;
        self.at += 1;
        let mut members = Map::new();
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.syntax("expected a key in double quotes"));
            }
            let key_at = self.at;
            let key = self.string()?;
            self.path.push(Step::Key(key.clone()));
            if key.starts_with(PRIVATE_PREFIX) {
                let fault = self.fault(JsonFaultKind::ReservedKey, key_at, RESERVED_KEY);
                self.pass_or(fault)?;
            }
            if members.contains_key(&key) {
                let message =
                    format!("the key `{}` stands twice in one object", key.escape_debug());
                let fault = self.fault(JsonFaultKind::DuplicateKey, key_at, message);
                self.pass_or(fault)?;
            }
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.syntax("expected `:` after a key"));
            }
            self.at += 1;
            self.blanks();
            (self.observer)(&self.path, key_at, self.at);
            let value = self.value(depth + 1)?;
            self.path.pop();
            members.insert(key, value);
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(members));
                }
                _ => return Err(self.syntax("expected `,` or `}`")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonFault> {
        self.deeper(depth)?;
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.blanks();
            self.path.push(Step::Index(items.len()));
            (self.observer)(&self.path, self.at, self.at);
            let value = self.value(depth + 1)?;
            self.path.pop();
            items.push(value);
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.syntax("expected `,` or `]`")),
            }
        }
    }

    fn number(&mut self) -> Result<Value, JsonFault> {
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
            return Ok(Value::from(0));
        }
        literal
            .parse::<Number>()
            .map(Value::Number)
            .map_err(|_| self.fault(JsonFaultKind::Syntax, start, "not a number"))
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

    fn string(&mut self) -> Result<String, JsonFault> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|byte| byte != b'"' && byte != b'\\' && byte >= 0x20) {
                self.at += 1;
            }
            out.push_str(self.text.get(start..self.at).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => self.escape(&mut out)?,
                _ => return Err(self.syntax("expected the end of a string")),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), JsonFault> {
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
                let first = self.hex4()?;
                let low_follows = self.bytes.get(self.at..self.at + 2) == Some(b"\\u");
                let code = match first {
                    0xd800..=0xdbff if low_follows => {
                        self.at += 2;
                        match self.hex4()? {
                            low @ 0xdc00..=0xdfff => {
                                0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)
                            }
                            _ => first,
                        }
                    }
                    code => code,
                };
                let character = match char::from_u32(code) {
                    Some(character) => character,
                    None => {
                        let kind = JsonFaultKind::LoneSurrogate;
                        let fault = self.fault(kind, start, "a lone surrogate");
                        self.pass_or(fault)?;
                        char::REPLACEMENT_CHARACTER
                    }
                };
                out.push(character);
                return Ok(());
            }
            _ => return Err(self.syntax("expected an escape sequence")),
        };
        out.push(plain);
        self.at += 1;
        Ok(())
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

/// The byte offset at which the member or element at `path` stands: of its key where it has one
/// and `key` is asked for, else of its value. `None` where the document has no such place.
#[must_use]
pub fn locate(text: &[u8], path: &[Step], key: bool) -> Option<usize> {
    let mut found = None;
    // The first fault ends the scan; what stood before it has been seen.
    let _ = parse_observed(text, &mut |at, key_at, value_at| {
        if at == path {
            found = Some(if key { key_at } else { value_at });
        }
    });
    found
}

/// The canonical form for digests: RFC 8785, except that integers are written digit for digit,
/// because RFC 8785 would round those beyond 2⁵³ and two different arguments would hash alike.
/// Literals with `.` or `e` are doubles (`1.0` equals `1`), and `-0` is `0`.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&canonical_number(&number.to_string())),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => write_members(members, out),
    }
}

fn write_members(members: &serde_json::Map<String, Value>, out: &mut String) {
    let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push('{');
    for (index, (key, member)) in sorted.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write_canonical(member, out);
    }
    out.push('}');
}

fn canonical_number(literal: &str) -> String {
    if literal.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        let double: f64 = literal.parse().unwrap_or(f64::NAN);
        // `-0.0` prints as `0` in ECMAScript, and so here.
        ryu_js::Buffer::new().format(double).to_owned()
    } else if literal == "-0" {
        "0".to_owned()
    } else {
        literal.to_owned()
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    // Most texts have nothing to escape: what lies between is copied in one piece.
    while let Some(at) = rest.bytes().position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\')) {
        let (plain, escaped) = rest.split_at(at);
        out.push_str(plain);
        match escaped.as_bytes().first() {
            Some(b'"') => out.push_str("\\\""),
            Some(b'\\') => out.push_str("\\\\"),
            Some(0x08) => out.push_str("\\b"),
            Some(0x0c) => out.push_str("\\f"),
            Some(b'\n') => out.push_str("\\n"),
            Some(b'\r') => out.push_str("\\r"),
            Some(b'\t') => out.push_str("\\t"),
            Some(control) => {
                let _ = write!(out, "\\u{control:04x}");
            }
            None => (),
        }
        // What is escaped is ASCII, of one byte.
        rest = escaped.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
    out.push('"');
}

/// Writes an object in canonical form (RFC 8785) whose members come in the order of their names.
pub(crate) struct CanonicalObject {
    out: String,
}

impl CanonicalObject {
    pub(crate) fn new() -> Self {
        Self { out: String::with_capacity(1024) }
    }

    fn name(&mut self, name: &str) {
        self.out.push(if self.out.is_empty() { '{' } else { ',' });
        write_string(name, &mut self.out);
        self.out.push(':');
    }

    pub(crate) fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.name(name);
            write_string(text, &mut self.out);
        }
    }

    pub(crate) fn number(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.name(name);
            let _ = write!(self.out, "{number}");
        }
    }

    /// A flag, which is left out where it is not set.
    pub(crate) fn flag(&mut self, name: &str, is: bool) {
        if is {
            self.name(name);
            self.out.push_str("true");
        }
    }

    pub(crate) fn double(&mut self, name: &str, double: Option<f64>) {
        if let Some(double) = double {
            self.name(name);
            // JSON has no other doubles.
            match double.is_finite() {
                true => self.out.push_str(ryu_js::Buffer::new().format_finite(double)),
                false => self.out.push_str("null"),
            }
        }
    }

    pub(crate) fn members(&mut self, name: &str, members: Option<&serde_json::Map<String, Value>>) {
        if let Some(members) = members {
            self.name(name);
            write_members(members, &mut self.out);
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

/// Object keys that scripting languages read as something else than data.
const HAZARDOUS_KEYS: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// The places of keys that scripting languages read as something else than data.
#[must_use]
pub fn hazardous_keys(value: &Value) -> Vec<Vec<Step>> {
    fn walk(value: &Value, path: &mut Vec<Step>, out: &mut Vec<Vec<Step>>) {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    walk(item, path, out);
                    path.pop();
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    path.push(Step::Key(key.clone()));
                    if HAZARDOUS_KEYS.contains(&key.as_str()) {
                        out.push(path.clone());
                    }
                    walk(member, path, out);
                    path.pop();
                }
            }
            _ => (),
        }
    }
    let mut out = Vec::new();
    walk(value, &mut Vec::new(), &mut out);
    out
}

/// The distinct keys of an array of strings, in order; used where a list must not repeat itself.
pub(crate) fn first_duplicate<'v>(items: impl Iterator<Item = &'v str>) -> Option<&'v str> {
    let mut seen = HashSet::new();
    items.into_iter().find(|item| !seen.insert(*item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_integers_keep_every_digit() {
        let text =
            br#"{"a":9007199254740993,"b":18446744073709551615,"c":12345678901234567890123}"#;
        let value = parse(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap().as_bytes(), text);
        assert_eq!(canonical(&value).as_bytes(), text);
    }

    #[test]
    fn faults_name_kind_and_place() {
        let cases: [(&[u8], JsonFaultKind, &str); 9] = [
            (br#"{"a":[1e400]}"#, JsonFaultKind::NumberTooLarge, "/a/0"),
            (br#"{"a":{"b":1,"b":2}}"#, JsonFaultKind::DuplicateKey, "/a/b"),
            (br#"{"a":1,"\u0061":2}"#, JsonFaultKind::DuplicateKey, "/a"),
            (br#"["\ud800"]"#, JsonFaultKind::LoneSurrogate, "/0"),
            (br#"["\udc00\ud800"]"#, JsonFaultKind::LoneSurrogate, "/0"),
            (
                br#"{"\u0024serde_json::private::Number":"1"}"#,
                JsonFaultKind::ReservedKey,
                "/$serde_json::private::Number",
            ),
            (b"[1,]", JsonFaultKind::Syntax, "/1"),
            (b"01", JsonFaultKind::Syntax, ""),
            (b"\"\xff\"", JsonFaultKind::NotUtf8, ""),
        ];
        for (text, kind, pointer) in cases {
            let fault = parse(text).unwrap_err();
            assert_eq!((fault.kind, fault.pointer().as_str()), (kind, pointer), "{fault}");
        }
    }

    #[test]
    fn nesting_of_128_passes_and_129_does_not() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let three = parse(nested(3).as_bytes()).unwrap();
        assert!(is_within(&three, 3) && !is_within(&three, 2) && is_within(&Value::Null, 0));
        assert!(parse(nested(128).as_bytes()).is_ok());
        assert_eq!(parse(nested(129).as_bytes()).unwrap_err().kind, JsonFaultKind::TooDeep);
        assert_eq!(parse(nested(100_000).as_bytes()).unwrap_err().kind, JsonFaultKind::TooDeep);
    }

    #[test]
    fn canonical_form_follows_rfc_8785_with_exact_integers() {
        let value = parse("{\"\u{20ac}\":1.0,\"\\r\":-0,\"a\":[1e21,1E-7,-0.0,333333333.33333329,4.50],\"\u{1f600}\":\"\\u000f\\n\"}".as_bytes()).unwrap();
        assert_eq!(
            canonical(&value),
            "{\"\\r\":0,\"a\":[1e+21,1e-7,0,333333333.3333333,4.5],\"\u{20ac}\":1,\"\u{1f600}\":\"\\u000f\\n\"}"
        );
    }

    #[test]
    fn places_are_found_again() {
        let text = b"{\n  \"tools\": [ {\"a\": 1},\n    {\"b\": 2} ]\n}";
        let path = [Step::Key("tools".into()), Step::Index(1), Step::Key("b".into())];
        assert_eq!(line_column(text, locate(text, &path, true).unwrap()), (3, 6));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn agrees_with_serde_json_on_what_is_json(text in r#"[\[\]{}",:0-9eE.\- a\\u]{0,24}"#) {
            if let Ok(value) = parse(text.as_bytes()) {
                let theirs: Value = serde_json::from_str(&text).unwrap();
                proptest::prop_assert_eq!(theirs, value);
            }
        }
    }
}
