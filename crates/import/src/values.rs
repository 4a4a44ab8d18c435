//! Classifies the values of imported variables and headers: harmless, ordinary, or secret.
//!
//! Doc: importing.md#secrets

use std::path::{Path, PathBuf};

use toolbooth_contracts::secret::{SecretShapes, names_a_secret};
use url::Url;

/// Longest number, in characters; longer ones may be keys.
const NUMBER_CHARS_MAX: usize = 15;
/// Longest value that counts as words, in characters.
const WORDS_CHARS_MAX: usize = 256;
/// Longest run of letters that counts as a word.
const LETTERS_MAX: usize = 24;
/// Longest run of digits in a value of words.
const DIGITS_MAX: usize = 12;
/// Most digits before or after letters in one word, such as `gpt4` and `30s`.
const MIXED_DIGITS_MAX: usize = 4;

/// The class of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    /// A path that exists, a number, a boolean, or a URL without credentials.
    Harmless,
    /// Words that are not public, and that do not look like a secret.
    Ordinary,
    /// A secret by its name or its form.
    Secret,
}

/// Words of a name, each of which marks the value as a secret.
const STRONG: [&str; 25] = [
    "pass",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "passcode",
    "pw",
    "pwd",
    "pat",
    "pats",
    "secret",
    "secrets",
    "apikey",
    "apikeys",
    "token",
    "cred",
    "creds",
    "credential",
    "credentials",
    "bearer",
    "jwt",
    "otp",
    "totp",
    "mnemonic",
    "pin",
];
/// Words that mark a secret unless the value is an ordinary word, such as `SORT_KEY = "name"`.
const WEAK: [&str; 19] = [
    "key",
    "keys",
    "auth",
    "authorization",
    "authentication",
    "session",
    "sessionid",
    "sid",
    "cookie",
    "cookies",
    "private",
    "signing",
    "signature",
    "salt",
    "seed",
    "license",
    "licence",
    "dsn",
    "webhook",
];
/// Endings of names that are written in one word, such as `PGPASSWORD`.
const ENDINGS: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "apikey"];

