//! Names with a rule: tool ids, call ids and the dotted patterns that select tools.
//!
//! Doc: contract.md#fields

use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::InvalidName;

/// Maximum length of a tool id, in characters.
pub const TOOL_ID_MAX: usize = 128;
/// Maximum length of a call id, in characters.
pub const CALL_ID_MAX: usize = 128;

/// A stable tool id, usually `domain.method`: 1 to 128 characters of `A-Z a-z 0-9 _ - . /`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct ToolId(
    #[cfg_attr(feature = "schemars", schemars(regex(pattern = r"^[A-Za-z0-9_./-]{1,128}$")))]
    String,
);

impl ToolId {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for ToolId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ToolId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        if text.trim().is_empty() {
            return Err(InvalidName("a tool id must not be blank".to_owned()));
        }
        if text.chars().count() > TOOL_ID_MAX {
            return Err(InvalidName(format!("a tool id has at most {TOOL_ID_MAX} characters")));
        }
        let odd = text
            .chars()
            .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')));
        match odd {
            Some(odd) => Err(InvalidName(format!(
                "a tool id has only the characters A-Z a-z 0-9 _ - . /, found `{}`",
                odd.escape_debug()
            ))),
            None => Ok(Self(text)),
        }
    }
}

impl TryFrom<&str> for ToolId {
    type Error = InvalidName;

    fn try_from(text: &str) -> Result<Self, InvalidName> {
        Self::try_from(text.to_owned())
    }
}

impl From<ToolId> for String {
    fn from(id: ToolId) -> Self {
        id.0
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call's id: any text that is not blank, of at most 128 characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct CallId(#[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 128)))] String);

impl CallId {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CallId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        if text.trim().is_empty() {
            return Err(InvalidName("a call id must not be blank".to_owned()));
        }
        // Programs get it as a variable of their environment, which cannot have this character.
        if text.contains('\0') {
            return Err(InvalidName("a call id must not contain U+0000".to_owned()));
        }
        if text.chars().count() > CALL_ID_MAX {
            return Err(InvalidName(format!("a call id has at most {CALL_ID_MAX} characters")));
        }
        Ok(Self(text))
    }
}

impl From<CallId> for String {
    fn from(id: CallId) -> Self {
        id.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 8 << 10;

/// A pattern that selects tools: an id, `*`, or a prefix that ends in `.*`. For resources it is
/// `SERVER.URI`, which may end in `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct ToolPattern(String);

impl ToolPattern {
    /// Whether the pattern selects the id.
    #[must_use]
    pub fn selects(&self, id: &str) -> bool {
        if self.0 == "*" {
            return true;
        }
        match self.0.strip_suffix('*') {
            Some(prefix) => id.len() > prefix.len() && id.starts_with(prefix),
            None => self.0 == id,
        }
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ToolPattern {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        let body = text.strip_suffix(".*").unwrap_or(&text);
        if text != "*" && !names_resources(&text) {
            ToolId::try_from(body).map_err(|_| {
                InvalidName(format!(
                    "`{}` is neither a tool id, nor `*`, nor a prefix such as `files.*`",
                    text.escape_debug()
                ))
            })?;
        }
        Ok(Self(text))
    }
}

/// Whether a pattern is `SERVER.URI`: it begins with a server's name, a URI scheme and a colon.
fn names_resources(text: &str) -> bool {
    let Some((head, rest)) = text.split_once(':') else { return false };
    let Some((server, scheme)) = head.rsplit_once('.') else { return false };
    let mut scheme_chars = scheme.chars();
    ToolId::try_from(server).is_ok()
        && scheme_chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && scheme_chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-'))
        && !rest.is_empty()
        && !rest.chars().any(|c| c.is_whitespace() || c.is_control())
        && !rest.trim_end_matches('*').contains('*')
        && text.len() <= PATTERN_BYTES_MAX
}

impl From<ToolPattern> for String {
    fn from(pattern: ToolPattern) -> Self {
        pattern.0
    }
}

/// Returns the known name nearest to `name`, if one is near enough to be a likely correction.
#[must_use]
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let folded = fold(name);
    let letters = folded.chars().count();
    // The distance is at least the difference of the lengths. To compute it takes the product of the lengths, and a
    // caller chooses `name`.
    let may_be_near =
        |candidate: &&str| letters <= candidate.chars().count() + 1 + candidate.len() / 4;
    known
        .into_iter()
        .filter(may_be_near)
        .map(|candidate| (strsim::osa_distance(&folded, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Whether `name` is so near to `known` that it is a likely misspelling.
#[must_use]
pub fn near_miss(name: &str, known: &str) -> bool {
    let allowed = (known.len() / 4).clamp(1, 2);
    name != known
        && fold(name).chars().count() <= known.chars().count() + allowed
        && strsim::osa_distance(&fold(name), &fold(known)) <= allowed
}

fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_ids_are_checked() {
        for good in ["a", "os.create_task", "a/b-c.D_9", &"x".repeat(128)] {
            assert!(ToolId::try_from(good).is_ok(), "{good}");
        }
        for bad in ["", "  ", "a b", "ä", "a\u{200b}", &"x".repeat(129)] {
            assert!(ToolId::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns_select_by_id_and_by_prefix() {
        let selects = |pattern: &str, id: &str| {
            ToolPattern::try_from(pattern.to_owned()).unwrap().selects(id)
        };
        assert!(selects("files.*", "files.read"));
        assert!(!selects("files.*", "files"));
        assert!(!selects("files.*", "filesystem.read"));
        assert!(selects("*", "x"));
        assert!(selects("a.b", "a.b") && !selects("a.b", "a.bc"));
        assert!(ToolPattern::try_from("fi*es".to_owned()).is_err());
        assert!(selects("files.file:///a/*", "files.file:///a/b"));
        assert!(!selects("files.file:///a/*", "files.file:///b") && selects("f.*", "f.x:y"));
        assert!(selects("f.toolbooth+a:file:///b", "f.toolbooth+a:file:///b"));
        for bad in ["files:*", "files.:x", "files.file:", "files.file:a b", "files.f*e:x", "f.x:*a"]
        {
            assert!(ToolPattern::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn slips_are_told_from_strangers() {
        let long = "timeoutMs".repeat(1 << 18);
        assert_eq!(nearest(&long, ["timeoutMs"; 200]), None, "its length decides");
        assert!(!near_miss(&long, "timeoutMs"));
        assert_eq!(nearest("time_out_ms", ["timeoutMs", "owner"]), Some("timeoutMs"));
        assert!(near_miss("timoutMs", "timeoutMs"));
        assert!(near_miss("rateLimitPermin", "rateLimitPerMin"));
        assert!(near_miss("timeout_ms", "timeoutMs"));
        assert!(!near_miss("owner", "timeoutMs"));
        assert_eq!(nearest("calculater", ["read_file", "calculator"]), Some("calculator"));
    }
}
