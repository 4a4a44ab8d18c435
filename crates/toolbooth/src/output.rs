//! Writes to standard output: one JSON document, or a table for operators.
//!
//! Doc: formats.md

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::Value;

/// The first error of writing, unless the reader has closed its end.
static FAILED: OnceLock<String> = OnceLock::new();

/// Returns why standard output could not be written, if so. What was printed then is not whole.
pub(crate) fn failed() -> Option<&'static str> {
    FAILED.get().map(String::as_str)
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            FAILED.get_or_init(|| error.to_string());
        }
        _ => (),
    }
}

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
    line(&terminal_safe(serde_json::to_string_pretty(value).unwrap_or_default()));
}

/// Prints one JSON document on one line.
pub(crate) fn json_line(value: &impl Serialize) {
    line(&terminal_safe(serde_json::to_string(value).unwrap_or_default()));
}

/// Returns the same JSON, with characters escaped that a terminal would interpret. They are in strings alone;
/// `serde_json` escapes those below U+0020.
fn terminal_safe(json: String) -> String {
    let is_unsafe = |c: char| {
        matches!(c, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !json.contains(is_unsafe) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match is_unsafe(c) {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    out
}

/// Returns lines as a terminal can show them: JSON stays the same JSON.
pub(crate) fn for_terminal(lines: &str) -> String {
    let shown = |line: &str| match serde_json::from_str::<serde::de::IgnoredAny>(line) {
        Ok(_) => terminal_safe(line.to_owned()),
        Err(_) => printable(line),
    };
    lines.lines().map(|line| shown(line) + "\n").collect()
}

/// Prints a line. A closed reader is not an error.
pub(crate) fn line(text: &str) {
    write(&format!("{text}\n"));
}

/// Prints a line that contains foreign text, with invisible characters escaped.
pub(crate) fn foreign(text: &str) {
    line(&printable(text));
}

/// Prints lines unchanged, or on a terminal as it can show them.
pub(crate) fn lines(lines: &str) {
    match std::io::stdout().is_terminal() {
        true => text(&for_terminal(lines)),
        false => text(lines),
    }
}

/// Prints text unchanged.
pub(crate) fn text(text: &str) {
    write(text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_same_meaning_without_what_a_terminal_interprets() {
        let text = "a\u{7f}b\u{9b}31mc\u{202e}d\u{2066}e\u{2028}f\u{1b}g\u{e9}\u{1f600}\"\\";
        let value = serde_json::json!({ text: [text, 1] });
        let safe = terminal_safe(value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), value);
        let shown = ['\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{1b}'];
        assert!(!safe.contains(shown) && safe.contains("\\u009b") && safe.contains('\u{e9}'));
        assert_eq!(terminal_safe(r#"{"a":"\u001b é"}"#.to_owned()), r#"{"a":"\u001b é"}"#);
    }

    #[test]
    fn exported_lines_do_not_steer_a_terminal() {
        let lines = "{\"a\":\"\u{9b}31m\"}\nid,\u{1b}[31m,\u{9b}2J\n";
        let shown = for_terminal(lines);
        assert!(shown.starts_with("{\"a\":\"\\u009b31m\"}\nid,"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{9b}']) && shown.ends_with('\n'), "{shown}");
    }
}
