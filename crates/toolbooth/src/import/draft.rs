//! Servers and commands as they are written into `toolbooth.toml`.
//!
//! Doc: importing.md#secrets

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use secrecy::SecretString;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};
use toolbooth_adapters::secrets::with_placeholders;
use toolbooth_contracts::secret::{SecretShapes, names_a_secret};

use super::values::{self, Worth};
use crate::failure::Failure;

/// A section to be written.
#[derive(Debug, Default)]
pub(crate) struct Section {
    table: Table,
    comments: Vec<String>,
    /// Values of the client's file that are kept elsewhere.
    pub(crate) literals: Vec<Literal>,
}

/// A value of a client's file that is kept elsewhere.
#[derive(Debug)]
pub(crate) struct Literal {
    /// `env` or `headers`.
    pub(crate) kind: &'static str,
    /// The variable or header that it is the value of.
    pub(crate) name: String,
    /// The variable that is referred to where a secret is kept nowhere else.
    pub(crate) variable: String,
    pub(crate) value: SecretString,
    /// Whether it is a secret: hidden in answers, and never copied into the configuration.
    pub(crate) is_secret: bool,
}

impl Section {
    pub(crate) fn set(&mut self, key: &str, what: impl Into<Value>) {
        self.table.insert(key, value(what));
    }

    pub(super) fn list(&mut self, key: &str, items: impl IntoIterator<Item = String>) {
        self.table.insert(key, value(items.into_iter().collect::<Array>()));
    }

    pub(super) fn map(&mut self, kind: &'static str, members: Vec<(String, Kept)>) {
        let mut out = InlineTable::new();
        for (name, kept) in members {
            let kept = match kept {
                Kept::Text(text) => Value::from(text),
                Kept::Ordinary(text) => {
                    let value = SecretString::from(text.clone());
                    let (name, variable) = (name.clone(), String::new());
                    self.literals.push(Literal { kind, name, variable, value, is_secret: false });
                    Value::from(text)
                }
                Kept::Secret { variable, value } => {
                    let reference = reference(&format!("env:{variable}"), true);
                    let name = name.clone();
                    self.literals.push(Literal { kind, name, variable, value, is_secret: true });
                    reference
                }
            };
            out.insert(&name, kept);
        }
        self.table.insert(kind, value(out));
    }

    /// Refers to another place for a value.
    pub(crate) fn refer(&mut self, kind: &str, name: &str, location: &str, is_secret: bool) {
        let map = self.table.get_mut(kind).and_then(Item::as_inline_table_mut);
        if let Some(map) = map {
            map.insert(name, reference(location, is_secret));
        }
    }

    /// Adds a line of comment at the beginning of the section.
    pub(crate) fn comment(&mut self, line: &str) {
        // A control character would end the comment, and what follows would count.
        let plain = line.chars().flat_map(|c| {
            let shown = if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            shown.chars().collect::<Vec<_>>()
        });
        self.comments.push(plain.collect());
    }

    /// The section as it is written.
    fn written(&self) -> Table {
        let mut table = self.table.clone();
        let first = table.iter().next().map(|(key, _)| key.to_owned());
        if let Some(mut key) = first.as_deref().and_then(|key| table.key_mut(key)) {
            let lines = self.comments.iter().map(|line| format!("# {line}\n"));
            key.leaf_decor_mut().set_prefix(lines.collect::<String>());
        }
        table
    }
}

fn reference(location: &str, is_secret: bool) -> Value {
    let mut reference = InlineTable::new();
    reference.insert("secret_ref", Value::from(location));
    if !is_secret {
        reference.insert("mask", Value::from(false));
    }
    Value::from(reference)
}

/// A setting as it is kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// In the configuration.
    Text(String),
    /// Elsewhere, where there is a place for it; it is no secret.
    Ordinary(String),
    /// Elsewhere in any case.
    Secret { variable: String, value: SecretString },
}

/// Keeps secrets out of what is written. A literal one is never copied.
pub(super) struct Keeper<'k> {
    /// The server whose settings these are.
    pub(super) server: &'k str,
    /// Where the program runs.
    pub(super) folder: Option<&'k Path>,
    pub(super) shapes: &'k SecretShapes,
    pub(super) notices: &'k mut Vec<String>,
}

/// The notice of a literal secret that is taken from a variable.
pub(super) fn not_copied(server: &str, place: &str, variable: &str) -> String {
    format!(
        "servers.{server}: {place} holds a literal secret, which was not copied; set the variable {variable} for Toolbooth"
    )
}

