//! Builds the sections of `toolbooth.toml` for imported servers and commands.
//!
//! Doc: importing.md#secrets

use std::collections::BTreeMap;

use secrecy::SecretString;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};

use crate::error::ImportError;

/// Sections by kind (`servers`, `commands`) and name.
pub type Sections = BTreeMap<(&'static str, String), Section>;

/// A section to be written.
#[derive(Debug, Default)]
pub struct Section {
    table: Table,
    comments: Vec<String>,
    /// Values of the client's file that are stored elsewhere.
    pub literals: Vec<Literal>,
}

/// A value of a client's file that is stored elsewhere.
#[derive(Debug)]
pub struct Literal {
    /// `env` or `headers`.
    pub kind: &'static str,
    /// The variable or header with this value.
    pub name: String,
    /// The variable that is referred to if the secret is not stored anywhere else.
    pub variable: String,
    /// The value.
    pub value: SecretString,
    /// Whether it is a secret: hidden in results, and never copied into the configuration.
    pub is_secret: bool,
}

impl Section {
    /// Sets a member.
    pub fn set(&mut self, key: &str, what: impl Into<Value>) {
        self.table.insert(key, value(what));
    }

    pub(crate) fn list(&mut self, key: &str, items: impl IntoIterator<Item = String>) {
        self.table.insert(key, value(items.into_iter().collect::<Array>()));
    }

    pub(crate) fn map(&mut self, kind: &'static str, members: Vec<(String, KeptSetting)>) {
        let mut out = InlineTable::new();
        for (name, kept) in members {
            let kept = match kept {
                KeptSetting::Text(text) => Value::from(text),
                KeptSetting::Ordinary(text) => {
                    let value = SecretString::from(text.clone());
                    let (name, variable) = (name.clone(), String::new());
                    self.literals.push(Literal { kind, name, variable, value, is_secret: false });
                    Value::from(text)
                }
                KeptSetting::Secret { variable, value } => {
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

    /// Refers to another location for a value.
    pub fn refer(&mut self, kind: &str, name: &str, location: &str, is_secret: bool) {
        let map = self.table.get_mut(kind).and_then(Item::as_inline_table_mut);
        if let Some(map) = map {
            map.insert(name, reference(location, is_secret));
        }
    }

    /// Adds a line of comment at the beginning of the section.
    pub fn comment(&mut self, line: &str) {
        // A control character would end the comment, and the text after it would take effect.
        let plain = line.chars().flat_map(|c| {
            let shown = if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            shown.chars().collect::<Vec<_>>()
        });
        self.comments.push(plain.collect());
    }

    /// Returns the section in its written form.
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

/// A setting, by its place of storage.
#[derive(Debug)]
pub(crate) enum KeptSetting {
    /// Stored in the configuration.
    Text(String),
    /// Stored elsewhere if a place exists; it is not a secret.
    Ordinary(String),
    /// Always stored elsewhere.
    Secret { variable: String, value: SecretString },
}

/// A configuration with further sections, and the names of the sections as `KIND.NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    /// The configuration.
    pub text: String,
    /// Sections that were added.
    pub added: Vec<String>,
    /// Sections that existed already and stay unchanged.
    pub kept: Vec<String>,
}

/// Adds sections to the text of a configuration.
///
/// # Errors
/// [`ImportError::NoConfiguration`], [`ImportError::NoSection`].
pub fn into_configuration(text: &str, sections: &Sections) -> Result<Extended, ImportError> {
    let mut document: DocumentMut = text.parse().map_err(|_| ImportError::NoConfiguration)?;
    let (mut added, mut kept) = (Vec::new(), Vec::new());
    for ((kind, name), section) in sections {
        let shown = format!("{kind}.{name}");
        let group = document.entry(kind).or_insert_with(|| {
            let mut group = Table::new();
            group.set_implicit(true);
            Item::Table(group)
        });
        let Some(group) = group.as_table_like_mut() else {
            return Err(ImportError::NoSection(kind));
        };
        if group.contains_key(name) {
            kept.push(shown);
            continue;
        }
        group.insert(name, Item::Table(section.written()));
        added.push(shown);
    }
    Ok(Extended { text: document.to_string(), added, kept })
}
