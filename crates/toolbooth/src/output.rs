//! Writes to standard output: one JSON document, or a table for operators.
//!
//! Doc: formats.md

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

/// The output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table for operators.
    Table,
    /// One JSON document.
    Json,
}

/// Prints one JSON document.
pub(crate) fn json(value: &impl Serialize) {
    line(&serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Prints one JSON document on one line.
pub(crate) fn json_line(value: &impl Serialize) {
    line(&serde_json::to_string(value).unwrap_or_default());
}

/// Prints a line. A closed reader is not an error.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Prints a line that contains foreign text, with invisible characters escaped.
pub(crate) fn foreign(text: &str) {
    line(&printable(text));
}

/// Prints text unchanged.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints rows under headings, each column as wide as its longest cell.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let show = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        line(padded.join("  ").trim_end());
    };
    show(&mut headings.iter().copied());
    for row in &rows {
        show(&mut row.iter().map(String::as_str));
    }
}

/// Returns a cell without characters that a terminal would interpret.
fn printable(cell: &str) -> String {
    let cell: String =
        cell.chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c }).collect();
    toolbooth_registry::suspicion::visible(&cell)
}

/// Returns the text of a JSON value for a cell.
pub(crate) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
