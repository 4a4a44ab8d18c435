//! Checks the words that crates and texts must not contain.

use serde::Deserialize;

use crate::finding::{Finding, finding};
use crate::source_texts::Source;

/// Words that some crates must not contain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordRule {
    pub name: String,
    pub words: Vec<String>,
    /// Whether only whole words count, not parts of identifiers.
    #[serde(default)]
    pub whole: bool,
    /// Whether unit tests are read too.
    #[serde(default)]
    pub in_tests: bool,
    /// Crates, and folders beside them, in which the words are forbidden.
    pub forbidden_in: Vec<String>,
    pub reason: String,
    pub remedy: String,
    #[serde(default)]
    pub exceptions: Vec<Exception>,
}

/// An exception to a rule about words.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// A part of the file's path.
    pub file: String,
    pub word: String,
    pub reason: String,
}

pub fn check(rules: &[WordRule], sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in rules {
        let mut used = vec![false; rule.exceptions.len()];
        for source in sources.iter().filter(|source| rule.forbidden_in.contains(&source.krate)) {
            let text = if rule.in_tests { &source.text } else { source.without_tests() };
            for (number, line) in text.lines().enumerate() {
                let is_named = |word: &&String| match rule.whole {
                    true => names_whole(&line.to_lowercase(), word),
                    false => names(line, word),
                };
                for word in rule.words.iter().filter(is_named) {
                    let exception = rule.exceptions.iter().position(|exception| {
                        source.path.contains(&exception.file) && exception.word == *word
                    });
                    match exception {
                        Some(at) => used[at] = true,
                        None => findings.push(finding(
                            &format!("forbidden word `{word}` ({})", rule.name),
                            format!("{}:{}", source.path, number + 1),
                            &rule.reason,
                            rule.remedy.clone(),
                        )),
                    }
                }
            }
        }
        for (exception, used) in rule.exceptions.iter().zip(used) {
            if !used || exception.reason.trim().is_empty() {
                findings.push(finding(
                    "exception without use or reason",
                    format!("{} in {}", exception.word, exception.file),
                    "an exception that matches nothing hides the next one",
                    "take it out of xtask/boundaries.toml, or give its reason".to_owned(),
                ));
            }
        }
    }
    findings
}

/// Whether a line contains a whole word, also in the plural or as a part of a name in snake case.
fn names_whole(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let after = line.get(at + word.len()..).unwrap_or_default();
        let after = after.strip_prefix('s').unwrap_or(after).chars().next();
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        !after.is_some_and(char::is_alphanumeric) && !before.is_some_and(char::is_alphanumeric)
    })
}

/// Whether a line contains a word. A word with punctuation or an upper-case letter must match exactly; other
/// words match in any case, also inside an identifier.
fn names(line: &str, word: &str) -> bool {
    if word.chars().any(|c| !c.is_alphanumeric() || c.is_uppercase()) {
        return line.contains(word);
    }
    line.to_lowercase().contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_texts::sources;

    fn rule() -> WordRule {
        WordRule {
            name: "providers".to_owned(),
            words: vec!["gemini".to_owned()],
            whole: false,
            in_tests: false,
            forbidden_in: vec!["base".to_owned()],
            reason: "neutral".to_owned(),
            remedy: "move it to adapters".to_owned(),
            exceptions: Vec::new(),
        }
    }

    fn found(rule: WordRule, text: &str) -> Vec<Finding> {
        let (krate, path) = ("base".to_owned(), "base/src/lib.rs".to_owned());
        check(&[rule], &[Source { krate, path, text: text.to_owned() }])
    }

    #[test]
    fn a_provider_named_in_a_neutral_crate_is_found() {
        let findings = found(rule(), "let x = 1;\n// for Gemini\n");
        let [one] = findings.as_slice() else { panic!("one finding: {findings:?}") };
        assert_eq!(one.rule, "forbidden word `gemini` (providers)");
        assert_eq!(one.location, "base/src/lib.rs:2");
        for inside in ["fn to_gemini_schema()", "struct GeminiTool;", "geminiTool"] {
            assert_eq!(found(rule(), inside).len(), 1, "{inside}");
        }
        assert_eq!(found(rule(), "#[cfg(test)]\nmod tests { /* gemini */ }"), []);
        let with_tests = WordRule { in_tests: true, ..rule() };
        assert_eq!(found(with_tests, "#[cfg(test)]\nmod tests { /* gemini */ }").len(), 1);
        let elsewhere = WordRule { forbidden_in: vec!["docs".to_owned()], ..rule() };
        assert_eq!(found(elsewhere, "// for Gemini"), []);
    }

    #[test]
    fn a_whole_word_is_found_and_a_part_of_one_is_not() {
        let at = |text: &str| {
            let words = vec!["house".to_owned()];
            found(WordRule { words, whole: true, ..rule() }, text).len()
        };
        assert_eq!((at("// A House, and more."), at("// the house")), (1, 1));
        assert_eq!((at("// two houses"), at("fn of_house_one()")), (1, 1));
        assert_eq!((at("// a warehouse"), at("fn housed()")), (0, 0));
    }

    #[test]
    fn an_exception_that_matches_nothing_is_found() {
        let with_exception = || {
            let (file, word) = ("lib.rs".to_owned(), "gemini".to_owned());
            let exception = Exception { file, word, reason: "r".to_owned() };
            WordRule { exceptions: vec![exception], ..rule() }
        };
        assert_eq!(found(with_exception(), "// gemini"), []);
        let findings = found(with_exception(), "");
        let rules: Vec<&str> = findings.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["exception without use or reason"]);
    }

    #[test]
    fn texts_beside_the_crates_are_read() {
        let texts = sources().unwrap();
        for path in ["docs/map.md", "examples/toolbooth.toml", "tests/src/lib.rs"] {
            let text = texts.iter().find(|source| source.path == path);
            assert!(text.is_some_and(|text| path.starts_with(&text.krate)), "{path}");
        }
    }
}
