//! A command line with placeholders for arguments: a list of words, without a shell.
//!
//! Path: 7. Doc: execution.md#command-runtimes

use serde_json::Value;

use crate::error::{FillError, TemplateError};
use crate::template::{Piece, Placeholder, Template};

/// Maximum number of words from one list.
const WORDS_MAX: usize = 1_000;

/// Maximum length of a word, in bytes: what the kernel starts a program with (`MAX_ARG_STRLEN`).
const WORD_BYTES_MAX: usize = (128 << 10) - 1;
/// Maximum length of all words, in bytes: less than the kernel starts a program with, because its variables count too.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A command line in which `{name}` is replaced by an argument.
///
/// A word that consists of a placeholder becomes the argument's text, or one word for each item of
/// a list. Within a longer word the text is inserted. `{name?}` omits the word if the argument is
/// missing. `{{` and `}}` are braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate(Vec<Template>);

impl CommandTemplate {
    /// Parses a template of these words. The first one, the program, must not have placeholders.
    ///
    /// # Errors
    /// [`TemplateError`], for the first word that cannot be parsed.
    pub fn parse(words: &[String]) -> Result<Self, TemplateError> {
        let words: Vec<Template> =
            words.iter().map(|word| Template::parse(word)).collect::<Result<_, _>>()?;
        match words.first().map(|program| program.0.as_slice()) {
            None => Err(TemplateError::NoProgram),
            Some([Piece::Text(_)]) => Ok(Self(words)),
            Some(_) => Err(TemplateError::ProgramFromArgument),
        }
    }

    /// Returns how many of the first words have no placeholders.
    pub(crate) fn written(&self) -> usize {
        self.0.iter().take_while(|word| word.placeholders().next().is_none()).count()
    }

    /// Returns the words with the arguments inserted.
    ///
    /// # Errors
    /// [`FillError`]: an argument is missing, is not a text, number or truth value, contains NUL,
    /// or would be read as an option.
    pub fn fill(&self, arguments: &Value) -> Result<Vec<String>, FillError> {
        let mut out: Vec<String> = Vec::new();
        // Words after `--` are not options.
        let mut ended = false;
        for word in &self.0 {
            let Some(placeholder) = word.alone() else {
                // An empty argument before this one does not begin the word.
                let filled = word.fill(arguments, |before, text, placeholder| {
                    harmless(text, placeholder, before.is_empty() && !ended)
                })?;
                let is_written = word.placeholders().next().is_none();
                ended |= is_written && filled.as_deref() == Some("--");
                out.extend(filled);
                continue;
            };
            let Some(value) = placeholder.look_up(arguments)? else { continue };
            let items = match value {
                Value::Array(items) if items.len() <= WORDS_MAX => items.as_slice(),
                Value::Array(_) => return Err(FillError::TooMany(placeholder.shown())),
                one => std::slice::from_ref(one),
            };
            for item in items {
                out.push(harmless(&placeholder.text(item)?, placeholder, !ended)?);
            }
        }
        let is_long = out.iter().any(|word| word.len() > WORD_BYTES_MAX);
        if is_long || out.iter().map(String::len).sum::<usize>() > LINE_BYTES_MAX {
            return Err(FillError::TooLong);
        }
        Ok(out)
    }
}

/// Checks text for a command line. `begins`: the text is the start of a word that could be an
/// option.
fn harmless(text: &str, placeholder: &Placeholder, begins: bool) -> Result<String, FillError> {
    if text.contains('\0') {
        return Err(FillError::Nul(placeholder.shown()));
    }
    if begins && text.starts_with('-') {
        return Err(FillError::AsOption(placeholder.shown()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(words: &[&str], arguments: &Value) -> Result<Vec<String>, FillError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        CommandTemplate::parse(&words).unwrap().fill(arguments)
    }

    #[test]
    fn arguments_become_words() {
        let arguments = json!({"to": "png", "n": 3, "files": ["a", "b c"], "deep": {"er": true}});
        let words = [
            "convert",
            "--to={to}",
            "-n",
            "{n}",
            "{gone?}",
            "--x={gone?}",
            "{deep.er}",
            "{{}}",
            "{files}",
        ];
        assert_eq!(
            filled(&words, &arguments).unwrap(),
            ["convert", "--to=png", "-n", "3", "true", "{}", "a", "b c"]
        );
    }

    #[test]
    fn nothing_becomes_an_option_by_itself() {
        let evil = json!({"a": "-rf", "l": ["x", "--y"], "nul": "a\0b", "o": {}});
        for words in [&["c", "{a}"][..], &["c", "{l}"], &["c", "{a}x"]] {
            let error = filled(words, &evil).unwrap_err();
            assert!(error.to_string().contains("option"), "{error}");
        }
        // An empty argument, and one that is `--`, change nothing of that.
        let evil =
            json!({"a": "-rf", "l": ["x", "--y"], "nul": "a\0b", "o": {}, "e": "", "m": "-"});
        for words in [&["c", "{e}{a}"][..], &["c", "{e}{e?}{a}"], &["c", "x{m}", "{e}{m}", "{a}"]] {
            let error = filled(words, &evil).unwrap_err();
            assert!(error.to_string().contains("option"), "{error}");
        }
        let ends = filled(&["c", "-{x}", "{a}"], &json!({"x": "-", "a": "-rf"}));
        assert!(ends.unwrap_err().to_string().contains("option"));
        for words in [&["c", "--", "{a}"][..], &["c", "--x={a}"], &["c", "--", "{l}"]] {
            assert!(filled(words, &evil).is_ok());
        }
        for (words, expected) in
            [(["c", "{nul}"], "NUL"), (["c", "{o}"], "no text"), (["c", "{gone}"], "needs")]
        {
            assert!(filled(&words, &evil).unwrap_err().to_string().contains(expected));
        }
    }

    #[test]
    fn words_that_no_program_can_be_started_with_are_refused() {
        let long = |bytes: usize| filled(&["c", "x{a}"], &json!({"a": "y".repeat(bytes)}));
        assert!(long(WORD_BYTES_MAX - 1).is_ok());
        assert!(matches!(long(WORD_BYTES_MAX), Err(FillError::TooLong)));
        let many = json!({"l": vec!["y".repeat(100_000); 11]});
        assert!(matches!(filled(&["c", "{l}"], &many), Err(FillError::TooLong)));
    }

    #[test]
    fn a_template_that_cannot_be_read_is_refused() {
        for words in
            [&["{program}"][..], &[], &["a", "{"], &["a", "}"], &["a", "{}"], &["a", "{a.}"]]
        {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(CommandTemplate::parse(&words).is_err(), "{words:?}");
        }
    }
}
