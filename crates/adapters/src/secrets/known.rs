//! Finds, in the results of tools, the secrets that the tools were given: literal, in base64,
//! percent-encoded, and behind JSON escapes.
//!
//! Doc: execution.md#known-secrets

mod base64;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD};
use memchr::memmem;
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use toolbooth_contracts::json::{JsonText, Rewrite};
use toolbooth_contracts::{ContentBlock, Outcome, Payload};

use super::escapes::Escapable;
use base64::{has_run, in_alphabet, in_base64};

/// Shorter values are not searched, because they occur in every text.
const BYTES_MIN: usize = 4;
/// Shortest line of base64 that is searched for a form that continues on the next line.
const LINE_MIN: usize = 16;
/// Members of definitions that contain identifiers and permitted values. If they were changed, they
/// would not match any more.
const IDENTIFIERS: [&str; 11] = [
    "name",
    "uri",
    "uriTemplate",
    "mimeType",
    "type",
    "enum",
    "const",
    "required",
    "$ref",
    "pattern",
    "format",
];
/// Shorter values are not searched in base64, because any text may contain some of its characters.
const ENCODED_BYTES_MIN: usize = 8;

/// The secrets given to a program or an endpoint.
#[derive(Clone, Default)]
pub struct KnownSecrets {
    needles: Vec<Needle>,
    /// Their names in the configuration.
    shown: Vec<String>,
    /// Length of the shortest form in base64.
    encoded_min: usize,
    escapable: Escapable,
}

/// A form of a secret.
#[derive(Clone)]
struct Needle {
    text: SecretString,
    /// The index of its secret.
    of: usize,
    /// Whether a base64 character before and after it may contain bits of the secret.
    partial: (bool, bool),
    is_encoded: bool,
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownSecrets").field(&self.shown.len()).finish()
    }
}

