//! Finds secrets of many services by rules that are data.
//!
//! The rules are those of gitleaks, and further ones for services that gitleaks does not recognise
//! by their format alone.
//!
//! `rules/gitleaks.toml` is byte for byte the published file (MIT; its licence is next to it).
//! Rules that need the path of a file are left out, and so is the generic one, which guesses by
//! entropy alone. `rules/services.toml` belongs to this project and follows the documentation of
//! the providers. What is used of both stands in `rules/used.json`, which is read in less time; a test
//! keeps it equal.
//!
//! Doc: contract.md#no-secrets

mod keywords;

use std::sync::{Arc, LazyLock, OnceLock};

use regex::bytes::{Captures, Regex, RegexBuilder};
use serde::Deserialize;
use toolbooth_contracts::secret::{FoundSecret, SecretShape};

use self::keywords::Keywords;

/// The rules that are used, as JSON.
const USED: &str = include_str!("../rules/used.json");
/// The version of gitleaks that the rules are from.
pub const VERSION: &str = "gitleaks 8.30.1";
/// Maximum memory of one compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 10 << 20;

#[derive(Deserialize)]
struct File {
    allowlist: Allowed,
    rules: Vec<RuleText>,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
struct RuleText {
    id: String,
    regex: String,
    keywords: Vec<String>,
    #[serde(default)]
    entropy: f64,
    #[serde(default, rename = "secretGroup")]
    secret_group: usize,
    #[serde(default)]
    allowlists: Vec<Allowed>,
}

#[derive(Deserialize, Default)]
#[cfg_attr(test, derive(serde::Serialize))]
struct Allowed {
    #[serde(default)]
    regexes: Vec<String>,
    #[serde(default)]
    stopwords: Vec<String>,
    #[serde(default, rename = "regexTarget")]
    target: Target,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "lowercase")]
enum Target {
    #[default]
    Secret,
    Match,
    Line,
}

struct Rule {
    text: RuleText,
    compiled: OnceLock<Option<Compiled>>,
}

struct Compiled {
    regex: Regex,
    allowed: Vec<(Target, Vec<Regex>, Vec<String>)>,
}

struct Rules {
    rules: Vec<Rule>,
    keywords: Keywords,
    /// The rules of each keyword.
    of_keyword: Vec<Vec<usize>>,
    allowed: Allowed,
    global: OnceLock<Vec<Regex>>,
}

static RULES: LazyLock<Option<Rules>> = LazyLock::new(|| {
    let read = read();
    if let Err(error) = &read {
        tracing::error!(%error, "the rules for secrets cannot be read");
    }
    read.ok()
});

fn read() -> Result<Rules, Box<dyn std::error::Error>> {
    let file: File = serde_json::from_str(USED)?;
    let rules: Vec<Rule> =
        file.rules.into_iter().map(|text| Rule { text, compiled: OnceLock::new() }).collect();
    let mut keywords: Vec<String> = Vec::new();
    let mut of_keyword: Vec<Vec<usize>> = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        for keyword in &rule.text.keywords {
            match keywords.iter().position(|known| known == keyword) {
                Some(at) => of_keyword.get_mut(at).into_iter().for_each(|all| all.push(index)),
                None => {
                    keywords.push(keyword.clone());
                    of_keyword.push(vec![index]);
                }
            }
        }
    }
    let keywords = Keywords::new(keywords)?;
    Ok(Rules { rules, keywords, of_keyword, allowed: file.allowlist, global: OnceLock::new() })
}

/// Returns a pattern in the syntax of this engine. The rules are written for an engine that reads a
/// brace as a literal unless it begins a repetition.
fn with_literal_braces(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let (mut escaped, mut class) = (false, false);
    for (at, character) in pattern.char_indices() {
        if !escaped && !class && character == '{' {
            let rest = pattern.get(at + 1..).unwrap_or_default();
            let inner = rest.split('}').next().filter(|inner| inner.len() < rest.len());
            let repeats = inner.is_some_and(|inner| {
                inner.starts_with(|c: char| c.is_ascii_digit())
                    && inner.chars().all(|c| c.is_ascii_digit() || c == ',')
            });
            if !repeats {
                out.push('\\');
            }
        }
        match character {
            _ if escaped => (),
            '[' => class = true,
            ']' => class = false,
            _ => (),
        }
        escaped = !escaped && character == '\\';
        out.push(character);
    }
    out
}

/// Compiles a pattern for bytes. As in the engine of gitleaks, `\w` is ASCII.
fn compile(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(&with_literal_braces(pattern))
        .unicode(false)
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .inspect_err(|error| tracing::error!(%error, "a rule for secrets cannot be compiled"))
        .ok()
}

impl Rule {
    fn compiled(&self) -> Option<&Compiled> {
        let compile = || {
            let allowed = |list: &Allowed| {
                let regexes = list.regexes.iter().filter_map(|text| compile(text)).collect();
                (list.target, regexes, list.stopwords.clone())
            };
            Some(Compiled {
                regex: compile(&self.text.regex)?,
                allowed: self.text.allowlists.iter().map(allowed).collect(),
            })
        };
        self.compiled.get_or_init(compile).as_ref()
    }

