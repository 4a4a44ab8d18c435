//! Keeps literal secrets of imported settings out of the configuration.
//!
//! Doc: importing.md#secrets

use std::convert::Infallible;
use std::path::Path;

use secrecy::SecretString;
use toolbooth_adapters::secrets::with_placeholders;
use toolbooth_contracts::secret::{SecretShapes, names_a_secret};

use crate::section::KeptSetting;
use crate::values::{self, Worth};

/// A filter that removes secrets from the written configuration. A literal secret is never copied.
pub(crate) struct Keeper<'k> {
    /// The server that the settings belong to.
    pub(crate) server: &'k str,
    /// The working folder of the program.
    pub(crate) folder: Option<&'k Path>,
    pub(crate) shapes: &'k SecretShapes,
    pub(crate) notices: &'k mut Vec<String>,
}

/// Returns the notice of a literal secret that a variable replaces.
#[must_use]
pub fn not_copied(server: &str, setting: &str, variable: &str) -> String {
    format!(
        "servers.{server}: {setting} holds a literal secret, which was not copied; set the variable {variable} for Toolbooth"
    )
}

/// Returns a name of a variable: upper case, digits and `_`.
pub(crate) fn variable(parts: &[&str]) -> String {
    let mut out = String::new();
    for character in parts.join("_").chars() {
        let upper = character.to_ascii_uppercase();
        if upper.is_ascii_alphanumeric() {
            out.push(upper);
        } else if !out.ends_with('_') && !out.is_empty() {
            out.push('_');
        }
    }
    let out = out.trim_end_matches('_').to_owned();
    if out.starts_with(|c: char| c.is_ascii_digit()) { format!("_{out}") } else { out }
}

/// Returns the literal parts of a text with variables: the text around them, and their defaults.
fn around(text: &str) -> String {
    let defaults = with_placeholders::<Infallible>(text, |inner| {
        Ok(inner.split_once(":-").map(|(_, default)| default.to_owned()).unwrap_or_default())
    });
    defaults.unwrap_or_default()
}