impl KnownSecrets {
    /// Creates the set from secrets, each with its replacement.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = (SecretString, String)>) -> Self {
        let mut known = Self { encoded_min: usize::MAX, ..Self::default() };
        for (secret, shown) in secrets {
            if secret.expose_secret().len() >= BYTES_MIN {
                known.add(&secret, shown);
            }
        }
        known
    }

    fn add(&mut self, secret: &SecretString, shown: String) {
        let of = self.shown.len();
        self.shown.push(shown);
        let value = secret.expose_secret();
        for part in parts(value) {
            self.escapable.add(self.needles.len(), &part, true);
            let text = SecretString::from(part.clone());
            self.needles.push(Needle { text, of, partial: (false, false), is_encoded: false });
            if part.len() < ENCODED_BYTES_MIN {
                continue;
            }
            let mut forms: Vec<(String, (bool, bool))> = Vec::new();
            for alphabet in [&BASE64_NOPAD, &BASE64URL_NOPAD] {
                for form in (0..3).map(|before| in_base64(&part, before, alphabet)) {
                    if !forms.contains(&form) {
                        forms.push(form);
                    }
                }
            }
            for (form, partial) in forms {
                self.encoded_min = self.encoded_min.min(form.len());
                self.escapable.add(self.needles.len(), &form, false);
                let text = SecretString::from(form);
                self.needles.push(Needle { text, of, partial, is_encoded: true });
            }
        }
    }

    /// Whether any of them may occur in a document as a number.
    #[must_use]
    pub fn has_numbers(&self) -> bool {
        let mut texts = self.needles.iter().map(|needle| needle.text.expose_secret());
        texts.any(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Finds the secrets in a text, in order and without overlaps, each with its name in the
    /// configuration.
    #[must_use]
    pub fn find_all(&self, text: &str) -> Vec<(Range<usize>, &str)> {
        let bytes = text.as_bytes();
        let mut found: Vec<(Range<usize>, usize)> = Vec::new();
        if self.needles.is_empty() {
            return Vec::new();
        }
        let encoded = has_run(bytes, self.encoded_min.min(LINE_MIN));
        for needle in self.needles.iter().filter(|needle| encoded || !needle.is_encoded) {
            let secret = needle.text.expose_secret().as_bytes();
            if secret.len() <= bytes.len() {
                let starts = memmem::find_iter(bytes, secret);
                found.extend(
                    starts.map(|at| (needle.whole(bytes, at..at + secret.len()), needle.of)),
                );
            }
        }
        if encoded {
            self.find_in_lines(bytes, &mut found);
        }
        let needle = |number: usize| self.needles.get(number);
        let wanted = |number| needle(number).map_or("", |needle| needle.text.expose_secret());
        let escaped = self.escapable.find_all(text, wanted).into_iter();
        found.extend(escaped.filter_map(|(range, number)| {
            let needle = needle(number)?;
            Some((needle.whole(bytes, range), needle.of))
        }));
        // Matches may contain each other or overlap. Everything that a match covers is replaced.
        found.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
        let mut merged: Vec<(Range<usize>, usize)> = Vec::new();
        for (range, of) in found {
            match merged.last_mut().filter(|(last, _)| range.start < last.end) {
                Some((last, _)) => last.end = last.end.max(range.end),
                None => merged.push((range, of)),
            }
        }
        let shown = |of: usize| self.shown.get(of).map_or("", String::as_str);
        merged.into_iter().map(|(range, of)| (range, shown(of))).collect()
    }

    /// Finds base64 forms that extend over several lines, as mail and command-line tools write them.
    fn find_in_lines(&self, text: &[u8], found: &mut Vec<(Range<usize>, usize)>) {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        if memchr::memchr(b'\n', text).is_none() {
            return;
        }
        let kept: Vec<usize> =
            text.iter().enumerate().filter(|(_, byte)| !is_end(byte)).map(|(at, _)| at).collect();
        let whole: Vec<u8> = text.iter().copied().filter(|byte| !is_end(byte)).collect();
        for needle in self.needles.iter().filter(|needle| needle.is_encoded) {
            let secret = needle.text.expose_secret().as_bytes();
            for at in memmem::find_iter(&whole, secret) {
                let own = needle.whole(&whole, at..at + secret.len());
                let ends =
                    (kept.get(own.start), own.end.checked_sub(1).and_then(|at| kept.get(at)));
                if let (Some(start), Some(last)) = ends {
                    found.push((*start..last + 1, needle.of));
                }
            }
        }
    }

    /// Returns `text` with the secrets replaced by their names in the configuration.
    #[must_use]
    pub fn conceal_text(&self, text: &str) -> String {
        self.concealed(text).unwrap_or_else(|| text.to_owned())
    }

    /// Replaces the secrets in every text of a document, including names of members, by their names
    /// in the configuration. Members keep their order. A name that another member already has gets a
    /// number. Numbers are not searched, and data encoded within a text is not decoded.
    pub fn conceal(&self, value: &mut Value) {
        if self.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(concealed) = self.concealed(text) {
                    *text = concealed;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.conceal(item)),
            Value::Object(members) => {
                members.values_mut().for_each(|member| self.conceal(member));
                if members.keys().any(|name| self.concealed(name).is_some()) {
                    *members = self.with_concealed_names(std::mem::take(members));
                }
            }
            _ => (),
        }
    }

    /// Replaces the secrets in the texts of a definition, except in identifiers.
    pub fn conceal_definition(&self, value: &mut Value) {
        match value {
            Value::Object(members) if !self.is_empty() => {
                // A property may also have such a name, but the value of an identifier is not an
                // object.
                let texts = members.iter_mut().filter(|(name, member)| {
                    member.is_object() || !IDENTIFIERS.contains(&name.as_str())
                });
                texts.for_each(|(_, member)| self.conceal_definition(member));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.conceal_definition(item)),
            other => self.conceal(other),
        }
    }

    /// Like [`KnownSecrets::conceal`], for a JSON text; `None` = it contains no secret. A tree is
    /// built only if the name of a member changes.
    #[must_use]
    pub fn concealed_json(&self, document: &JsonText) -> Option<JsonText> {
        struct Concealing<'s> {
            secrets: &'s KnownSecrets,
            in_a_name: bool,
        }
        impl Rewrite for Concealing<'_> {
            fn member(&mut self, name: &str) -> Option<String> {
                self.in_a_name |= self.secrets.concealed(name).is_some();
                None
            }
            fn text(&mut self, text: &str) -> Option<String> {
                self.secrets.concealed(text)
            }
        }
        if self.is_empty() {
            return None;
        }
        let mut rules = Concealing { secrets: self, in_a_name: false };
        let rewritten = document.rewritten(&mut rules);
        if !rules.in_a_name {
            return rewritten;
        }
        let mut tree = document.tree();
        self.conceal(&mut tree);
        // Parsed JSON can be written again. If that fails, nothing of it is shown.
        Some(JsonText::of(&tree).unwrap_or_else(|_| JsonText::of_text("")))
    }

    /// Like [`KnownSecrets::concealed_json`], for a payload.
    pub fn conceal_payload(&self, payload: &mut Payload) {
        for block in payload.content.iter_mut().flatten() {
            if let Some(concealed) = self.concealed_json(block.json()) {
                *block = ContentBlock::new(concealed);
            }
        }
        for document in [&mut payload.structured_content, &mut payload.meta].into_iter().flatten() {
            if let Some(concealed) = self.concealed_json(document) {
                *document = concealed;
            }
        }
    }

    /// Replaces the secrets in an outcome, in the texts for the agent and for the operator.
    pub fn conceal_outcome(&self, outcome: &mut Outcome) {
        match outcome {
            Outcome::Done(output) => {
                self.conceal_payload(&mut output.payload);
                output.internal = output.internal.take().map(|text| self.conceal_text(&text));
            }
            Outcome::Failed(error) => {
                error.safe = error.safe.take().map(|text| self.conceal_text(&text));
                error.internal = self.conceal_text(&error.internal);
            }
            Outcome::NeedsInput(needed) => self.conceal(&mut needed.requests),
        }
    }

    /// Returns the text with the secrets replaced; `None` = it contains none.
    fn concealed(&self, text: &str) -> Option<String> {
        let found = self.find_all(text);
        if found.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for (range, shown) in found {
            out.push_str(text.get(from..range.start).unwrap_or_default());
            out.push_str(shown);
            from = range.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        Some(out)
    }

    fn with_concealed_names(&self, members: Map<String, Value>) -> Map<String, Value> {
        let names: Vec<Option<String>> = members.keys().map(|name| self.concealed(name)).collect();
        let kept = members.keys().zip(&names).filter(|(_, concealed)| concealed.is_none());
        let mut taken: HashSet<String> = kept.map(|(name, _)| name.clone()).collect();
        // Counts the uses of each name, so that a server cannot prolong the search for a free one.
        let mut given: HashMap<String, u64> = HashMap::new();
        let renamed = members.into_iter().zip(names).map(|((name, value), concealed)| {
            let Some(concealed) = concealed else { return (name, value) };
            let count = given.entry(concealed.clone()).or_default();
            let mut free = concealed.clone();
            loop {
                *count += 1;
                if *count > 1 {
                    free = format!("{concealed}#{count}");
                }
                if taken.insert(free.clone()) {
                    return (free, value);
                }
            }
        });
        renamed.collect()
    }
}

