//! Signed checkpoints (C2SP `tlog-checkpoint`), which state the length and the Merkle root of a
//! writer's log.
//!
//! Path: 9. Doc: records.md#checkpoints

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbooth_contracts::event::{AuditEventKind, EventBody};

use crate::backend::chain::Head;
use crate::backend::merkle::Hash;
use crate::heads::WriterHead;
pub use crate::ledger::Due;
use crate::moment::Moment;
use crate::note::{NoteError, Signer, split};

/// The prefix of the origin line, followed by the writer.
const ORIGIN: &str = "toolbooth-audit/";
/// Maximum number of heads of other logs in one checkpoint; the next checkpoints name the rest.
pub const HEADS_MAX: usize = 1_000;

/// The text of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The writer of the log.
    pub writer: String,
    /// The number of covered events.
    pub size: u64,
    /// The Merkle root over the covered events.
    pub root: Hash,
}

impl Checkpoint {
    /// Returns the text to sign.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{ORIGIN}{}\n{}\n{}\n", self.writer, self.size, STANDARD.encode(self.root.0))
    }

    /// Parses the text of a checkpoint.
    ///
    /// # Errors
    /// [`NoteError::Form`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let malformed = NoteError::Form("it is not a checkpoint of this log");
        let mut lines = text.lines();
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next())
        else {
            return Err(malformed);
        };
        let root: Option<[u8; 32]> =
            STANDARD.decode(root).ok().and_then(|bytes| bytes.try_into().ok());
        match (origin.strip_prefix(ORIGIN), size.parse::<u64>(), root) {
            (Some(writer), Ok(number), Some(root)) if number.to_string() == size => {
                Ok(Self { writer: writer.to_owned(), size: number, root: Hash(root) })
            }
            _ => Err(malformed),
        }
    }

    /// Parses the checkpoint of a signed note without checking the signatures.
    ///
    /// # Errors
    /// [`NoteError::Form`].
    pub fn of_note(note: &str) -> Result<Self, NoteError> {
        Self::parse(split(note)?.0)
    }
}

/// Splits a text, such as a checkpoint file, into its consecutive signed notes.
#[must_use]
pub fn notes(text: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = String::new();
    let mut signed = false;
    for line in text.split_inclusive('\n') {
        let is_signature = line.starts_with("— ");
        if signed && !is_signature {
            notes.push(std::mem::take(&mut note));
        }
        // Empty lines between notes are ignored.
        if !(note.is_empty() && line.trim().is_empty()) {
            note.push_str(line);
        }
        signed = is_signature;
    }
    if !note.trim().is_empty() {
        notes.push(note);
    }
    notes
}

/// The head of another log, as a checkpoint names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedHead {
    /// The writer.
    pub writer: String,
    /// The number of events in its log.
    pub size: u64,
    /// The Merkle root over these events, in hex.
    pub root: String,
}

/// Returns the event of a checkpoint over `head`; it also names the heads of other logs.
pub fn event(head: &Head, others: &[WriterHead], signer: &Signer, at: &Moment) -> EventBody {
    let checkpoint = Checkpoint {
        writer: head.writer().to_owned(),
        size: head.next_seq(),
        root: head.frontier().root(),
    };
    let heads: Vec<NamedHead> = others
        .iter()
        .filter(|other| other.writer != head.writer())
        .map(|other| NamedHead {
            writer: other.writer.clone(),
            size: other.size,
            root: other.root.clone().unwrap_or_default(),
        })
        .collect();
    let mut facts = serde_json::Map::new();
    facts.insert("note".to_owned(), signer.sign(&checkpoint.text()).into());
    facts.insert("heads".to_owned(), serde_json::to_value(heads).unwrap_or_default());
    let mut body = EventBody::new(AuditEventKind::Checkpoint, at.text.clone());
    body.facts = Some(facts);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_what_another_implementation_reads() {
        let signer = Signer::new(&[3; 32]);
        let checkpoint = Checkpoint { writer: "w-1".into(), size: 12, root: Hash([9; 32]) };
        let note = signer.sign(&checkpoint.text());
        let other = tlog_tiles::Checkpoint::from_bytes(checkpoint.text().as_bytes()).unwrap();
        assert_eq!((other.origin(), other.size()), ("toolbooth-audit/w-1", 12));
        assert_eq!(other.hash().0, [9; 32]);
        assert_eq!(Checkpoint::of_note(&note).unwrap(), checkpoint);
        let second = signer.sign(&Checkpoint { size: 13, ..checkpoint }.text());
        assert_eq!(notes(&format!("{note}\n{second}")), [note.clone(), second.clone()]);
        assert_eq!(notes(&format!("{note}{second}")), [note, second]);
        for bad in ["", "x\n1\nAA==\n", "toolbooth-audit/w\n01\nAAAA\n"] {
            assert!(Checkpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