    /// Returns the secret in a match: the configured group, otherwise the first that matched,
    /// otherwise the whole match.
    fn secret<'t>(&self, captures: &Captures<'t>) -> Option<regex::bytes::Match<'t>> {
        match self.text.secret_group {
            0 => captures
                .iter()
                .skip(1)
                .flatten()
                .find(|group| !group.is_empty())
                .or_else(|| captures.get(0)),
            group => captures.get(group),
        }
    }
}

impl Rules {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        let bytes = text.as_bytes();
        let mut hits = self.keywords.find_all(text).peekable();
        // Nearly every text contains no keyword.
        if hits.peek().is_none() {
            return Vec::new();
        }
        let mut wanted = vec![false; self.rules.len()];
        for hit in hits {
            let rules = self.of_keyword.get(hit.pattern().as_usize());
            for rule in rules.into_iter().flatten() {
                if let Some(wanted) = wanted.get_mut(*rule) {
                    *wanted = true;
                }
            }
        }
        let mut found = Vec::new();
        for (rule, _) in self.rules.iter().zip(wanted).filter(|(_, wanted)| *wanted) {
            let Some(compiled) = rule.compiled() else { continue };
            for captures in compiled.regex.captures_iter(bytes) {
                let (Some(whole), Some(secret)) = (captures.get(0), rule.secret(&captures)) else {
                    continue;
                };
                if entropy(secret.as_bytes()) <= rule.text.entropy && rule.text.entropy > 0.0 {
                    continue;
                }
                if self.is_allowed(compiled, bytes, &whole, &secret) {
                    continue;
                }
                let range = between_characters(text, secret.range());
                found.push(FoundSecret { range, name: &rule.text.id });
            }
        }
        found
    }

    fn is_allowed(
        &self,
        compiled: &Compiled,
        text: &[u8],
        whole: &regex::bytes::Match<'_>,
        secret: &regex::bytes::Match<'_>,
    ) -> bool {
        let lower = secret.as_bytes().to_ascii_lowercase();
        let stops = |words: &[String]| {
            words
                .iter()
                .any(|word| lower.windows(word.len().max(1)).any(|part| part == word.as_bytes()))
        };
        let global = self
            .global
            .get_or_init(|| self.allowed.regexes.iter().filter_map(|text| compile(text)).collect());
        if stops(&self.allowed.stopwords)
            || global.iter().any(|one| one.is_match(secret.as_bytes()))
        {
            return true;
        }
        compiled.allowed.iter().any(|(target, regexes, stopwords)| {
            let target = match target {
                Target::Secret => secret.as_bytes(),
                Target::Match => whole.as_bytes(),
                Target::Line => line(text, whole.range()),
            };
            stops(stopwords) || regexes.iter().any(|one| one.is_match(target))
        })
    }
}

/// Returns the lines that contain a range.
fn line(text: &[u8], range: std::ops::Range<usize>) -> &[u8] {
    let before = text.get(..range.start).unwrap_or_default();
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let after = text.get(range.end..).unwrap_or_default();
    let end = after.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| range.end + at);
    text.get(start..end).unwrap_or_default()
}

fn between_characters(text: &str, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let (mut start, mut end) = (range.start, range.end);
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

/// Returns the Shannon entropy in bits per byte.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    for byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    let length = f64::from(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / length)
        .map(|share| -share * share.log2())
        .sum()
}

/// Finds the tokens of Discord bots, which have no keyword. They are an id in base64, six
/// characters of a time, and a digest, separated by dots.
fn discord_tokens(text: &str) -> impl Iterator<Item = FoundSecret<'static>> {
    const TIME: usize = 6;
    let bytes = text.as_bytes();
    let is_own = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    memchr::memchr_iter(b'.', bytes).filter_map(move |dot| {
        let (before, after) = (bytes.get(..dot)?, bytes.get(dot + 1..)?);
        if after.get(TIME) != Some(&b'.') || !after.get(..TIME)?.iter().all(is_own) {
            return None;
        }
        let start = dot - before.iter().rev().take_while(|byte| is_own(byte)).count();
        let digest = after.get(TIME + 1..)?.iter().take_while(|byte| is_own(byte)).count();
        let id = data_encoding::BASE64_NOPAD.decode(bytes.get(start..dot)?).ok()?;
        let is_id = (17..=20).contains(&id.len()) && id.iter().all(u8::is_ascii_digit);
        let range = start..dot + 1 + TIME + 1 + digest;
        (is_id && (27..=45).contains(&digest))
            .then_some(FoundSecret { range, name: "discord-bot-token" })
    })
}

struct Shape;

impl SecretShape for Shape {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        let mut found: Vec<_> = discord_tokens(text).collect();
        found.extend(RULES.as_ref().into_iter().flat_map(|rules| rules.find_all(text)));
        found
    }
}

/// Returns the rules, for [`toolbooth_contracts::secret::SecretShapes::with`]. They are parsed on
/// first use, and each pattern is compiled when its keyword first occurs.
#[must_use]
pub fn shapes() -> Arc<dyn SecretShape> {
    Arc::new(Shape)
}

/// Parses the rules, for a thread that runs beside others, so that the first use does not wait as long.
pub fn prepare() {
    LazyLock::force(&RULES);
}

#[cfg(test)]
mod tests;
