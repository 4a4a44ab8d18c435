//! Reads JSON text member by member, with the checks of the gate, in one pass. A tree is built only
//! where the caller requests one.
//!
//! Doc: contract.md#json-safe

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Number, Value};

mod tokens;

use super::{DEPTH_MAX, JsonFault, JsonFaultKind, Observer, PRIVATE_PREFIX, RESERVED_KEY, Step};

/// Maximum number of keys of one object that are compared one by one; more keys use a set.
const KEYS_COMPARED: usize = 16;

/// A reader at a position in a JSON text, with properties of the text read so far.
#[derive(Debug)]
pub struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) bytes: &'t [u8],
    /// The shared source, if there is one; it is the same text as `text`.
    pub(super) source: Option<&'t Arc<String>>,
    pub(super) at: usize,
    /// The offset of the current member's key.
    key_at: usize,
    pub(super) path: Vec<BorrowedStep<'t>>,
    deepest: usize,
    pub(super) blanks: bool,
    pub(super) line_breaks: bool,
    /// Whether an object may contain a key twice; the last value is used.
    doubles: bool,
    /// Collected faults that leave the rest readable; `None` = the first fault ends the reading.
    pub(super) soft: Option<Vec<JsonFault>>,
}

/// The byte range, the nesting depth and the white space of one value that was read.
pub(super) struct Measured {
    pub(super) range: Range<usize>,
    pub(super) depth: usize,
    pub(super) blanks: bool,
}

/// As [`Step`], borrowed from the text.
#[derive(Debug, Clone)]
pub(super) enum BorrowedStep<'t> {
    Key(Cow<'t, str>),
    Index(usize),
}

/// The kind of the value that begins at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    Text,
    /// A number, `true`, `false` or `null`; or text that is not JSON.
    Other,
}

impl<'t> Reader<'t> {
    /// Creates a reader at the beginning of `text`; the first fault ends the reading.
    #[must_use]
    pub fn new(text: &'t str) -> Self {
        #[cfg(feature = "counting")]
        super::counting::count(super::counting::Reading::Pass(text.len()));
        Self {
            text,
            bytes: text.as_bytes(),
            source: None,
            at: 0,
            key_at: 0,
            path: Vec::new(),
            deepest: 0,
            blanks: false,
            line_breaks: false,
            doubles: false,
            soft: None,
        }
    }

    /// Creates a reader of a shared text: results of [`Reader::json`] share it.
    #[must_use]
    pub fn of_source(source: &'t Arc<String>) -> Self {
        Self { source: Some(source), ..Self::new(source) }
    }

    /// Returns the reader in tolerant mode, which continues after faults that leave the rest readable.
    /// These are duplicate keys, numbers out of range, lone surrogates and reserved keys.
    /// [`Reader::take_faults`] returns them.
    #[must_use]
    pub fn tolerant(self) -> Self {
        Self { soft: Some(Vec::new()), ..self }
    }

    /// Returns the reader in a mode in which an object may contain a key twice, as in most JSON readers.
    /// It is for the inspection of rejected documents.
    #[must_use]
    pub fn with_doubles(self) -> Self {
        Self { doubles: true, ..self }
    }

    /// Creates a reader of bytes.
    ///
    /// # Errors
    /// [`JsonFaultKind::NotUtf8`].
    pub fn of_bytes(bytes: &'t [u8]) -> Result<Self, JsonFault> {
        std::str::from_utf8(bytes).map(Self::new).map_err(|error| JsonFault {
            kind: JsonFaultKind::NotUtf8,
            path: Vec::new(),
            offset: error.valid_up_to(),
            message: "the bytes are not UTF-8".to_owned(),
        })
    }

    /// Removes and returns the faults collected so far.
    pub fn take_faults(&mut self) -> Vec<JsonFault> {
        self.soft.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the nesting depth of the text read so far.
    #[must_use]
    pub fn deepest(&self) -> usize {
        self.deepest
    }

    /// Whether the text read so far has white space between tokens.
    #[must_use]
    pub fn has_blanks(&self) -> bool {
        self.blanks
    }

    /// Whether the text read so far has line breaks between tokens.
    #[must_use]
    pub fn has_line_breaks(&self) -> bool {
        self.line_breaks
    }

    /// Returns the offset at which the reader continues.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Skips white space and returns the kind of the next value.
    pub fn kind(&mut self) -> Kind {
        self.pass_blanks();
        match self.peek() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::Text,
            _ => Kind::Other,
        }
    }

