//! Recognises secrets, by the name of their field and by the shape of their value.
//!
//! Only neutral shapes are built in; a larger rule set is supplied as data. No message contains a value.
//!
//! Doc: contract.md#no-secrets

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::secret_location::SecretRef;

const SECRET_WORDS: [&str; 21] = [
    "apikey",
    "secret",
    "clientsecret",
    "secretkey",
    "accesskey",
    "signingkey",
    "token",
    "accesstoken",
    "refreshtoken",
    "idtoken",
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "privatekey",
    "authorization",
    "credential",
    "credentials",
    "bearer",
    "cookie",
    "connectionstring",
];

/// Length of the longest secret word.
const WORD_BYTES_MAX: usize = 16;

/// Whether a field's name indicates that its value is a secret: `dbPassword` does, `maxInputTokens` and
/// `tokenizer` do not.
#[must_use]
pub fn names_a_secret(key: &str) -> bool {
    // Most names do not end with a secret word, so their check ends here.
    if key.is_ascii() && !SECRET_WORDS.iter().any(|word| ends_with_folded(key, word)) {
        return false;
    }
    let folded: String = key
        .chars()
        .filter(|c| !matches!(c, ' ' | '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect();
    // A secret word counts only at the end of a name, so the check of most names ends here.
    if !SECRET_WORDS.iter().any(|word| folded.ends_with(word)) {
        return false;
    }
    if SECRET_WORDS.contains(&folded.as_str()) {
        return true;
    }
    // Secret words can consist of several words, such as `clientSecret`.
    let mut tail = String::new();
    for word in words(key).iter().skip(1).rev() {
        tail.insert_str(0, word);
        if SECRET_WORDS.contains(&tail.as_str()) {
            return true;
        }
        if tail.len() > WORD_BYTES_MAX {
            break;
        }
    }
    false
}

/// Whether an ASCII name ends with a word, regardless of its letter case and separators.
fn ends_with_folded(key: &str, word: &str) -> bool {
    let mut letters = key.bytes().rev().filter(|byte| !matches!(byte, b' ' | b'-' | b'_'));
    word.bytes()
        .rev()
        .all(|letter| letters.next().is_some_and(|own| own.eq_ignore_ascii_case(&letter)))
}

/// Returns the words of a name in camelCase, `snake_case`, kebab-case or with spaces, in lower case.
fn words(key: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous_lower = false;
    let characters: Vec<char> = key.chars().collect();
    for (index, character) in characters.iter().enumerate() {
        if matches!(character, ' ' | '-' | '_' | '.') {
            previous_lower = false;
            words.push(String::new());
            continue;
        }
        let next_lower = characters.get(index + 1).is_some_and(|next| next.is_lowercase());
        let previous_upper =
            index > 0 && characters.get(index - 1).is_some_and(|previous| previous.is_uppercase());
        let starts = character.is_uppercase() && (previous_lower || (previous_upper && next_lower));
        if starts || words.is_empty() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(character.to_lowercase());
        }
        previous_lower = character.is_lowercase() || character.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A secret in a text, with its range and the name of its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSecret<'s> {
    /// The byte range.
    pub range: std::ops::Range<usize>,
    /// The name of the shape, such as `a PEM private key`.
    pub name: &'s str,
}

/// A rule that recognises secrets by their shape.
pub trait SecretShape: Send + Sync {
    /// Returns every secret in `text`, in any order; ranges begin and end between characters. The run
    /// time must be proportional to the length of the text.
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>>;
}

/// The shapes by which values are judged.
#[derive(Clone)]
pub struct SecretShapes(Arc<[Arc<dyn SecretShape>]>);

impl fmt::Debug for SecretShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretShapes({} rules)", self.0.len())
    }
}

impl Default for SecretShapes {
    fn default() -> Self {
        Self::builtin()
    }
}

impl SecretShapes {
    /// Returns the neutral shapes: PEM private keys, JWTs, URLs with user-info, literal authorization
    /// values.
    #[must_use]
    pub fn builtin() -> Self {
        Self(Arc::from([
            Arc::new(Builtin::Pem) as Arc<dyn SecretShape>,
            Arc::new(Builtin::Jwt),
            Arc::new(Builtin::UserInfo),
            Arc::new(Builtin::Authorization),
        ]))
    }

    /// Returns the built-in shapes and `more`.
    #[must_use]
    pub fn with(more: impl IntoIterator<Item = Arc<dyn SecretShape>>) -> Self {
        let all: Vec<_> = Self::builtin().0.iter().cloned().chain(more).collect();
        Self(all.into())
    }

    /// Returns the name of the first shape that recognises a secret in `text`, if one does.
    #[must_use]
    pub fn recognise(&self, text: &str) -> Option<&str> {
        if text.len() < SECRET_BYTES_MIN {
            return None;
        }
        self.0.iter().find_map(|shape| shape.find_all(text).first().map(|found| found.name))
    }

    /// Returns `text` with every secret replaced by `[redacted]`; unchanged if it contains none.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut out = Cow::Borrowed(text);
        if text.len() < SECRET_BYTES_MIN {
            return out;
        }
        for shape in self.0.iter() {
            let mut ranges: Vec<_> =
                shape.find_all(&out).into_iter().map(|found| found.range).collect();
            ranges.sort_by_key(|range| (range.start, range.end));
            let mut clean = String::new();
            let mut from = 0;
            for range in ranges {
                // Overlapping secrets count as one.
                if range.end <= from {
                    continue;
                }
                if range.start >= from {
                    clean.push_str(out.get(from..range.start).unwrap_or_default());
                    clean.push_str(REDACTED);
                }
                from = range.end;
            }
            if from > 0 {
                clean.push_str(out.get(from..).unwrap_or_default());
                out = Cow::Owned(clean);
            }
        }
        out
    }
}

