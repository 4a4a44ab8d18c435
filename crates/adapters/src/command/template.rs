//! A command line with placeholders for arguments: a list of words, without a shell.
//!
//! Path: 7. Doc: execution.md#command-runtimes

use serde_json::Value;

use crate::error::{FillError, TemplateError};
use crate::template::{Piece, Placeholder, Template};

/// Maximum number of words from one list.
const WORDS_MAX: usize = 1_000;

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
            let Some(place) = word.alone() else {
                let filled = word
                    .fill(arguments, |at, text, place| harmless(text, place, at == 0 && !ended))?;
                ended |= filled.as_deref() == Some("--");
                out.extend(filled);
                continue;
            };
            let Some(value) = place.look_up(arguments)? else { continue };
            let items = match value {
                Value::Array(items) if items.len() <= WORDS_MAX => items.as_slice(),
                Value::Array(_) => return Err(FillError::TooMany(place.shown())),
                one => std::slice::from_ref(one),
            };
            for item in items {
                out.push(harmless(&place.text(item)?, place, !ended)?);
            }
        }
        Ok(out)
    }
}

/// Checks text for a command line. `begins`: the text is the start of a word that could be an
/// option.
fn harmless(text: &str, place: &Placeholder, begins: bool) -> Result<String, FillError> {
    if text.contains('\0') {
        return Err(FillError::Nul(place.shown()));
    }
    if begins && text.starts_with('-') {
        return Err(FillError::AsOption(place.shown()));
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
    fn a_template_that_cannot_be_read_is_refused() {
        for words in
            [&["{program}"][..], &[], &["a", "{"], &["a", "}"], &["a", "{}"], &["a", "{a.}"]]
        {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(CommandTemplate::parse(&words).is_err(), "{words:?}");
        }
    }
}