    /// Reads an object: `each` receives every key and must read its value.
    ///
    /// # Errors
    /// The first fault that leaves the rest unreadable, and every other one where the reader is not
    /// tolerant.
    pub fn members(
        &mut self,
        mut each: impl FnMut(&mut Self, &Cow<'t, str>) -> Result<(), JsonFault>,
    ) -> Result<(), JsonFault> {
        self.open(b'{', "expected an object")?;
        let mut keys = Keys::default();
        self.pass_blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.pass_blanks();
            if self.peek() != Some(b'"') {
                return Err(self.syntax("expected a key in double quotes"));
            }
            let key_at = self.at;
            let key = self.text()?;
            self.path.push(BorrowedStep::Key(key.clone()));
            if key.starts_with(PRIVATE_PREFIX) {
                let fault = self.fault(JsonFaultKind::ReservedKey, key_at, RESERVED_KEY);
                self.pass_or(fault)?;
            }
            if !self.doubles && !keys.insert(key.clone()) {
                let message =
                    format!("the key `{}` occurs twice in one object", key.escape_debug());
                let fault = self.fault(JsonFaultKind::DuplicateKey, key_at, message);
                self.pass_or(fault)?;
            }
            self.pass_blanks();
            if self.peek() != Some(b':') {
                return Err(self.syntax("expected `:` after a key"));
            }
            self.at += 1;
            self.pass_blanks();
            self.key_at = key_at;
            each(self, &key)?;
            self.path.pop();
            self.pass_blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.syntax("expected `,` or `}`")),
            }
        }
    }

    /// Reads an array: `each` must read every item.
    ///
    /// # Errors
    /// As [`Reader::members`].
    pub fn items(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), JsonFault>,
    ) -> Result<(), JsonFault> {
        self.open(b'[', "expected an array")?;
        self.pass_blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for index in 0.. {
            self.pass_blanks();
            self.path.push(BorrowedStep::Index(index));
            self.key_at = self.at;
            each(self)?;
            self.path.pop();
            self.pass_blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.syntax("expected `,` or `]`")),
            }
        }
        Ok(())
    }

    /// Reads a text.
    ///
    /// # Errors
    /// As [`Reader::members`].
    pub fn text(&mut self) -> Result<Cow<'t, str>, JsonFault> {
        let start = self.at + 1;
        self.pass_plain()?;
        let plain = self.text.get(start..self.at).unwrap_or_default();
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        let mut out = String::from(plain);
        self.rest_of_text(&mut Some(&mut out))?;
        Ok(Cow::Owned(out))
    }

    /// Skips a value of any kind and returns its byte range.
    ///
    /// # Errors
    /// As [`Reader::members`].
    pub fn skipped(&mut self) -> Result<Range<usize>, JsonFault> {
        self.pass_blanks();
        let start = self.at;
        self.skip()?;
        Ok(start..self.at)
    }

    /// Skips a value of any kind.
    ///
    /// # Errors
    /// As [`Reader::members`].
    pub fn skip(&mut self) -> Result<(), JsonFault> {
        self.pass_blanks();
        match self.peek() {
            Some(b'{') => self.members(|reader, _| reader.skip())?,
            Some(b'[') => self.items(|reader| reader.skip())?,
            Some(b'"') => {
                self.pass_plain()?;
                self.rest_of_text(&mut None)?;
            }
            Some(b'-' | b'0'..=b'9') => {
                self.number()?;
            }
            _ => {
                self.word()?;
            }
        }
        Ok(())
    }

    /// As [`Reader::skip`]; returns the byte range and the nesting depth of the value.
    pub(super) fn skip_measured(&mut self) -> Result<(Range<usize>, usize), JsonFault> {
        let ((), read) = self.measured(|reader| reader.skip())?;
        Ok((read.range, read.depth))
    }

    /// Reads one value by `read`, and returns the result of `read` and the [`Measured`] properties.
    pub(super) fn measured<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, JsonFault>,
    ) -> Result<(T, Measured), JsonFault> {
        self.pass_blanks();
        let before = (std::mem::take(&mut self.deepest), std::mem::take(&mut self.blanks));
        let start = self.at;
        let made = read(self)?;
        let depth = self.deepest.saturating_sub(self.path.len());
        let own = Measured { range: start..self.at, depth, blanks: self.blanks };
        self.deepest = self.deepest.max(before.0);
        self.blanks |= before.1;
        Ok((made, own))
    }

    /// Reads any value as a tree.
    ///
    /// # Errors
    /// As [`Reader::members`].
    pub fn tree(&mut self) -> Result<Value, JsonFault> {
        #[cfg(feature = "counting")]
        super::counting::count(super::counting::Reading::Tree(self.text.len()));
        self.watched_tree(&mut ())
    }

    /// As [`Reader::tree`]; reports the place of each member to `watch`.
    pub(super) fn watched_tree(&mut self, watch: &mut impl Watch) -> Result<Value, JsonFault> {
        self.pass_blanks();
        match self.peek() {
            Some(b'{') => {
                let mut members = Map::new();
                self.members(|reader, key| {
                    watch.enter(|| Step::Key(key.clone().into_owned()), reader.key_at, reader.at);
                    let value = reader.watched_tree(watch)?;
                    watch.leave();
                    members.insert(key.clone().into_owned(), value);
                    Ok(())
                })?;
                Ok(Value::Object(members))
            }
            Some(b'[') => {
                let mut items = Vec::new();
                self.items(|reader| {
                    watch.enter(|| Step::Index(items.len()), reader.at, reader.at);
                    items.push(reader.watched_tree(watch)?);
                    watch.leave();
                    Ok(())
                })?;
                Ok(Value::Array(items))
            }
            Some(b'"') => Ok(Value::String(self.text()?.into_owned())),
            Some(b'-' | b'0'..=b'9') => {
                let literal = self.number()?;
                let number = literal.map_or(Ok(Number::from(0)), str::parse);
                number.map(Value::Number).map_err(|_| self.syntax("not a number"))
            }
            _ => self.word(),
        }
    }

    /// Consumes the bracket that opens an object or an array.
    fn open(&mut self, bracket: u8, message: &str) -> Result<(), JsonFault> {
        self.pass_blanks();
        if self.peek() != Some(bracket) {
            return Err(self.syntax(message));
        }
        // The content is one level deeper than the path to it.
        let depth = self.path.len() + 1;
        if depth > DEPTH_MAX {
            let message = format!("nested deeper than {DEPTH_MAX} levels");
            return Err(self.fault(JsonFaultKind::TooDeep, self.at, message));
        }
        self.deepest = self.deepest.max(depth);
        self.at += 1;
        Ok(())
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// [`JsonFaultKind::Syntax`].
    pub fn end(&mut self) -> Result<(), JsonFault> {
        self.pass_blanks();
        match self.at < self.bytes.len() {
            true => Err(self.syntax("unexpected text after the end of the document")),
            false => Ok(()),
        }
    }
}