/// Minimum length of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 6;

/// The replacement of a secret.
pub const REDACTED: &str = "[redacted]";

enum Builtin {
    Pem,
    Jwt,
    UserInfo,
    Authorization,
}

impl Builtin {
    fn name(&self) -> &'static str {
        match self {
            Self::Pem => "a PEM private key",
            Self::Jwt => "a JSON Web Token",
            Self::UserInfo => "a URL with user-info",
            Self::Authorization => "an authorization value",
        }
    }

    fn find(&self, text: &str) -> Option<std::ops::Range<usize>> {
        match self {
            Self::Pem => find_pem(text),
            Self::Jwt => find_jwt(text),
            Self::UserInfo => find_user_info(text),
            Self::Authorization => find_authorization(text),
        }
    }
}

impl SecretShape for Builtin {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        let mut all = Vec::new();
        let mut from = 0;
        while let Some(found) = text.get(from..).and_then(|rest| self.find(rest)) {
            let range = from + found.start..from + found.end.max(found.start + 1);
            from = range.end;
            all.push(FoundSecret { range, name: self.name() });
        }
        all
    }
}

/// Returns the offset at which a part of a text begins.
fn find(text: &str, part: &str) -> Option<usize> {
    memchr::memmem::find(text.as_bytes(), part.as_bytes())
}

fn find_pem(text: &str) -> Option<std::ops::Range<usize>> {
    let mut from = 0;
    while let Some(at) = find(text.get(from..)?, "-----BEGIN ") {
        let start = from + at;
        let rest = text.get(start..)?;
        let label_end = rest.get(11..)?.find("-----").map(|at| at + 11);
        if let Some(label_end) = label_end
            && rest.get(11..label_end)?.ends_with("PRIVATE KEY")
        {
            let after = label_end + 5;
            let end = rest
                .get(after..)?
                .find("PRIVATE KEY-----")
                .map_or(rest.len(), |at| after + at + "PRIVATE KEY-----".len());
            return Some(start..start + end);
        }
        from = start + 11;
    }
    None
}

fn base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn find_jwt(text: &str) -> Option<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let run = |from: usize| {
        bytes.get(from..).unwrap_or_default().iter().take_while(|byte| base64url(**byte)).count()
    };
    let mut from = 0;
    // `eyJ` is `{"` in base64url: every JWS header and payload begins with it.
    while let Some(at) = find(text.get(from..)?, "eyJ") {
        let start = from + at;
        let header = run(start);
        let payload_at = start + header + 1;
        if header >= 10
            && bytes.get(start + header) == Some(&b'.')
            && text.get(payload_at..).is_some_and(|rest| rest.starts_with("eyJ"))
        {
            let payload = run(payload_at);
            let signature_at = payload_at + payload + 1;
            if bytes.get(payload_at + payload) == Some(&b'.') {
                return Some(start..signature_at + run(signature_at));
            }
        }
        // A match that begins later in the same run ends at the same place.
        from = start + header.max(3);
    }
    None
}

fn find_user_info(text: &str) -> Option<std::ops::Range<usize>> {
    let mut from = 0;
    while let Some(at) = find(text.get(from..)?, "://") {
        let start = from + at + 3;
        let rest = text.get(start..)?;
        let end = rest
            .find(|c: char| {
                matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>') || c.is_whitespace()
            })
            .unwrap_or(rest.len());
        let authority = rest.get(..end)?;
        // A placeholder such as `${USER}` is not a secret.
        if let Some(at) = authority.rfind('@')
            && at > 0
            && authority.get(..at)?.contains(':')
            && !authority.starts_with("${")
            && authority.get(..at)? != REDACTED
        {
            return Some(start..start + at);
        }
        from = start;
    }
    None
}

fn find_authorization(text: &str) -> Option<std::ops::Range<usize>> {
    let mut from = 0;
    // `Bearer` and `Basic` are found in one pass, with an upper-case or lower-case first letter.
    while let Some(at) = memchr::memchr2(b'B', b'b', text.get(from..)?.as_bytes()) {
        let start = from + at;
        from = start + 1;
        let rest = text.get(start + 1..)?;
        let length =
            ["earer ", "asic "].iter().find(|tail| rest.starts_with(*tail)).map(|t| t.len());
        if let Some(length) = length {
            let value_at = start + 1 + length;
            let bounded = start == 0
                || text.as_bytes().get(start - 1).is_some_and(|byte| !byte.is_ascii_alphanumeric());
            let rest = text.get(value_at..)?;
            let length = rest
                .bytes()
                .take_while(|byte| {
                    base64url(*byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
                })
                .count();
            // The word after "Bearer" in prose is short or has no digit.
            let value = rest.get(..length)?;
            if bounded && length >= 16 && value.bytes().any(|byte| byte.is_ascii_digit()) {
                return Some(value_at..value_at + length);
            }
        }
    }
    None
}

/// Whether `value` is an object that refers to a secret.
pub(crate) fn is_reference(value: &Value) -> bool {
    serde_json::from_value::<SecretRef>(value.clone()).is_ok()
}

#[cfg(test)]
mod tests;