impl Keeper<'_> {
    fn add_notice(&mut self, setting: &str, variable: &str) {
        self.notices.push(not_copied(self.server, setting, variable));
    }

    /// Whether a text is a placeholder, such as `${TOKEN}` or `Bearer ${TOKEN}`. One with a default
    /// counts as a literal.
    fn is_placeholder(text: &str) -> bool {
        let inner = ["Bearer ", "Basic ", "bearer ", "basic ", "Token ", "token "]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
            .unwrap_or(text);
        let Some(name) = inner.strip_prefix("${").and_then(|inner| inner.strip_suffix('}')) else {
            return false;
        };
        !name.contains("${") && name.split_once(":-").is_none_or(|(_, default)| default.is_empty())
    }

    fn is_secret(&self, name: &str, text: &str) -> bool {
        !text.is_empty()
            && !Self::is_placeholder(text)
            && values::is_secret(name, text, self.shapes)
    }

    fn worth(&self, name: &str, text: &str) -> Worth {
        values::worth(name, text, self.shapes, self.folder)
    }

    /// Returns the setting of a variable or a header.
    pub(crate) fn named(&mut self, kind: &str, name: &str, text: String) -> KeptSetting {
        if text.is_empty() || Self::is_placeholder(&text) {
            return KeptSetting::Text(text);
        }
        let worth = match text.contains("${") {
            // A client substitutes its variables. The text around them and their defaults are
            // literal.
            true => match self.is_secret(name, &text)
                || self.worth(name, &around(&text)) == Worth::Secret
            {
                true => Worth::Secret,
                false => Worth::Harmless,
            },
            false => self.worth(name, &text),
        };
        match (worth, kind) {
            (Worth::Harmless, _) => return KeptSetting::Text(text),
            (Worth::Ordinary, "env") => return KeptSetting::Ordinary(text),
            (Worth::Ordinary, _) => return KeptSetting::Text(text),
            (Worth::Secret, _) => (),
        }
        let variable = match kind {
            // A variable keeps its name.
            "env" if variable(&[name]) == name => name.to_owned(),
            _ => variable(&[self.server, name]),
        };
        KeptSetting::Secret { variable, value: SecretString::from(text) }
    }

    /// Replaces secrets in the arguments of a command by variables. Secrets are arguments after a
    /// flag that names a secret, and `NAME=value` or `Name: value` with such a name. Arguments that
    /// look like a secret count too.
    pub(crate) fn arguments(&mut self, arguments: Vec<String>) -> Vec<String> {
        let mut flag: Option<String> = None;
        let mut out = Vec::with_capacity(arguments.len());
        for (index, argument) in arguments.into_iter().enumerate() {
            let setting = format!("args[{index}]");
            let kept = match flag.take() {
                Some(name) if !argument.starts_with('-') && self.is_secret(&name, &argument) => {
                    let variable = variable(&[self.server, &name]);
                    self.add_notice(&setting, &variable);
                    format!("${{{variable}}}")
                }
                _ => self.worded(&setting, &argument),
            };
            if kept.starts_with('-') && !kept.contains(['=', ' ']) {
                flag = Some(kept.trim_start_matches('-').to_owned());
            }
            out.push(kept);
        }
        out
    }

    /// Replaces secrets in a text of words by variables. Words may be `NAME=value`, `--name=value`,
    /// `Name: value`, or follow a flag.
    pub(crate) fn worded(&mut self, setting: &str, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before: Option<String> = None;
        while !rest.is_empty() {
            let blank = rest.len() - rest.trim_start().len();
            out.push_str(rest.get(..blank).unwrap_or_default());
            rest = rest.get(blank..).unwrap_or_default();
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            let quote = |c: char| matches!(c, '"' | '\'');
            let named =
                word.split_once('=').map(|(name, value)| (name.to_owned(), '=', value.to_owned()));
            match (named, before.take()) {
                (Some((name, sign, value)), _)
                    if self.is_secret(
                        name.trim_matches(|c: char| c == '-' || quote(c)),
                        value.trim_matches(quote),
                    ) =>
                {
                    let variable = variable(&[self.server, &name]);
                    self.add_notice(setting, &variable);
                    out.push_str(&format!("{name}{sign}${{{variable}}}"));
                }
                (_, Some(name))
                    if !word.is_empty() && self.is_secret(name.trim_end_matches(':'), word) =>
                {
                    // `Name: value` extends to the end of the text, and `--name value` to the end of
                    // the word.
                    let whole =
                        if name.ends_with(':') { format!("{word}{rest}") } else { word.to_owned() };
                    if name.ends_with(':') {
                        if Self::is_placeholder(&whole) {
                            out.push_str(&whole);
                            rest = "";
                            continue;
                        }
                        rest = "";
                    }
                    let variable = variable(&[self.server, &name]);
                    self.add_notice(setting, &variable);
                    out.push_str(&format!("${{{variable}}}"));
                }
                _ => out.push_str(word),
            }
            let name = word.trim_matches(quote);
            let header = name.strip_suffix(':').filter(|name| names_a_secret(name));
            if let Some(header) = header {
                before = Some(format!("{header}:"));
            } else if name.starts_with("--") && !name.contains('=') {
                before = Some(name.trim_start_matches('-').to_owned());
            }
        }
        self.shaped(setting, out)
    }

    /// Replaces a text by a variable if it contains a part that looks like a secret.
    fn shaped(&mut self, setting: &str, text: String) -> String {
        if Self::is_placeholder(&text) || self.shapes.recognise(&text).is_none() {
            return text;
        }
        let variable = variable(&[self.server, setting]);
        self.add_notice(setting, &variable);
        format!("${{{variable}}}")
    }

    /// Replaces secrets in the query or the user-info of a URL by variables, or the whole URL if its
    /// path is secret.
    pub(crate) fn url(&mut self, url: String) -> String {
        if !url.contains("${") && values::has_secret_path(&url) {
            let variable = variable(&[self.server, "url"]);
            self.add_notice("url", &variable);
            return format!("${{{variable}}}");
        }
        let Some((base, query)) = url.split_once('?') else { return self.shaped("url", url) };
        let (query, fragment) = query.split_once('#').unwrap_or((query, ""));
        let mut out = self.shaped("url", base.to_owned());
        let mut sign = '?';
        for pair in query.split('&') {
            out.push(sign);
            sign = '&';
            match pair.split_once('=') {
                Some((name, text)) if self.is_secret(name, text) => {
                    let variable = variable(&[self.server, name]);
                    self.add_notice(&format!("url ({name})"), &variable);
                    out.push_str(&format!("{name}=${{{variable}}}"));
                }
                _ => out.push_str(pair),
            }
        }
        if !fragment.is_empty() {
            out.push('#');
            out.push_str(fragment);
        }
        out
    }
}

#[cfg(test)]
mod tests;