/// The keys of one object.
#[derive(Default)]
struct Keys<'t> {
    few: Vec<Cow<'t, str>>,
    many: HashSet<Cow<'t, str>>,
}

impl<'t> Keys<'t> {
    /// Inserts a key; returns `false` for a duplicate.
    fn insert(&mut self, key: Cow<'t, str>) -> bool {
        if self.many.is_empty() {
            if self.few.contains(&key) {
                return false;
            }
            if self.few.len() < KEYS_COMPARED {
                self.few.push(key);
                return true;
            }
            self.many = self.few.drain(..).collect();
        }
        self.many.insert(key)
    }
}

/// An observer of the places of members.
pub(super) trait Watch {
    fn enter(&mut self, step: impl FnOnce() -> Step, key_at: usize, value_at: usize);
    fn leave(&mut self);
}

impl Watch for () {
    fn enter(&mut self, _: impl FnOnce() -> Step, _: usize, _: usize) {}
    fn leave(&mut self) {}
}

/// A watch that reports each member with its whole path to an observer.
pub(super) struct Observed<'o, 'f> {
    pub(super) observer: &'o mut Observer<'f>,
    pub(super) path: Vec<Step>,
}

impl Watch for Observed<'_, '_> {
    fn enter(&mut self, step: impl FnOnce() -> Step, key_at: usize, value_at: usize) {
        self.path.push(step());
        (self.observer)(&self.path, key_at, value_at);
    }

    fn leave(&mut self) {
        self.path.pop();
    }
}