impl Needle {
    /// Returns the range of a form, with the adjacent base64 characters that contain a part of the
    /// secret.
    fn whole(&self, text: &[u8], range: Range<usize>) -> Range<usize> {
        let is_base64 = |at: usize| text.get(at).is_some_and(|byte| in_alphabet(*byte));
        let (before, after) = self.partial;
        let start = match range.start.checked_sub(1) {
            Some(start) if before && is_base64(start) => start,
            _ => range.start,
        };
        let end = range.end + usize::from(after && is_base64(range.end));
        start..end
    }
}

/// Returns a secret and the parts of it that are secrets by themselves: the password of a URL, the
/// value after a scheme.
fn parts(secret: &str) -> Vec<String> {
    let mut parts = vec![secret.to_owned()];
    if let Some((scheme, value)) = secret.split_once(' ')
        && ["bearer", "basic", "token"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    {
        parts.push(value.to_owned());
    }
    let authority = secret.split_once("://").map(|(_, rest)| rest);
    let authority = authority.and_then(|rest| rest.split(['/', '?', '#']).next());
    let password = authority.and_then(|authority| authority.rsplit_once('@'));
    if let Some((_, password)) = password.and_then(|(user, _)| user.split_once(':')) {
        parts.push(password.to_owned());
        parts.push(percent_decode_str(password).decode_utf8().unwrap_or_default().into_owned());
    }
    parts.retain(|part| part.len() >= BYTES_MIN);
    parts.dedup();
    parts
}

#[cfg(test)]
mod tests;