/// A name of a variable: upper case, digits and `_`.
pub(super) fn variable(parts: &[&str]) -> String {
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

/// What a text with variables says itself: what is around them, and their defaults.
fn around(text: &str) -> String {
    let defaults = with_placeholders::<Infallible>(text, |inner| {
        Ok(inner.split_once(":-").map(|(_, default)| default.to_owned()).unwrap_or_default())
    });
    defaults.unwrap_or_default()
}

impl Keeper<'_> {
    fn told(&mut self, place: &str, variable: &str) {
        self.notices.push(not_copied(self.server, place, variable));
    }

    /// Whether a text is a placeholder, such as `${TOKEN}` or `Bearer ${TOKEN}`; one with a default
    /// is a literal all the same.
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

    /// A variable or a header.
    pub(super) fn named(&mut self, kind: &str, name: &str, text: String) -> Kept {
        if text.is_empty() || Self::is_placeholder(&text) {
            return Kept::Text(text);
        }
        let worth = match text.contains("${") {
            // A client fills in its variables; what is written around them, and as their defaults,
            // is literal.
            true => match self.is_secret(name, &text)
                || self.worth(name, &around(&text)) == Worth::Secret
            {
                true => Worth::Secret,
                false => Worth::Harmless,
            },
            false => self.worth(name, &text),
        };
        match (worth, kind) {
            (Worth::Harmless, _) => return Kept::Text(text),
            (Worth::Ordinary, "env") => return Kept::Ordinary(text),
            (Worth::Ordinary, _) => return Kept::Text(text),
            (Worth::Secret, _) => (),
        }
        let variable = match kind {
            // A variable keeps its name.
            "env" if variable(&[name]) == name => name.to_owned(),
            _ => variable(&[self.server, name]),
        };
        Kept::Secret { variable, value: SecretString::from(text) }
    }

    /// The arguments of a command: those after a flag that names a secret, those that say
    /// `NAME=value` or `Name: value` with such a name, and those that look like one, are taken from
    /// variables.
    pub(super) fn arguments(&mut self, arguments: Vec<String>) -> Vec<String> {
        let mut flag: Option<String> = None;
        let mut out = Vec::with_capacity(arguments.len());
        for (index, argument) in arguments.into_iter().enumerate() {
            let place = format!("args[{index}]");
            let kept = match flag.take() {
                Some(name) if !argument.starts_with('-') && self.is_secret(&name, &argument) => {
                    let variable = variable(&[self.server, &name]);
                    self.told(&place, &variable);
                    format!("${{{variable}}}")
                }
                _ => self.worded(&place, &argument),
            };
            if kept.starts_with('-') && !kept.contains(['=', ' ']) {
                flag = Some(kept.trim_start_matches('-').to_owned());
            }
            out.push(kept);
        }
        out
    }

    /// A text of words, some of which may be `NAME=value`, `--name=value`, `Name: value`, or
    /// follow a flag.
    pub(super) fn worded(&mut self, place: &str, text: &str) -> String {
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
                    self.told(place, &variable);
                    out.push_str(&format!("{name}{sign}${{{variable}}}"));
                }
                (_, Some(name))
                    if !word.is_empty() && self.is_secret(name.trim_end_matches(':'), word) =>
                {
                    // `Name: value` and `--name value` go on to the end of what they name.
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
                    self.told(place, &variable);
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
        self.shaped(place, out)
    }

    /// A text that may hold what looks like a secret.
    fn shaped(&mut self, place: &str, text: String) -> String {
        if Self::is_placeholder(&text) || self.shapes.recognise(&text).is_none() {
            return text;
        }
        let variable = variable(&[self.server, place]);
        self.told(place, &variable);
        format!("${{{variable}}}")
    }

    /// A URL: a secret in its query or its user-info is taken from a variable.
    pub(super) fn url(&mut self, url: String) -> String {
        if !url.contains("${") && values::has_secret_path(&url) {
            let variable = variable(&[self.server, "url"]);
            self.told("url", &variable);
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
                    self.told(&format!("url ({name})"), &variable);
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

/// The configuration with further sections; those that are there already stay as they are, and
/// are named in what comes back, after the sections that were added.
pub(crate) fn into_configuration(
    text: &str,
    sections: &BTreeMap<(&'static str, String), Section>,
) -> Result<(String, Vec<String>, Vec<String>), Failure> {
    let mut document: DocumentMut = text.parse().map_err(|_| {
        Failure::configuration("the configuration is no TOML")
            .hint("`toolbooth doctor` says where; nothing was written")
    })?;
    let (mut added, mut kept) = (Vec::new(), Vec::new());
    for ((kind, name), section) in sections {
        let shown = format!("{kind}.{name}");
        let group = document.entry(kind).or_insert_with(|| {
            let mut group = Table::new();
            group.set_implicit(true);
            Item::Table(group)
        });
        let Some(group) = group.as_table_like_mut() else {
            return Err(Failure::configuration(format!("`{kind}` is no section")));
        };
        if group.contains_key(name) {
            kept.push(shown);
            continue;
        }
        group.insert(name, Item::Table(section.written()));
        added.push(shown);
    }
    let text = document.to_string();
    // What is written must be read again.
    crate::config::parse(&text, "the imported configuration", Vec::new())?;
    Ok((text, added, kept))
}

#[cfg(test)]
mod tests;
