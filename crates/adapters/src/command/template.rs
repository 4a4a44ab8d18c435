//! A command line with places for arguments: a list of words, never a shell.
//!
//! Path: 7. Doc: execution.md#command-runtimes

use serde_json::Value;

use crate::error::{FillError, TemplateError};
use crate::template::{Piece, Place, Template};

/// Words that one list may become.
const WORDS_MAX: usize = 1_000;

/// A command line in which `{name}` stands for an argument.
///
/// A word that is a place alone becomes the argument's text, or one word for each item of a list;
/// within a word it is filled in. `{name?}` leaves the word out where there is no such argument.
/// `{{` and `}}` are braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate(Vec<Template>);

impl CommandTemplate {
    /// A template of these words; the first one, the program, has no places.
    ///
    /// # Errors
    /// [`TemplateError`], for the first word that cannot be read.
    pub fn parse(words: &[String]) -> Result<Self, TemplateError> {
        let words: Vec<Template> =
            words.iter().map(|word| Template::parse(word)).collect::<Result<_, _>>()?;
        match words.first().map(|program| program.0.as_slice()) {
            None => Err(TemplateError::NoProgram),
            Some([Piece::Text(_)]) => Ok(Self(words)),
            Some(_) => Err(TemplateError::ProgramFromArgument),
        }
    }

    /// How many of the first words have no places.
    pub(crate) fn written(&self) -> usize {
        self.0.iter().take_while(|word| word.places().next().is_none()).count()
    }

    /// The words with the arguments filled in.
    ///
    /// # Errors
    /// [`FillError`]: an argument is missing, is no text, number or truth value, holds NUL, or would
    /// be read as an option.
    pub fn fill(&self, arguments: &Value) -> Result<Vec<String>, FillError> {
        let mut out: Vec<String> = Vec::new();
        // After `--` nothing is an option any more.
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

/// Text that may stand on a command line, where it `begins` a word that could be an option.
fn harmless(text: &str, place: &Place, begins: bool) -> Result<String, FillError> {
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