/// Returns the words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for character in name.chars() {
        let separates = !character.is_alphanumeric();
        if separates || (character.is_uppercase() && lower_before) {
            words.push(String::new());
        }
        lower_before = character.is_lowercase();
        if let (false, Some(word)) = (separates, words.last_mut()) {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a name marks its value as a secret.
fn names_a_secret_value(name: &str) -> bool {
    let words = words(name);
    names_a_secret(name)
        || words.iter().any(|word| STRONG.contains(&word.as_str()))
        || words.last().is_some_and(|last| ENDINGS.iter().any(|ending| last.ends_with(ending)))
}

/// Whether a name may mark its value as a secret.
fn may_name_a_secret(name: &str) -> bool {
    words(name).iter().any(|word| WEAK.contains(&word.as_str()))
}

/// Whether the value of an argument's flag, or of a name within a text or a URL, is a secret.
/// The rules are stricter than those of [`worth`], because each match is replaced by a variable.
pub(crate) fn is_secret(name: &str, text: &str, shapes: &SecretShapes) -> bool {
    let name = name.trim_start_matches('-');
    let ends_weakly = words(name).last().is_some_and(|last| WEAK.contains(&last.as_str()));
    let is_harmless = is_boolean(text) || exists(text, None);
    names_a_secret(name)
        || shapes.recognise(text).is_some()
        || (!is_harmless && (names_a_secret_value(name) || (ends_weakly && !is_word(text))))
}

/// Whether the path of a URL contains a part that looks confidential.
pub(crate) fn has_secret_path(text: &str) -> bool {
    url(text).is_some_and(|url| url.path().split('/').any(|part| !is_words(part)))
}

/// Returns the class of a variable's value. `folder` is the working folder of the program, for
/// relative paths.
pub(crate) fn worth(name: &str, text: &str, shapes: &SecretShapes, folder: Option<&Path>) -> Worth {
    let has_shape = || {
        // Some services are recognised by the name alone, because their keys have no special form.
        shapes.recognise(text).is_some() || shapes.recognise(&format!("{name}={text}")).is_some()
    };
    // A long number under such a name may be a code.
    let is_count = is_number(text)
        && !names_a_secret_value(name)
        && (text.len() <= 6 || !may_name_a_secret(name));
    if is_boolean(text) || is_count || exists(text, folder) {
        Worth::Harmless
    } else if has_shape() || names_a_secret(name) {
        Worth::Secret
    } else if let Some(url) = url(text) {
        match has_credentials(&url) {
            true => Worth::Secret,
            false => Worth::Harmless,
        }
    } else if names_a_secret_value(name)
        || names_one(text)
        || !is_words(text)
        || (may_name_a_secret(name) && !is_word(text))
    {
        Worth::Secret
    } else {
        Worth::Ordinary
    }
}

/// Whether a text contains settings of the form `name=value`, one of which has the name of a secret.
fn names_one(text: &str) -> bool {
    let pairs =
        text.split([';', ',', '&', ' ', '\n']).filter_map(|part| part.split_once(['=', ':']));
    pairs
        .into_iter()
        .any(|(name, value)| !value.trim().is_empty() && names_a_secret_value(name.trim()))
}

fn is_boolean(text: &str) -> bool {
    let words = ["true", "false", "yes", "no", "on", "off"];
    words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn is_number(text: &str) -> bool {
    text.len() <= NUMBER_CHARS_MAX
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+'))
        && text.parse::<f64>().is_ok()
}

/// Whether a text is a path that exists, or several with `:` between them.
fn exists(text: &str, folder: Option<&Path>) -> bool {
    let is_there = |part: &str| {
        let path = match part.strip_prefix("~/") {
            Some(rest) => std::env::var_os("HOME").map(|home| PathBuf::from(home).join(rest)),
            None if part.starts_with('/') => Some(PathBuf::from(part)),
            None if part.starts_with("./") || part.starts_with("../") => {
                folder.map(|folder| folder.join(part))
            }
            None => None,
        };
        path.is_some_and(|path| path.symlink_metadata().is_ok())
    };
    !text.is_empty() && text.split(':').all(is_there)
}

fn url(text: &str) -> Option<Url> {
    Url::parse(text).ok().filter(|url| url.has_host())
}

/// Whether a URL contains confidential parts: user-info, or a part of its path, query or fragment
/// with the name or the form of a secret.
fn has_credentials(url: &Url) -> bool {
    let parts = url.path().split('/').chain(url.fragment());
    let named = |name: &str, value: &str| {
        names_a_secret_value(name) || (may_name_a_secret(name) && !is_word(value))
    };
    !url.username().is_empty()
        || url.password().is_some()
        || parts.into_iter().any(|part| !is_words(part))
        || url.query_pairs().any(|(name, value)| named(&name, &value) || !is_words(&value))
}

/// Whether a text is one word of letters.
fn is_word(text: &str) -> bool {
    text.chars().all(char::is_alphabetic) && is_words(text)
}

/// Whether a text consists of ordinary words and short numbers; keys do not.
fn is_words(text: &str) -> bool {
    text.chars().count() <= WORDS_CHARS_MAX
        && text.split(|c: char| !c.is_alphanumeric()).all(is_word_or_number)
}

fn is_word_or_number(run: &str) -> bool {
    let digits = run.chars().filter(char::is_ascii_digit).count();
    let length = run.chars().count();
    if digits == length {
        return digits <= DIGITS_MAX;
    }
    let inner = run.trim_matches(|c: char| c.is_ascii_digit());
    let letters = inner.chars().count();
    // In words, upper case starts a part or is used throughout. Keys change the case repeatedly.
    let changes = inner
        .chars()
        .zip(inner.chars().skip(1))
        .filter(|(one, next)| one.is_lowercase() && next.is_uppercase())
        .count();
    digits <= MIXED_DIGITS_MAX
        && letters <= LETTERS_MAX
        && letters + digits == length
        && changes <= 3.min(letters / 4)
}

/// Returns the text with each word `$NAME` as `${NAME}`. Gemini takes both from its environment. A `$` within a word
/// stays, since it may be part of a secret.
pub(crate) fn braced(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let braced = |word: &str| match word.strip_prefix('$') {
        Some(name) if !name.starts_with(|c: char| c.is_ascii_digit()) => {
            (!name.is_empty() && name.chars().all(is_word)).then(|| format!("${{{name}}}"))
        }
        _ => None,
    };
    let words = text.split(' ').map(|word| braced(word).unwrap_or_else(|| word.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_by_name_and_looks() {
        let shapes = SecretShapes::with([toolbooth_adapters::secret_rules::shapes()]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there"), "").unwrap();
        let there = folder.path().join("there").display().to_string();
        let worth = |name: &str, text: &str| worth(name, text, &shapes, Some(folder.path()));
        for (name, text) in [
            ("PORT", "8080"),
            ("MAX_TOKENS", "4096"),
            ("RATIO", "-0.25"),
            ("DEBUG", "true"),
            ("USE_TOKEN", "No"),
            ("KEY_FILE", &there),
            ("FILE", "./there"),
            ("PATH", "/usr:/"),
            ("API_URL", "https://api.example.com/v1?page=2&sort=asc#top"),
            ("AUTH_URL", "https://login.example.com/oauth2/authorize"),
            ("HOST", "http://127.0.0.1:8080/"),
        ] {
            assert_eq!(worth(name, text), Worth::Harmless, "{name}={text}");
        }
        for (name, text) in [
            ("LEVEL", "information"),
            ("REGION", "eu-west-1"),
            ("MODEL", "gpt-4o-mini"),
            ("LANG", "en_US.UTF-8"),
            ("TZ", "Europe/Berlin"),
            ("USER", "me@example.com"),
            ("NAME", "My Notes"),
            ("SORT_KEY", "name"),
            ("TOOLS", "read,write"),
            ("FILE", "./missing.txt"),
            ("AUTH", "basic"),
            ("DAY", "2026-11-25"),
            ("SIZE", "30MB"),
        ] {
            assert_eq!(worth(name, text), Worth::Ordinary, "{name}={text}");
        }
        for (name, text) in [
            ("PGPASSWORD", "correct"),
            ("DB_PASS", "horse"),
            ("GITHUB_PAT", "battery"),
            ("OPENAI_KEY", "hunter2"),
            ("PASS", "1234"),
            ("AUTH", "hunter2 x"),
            ("SECRETS", "a,b"),
            ("pin", "0000"),
            ("MYSQL_PWD", "x"),
            ("dbPassword", "x"),
            ("SMTPPASSWORD", "x"),
            ("X", "0f8fad5b-d9cb-469f-a165-70867728950e"),
            ("X", "d41d8cd98f00b204e9800998ecf8427e"),
            ("X", "aBcDeFgHiJkLmNoPqRsTuVwXyZ"),
            ("X", "Tr0ub4dor9xQ2"),
            ("X", "https://me:hunter2@example.com/"),
            ("X", "https://h/?api_key=hunter2"),
            ("HOOK", "https://h.example/services/T0123ABCD45/B0123ABCD45/abcDEF123456"),
            ("DATABASE_URL", "postgres://me:hunter2@db/x"),
            ("X", "1234567890123456789"),
            ("TOKEN", "information"),
            ("OPENAI_KEY", "123456789012"),
            ("AUTH_CODE", "48291077"),
            ("DB", "Server=db;User Id=sa;Password=hunter;"),
            ("DB", "host=db user=me password=hunter"),
        ] {
            assert_eq!(worth(name, text), Worth::Secret, "{name}={text}");
        }
    }

    #[test]
    fn bare_variables_get_braces() {
        for (text, wanted) in [
            ("Bearer $TOK", "Bearer ${TOK}"),
            ("$A", "${A}"),
            ("$A  $_b1 ${C}", "${A}  ${_b1} ${C}"),
            ("pa$word1", "pa$word1"),
            ("${A:-$B}", "${A:-$B}"),
            ("5$ and $1", "5$ and $1"),
            ("", ""),
        ] {
            assert_eq!(braced(text), wanted);
        }
    }
}
