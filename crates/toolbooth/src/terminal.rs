//! Asks questions on the terminal.
//!
//! Doc: importing.md#questions

use std::io::{BufRead, IsTerminal, Read};

use crate::output::Format;

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64;

/// Whether a user can see a question and answer it.
pub(crate) fn can_ask(format: Format) -> bool {
    let terminal = std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal()
        && std::io::stderr().is_terminal();
    terminal && !format.is_json()
}

/// Asks a question; without an answer the result is `false`.
pub(crate) fn confirm(question: &str) -> bool {
    crate::notice(&format!("{question} [y/N]"));
    let mut answer = String::new();
    let read = std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
