//! Verifies an export in JSON Lines, and defines its last line.
//!
//! Doc: records.md#exports

use std::io::{BufRead, Error, ErrorKind, Read as _};

use serde::{Deserialize, Serialize};

use super::TrustAnchors;
use super::chain::Chains;
use super::event_fields::Read;
use super::report::{Problems, VerifyReport};
use super::survey::{LogFindings, is_milestone};
use crate::backend::merkle::Hash;
use crate::backend::pruning::PrunedRange;
use crate::reads::{PrunedLog, RawEntry, WriterHead};

/// The last line of an export: the end of each log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ends {
    /// The ends of the logs.
    pub(crate) heads: Vec<ExportedHead>,
}

/// The end of a log, and its pruned beginning.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExportedHead {
    pub(crate) writer: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_leaf: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pruned: Option<PrunedLog>,
}

impl From<&WriterHead> for ExportedHead {
    fn from(head: &WriterHead) -> Self {
        Self {
            writer: head.writer.clone(),
            size: head.size,
            last_leaf: head.last_leaf.clone(),
            root: head.root.clone(),
            pruned: head.pruned.clone(),
        }
    }
}

impl From<ExportedHead> for WriterHead {
    fn from(end: ExportedHead) -> Self {
        Self {
            writer: end.writer,
            size: end.size,
            last_leaf: end.last_leaf,
            root: end.root,
            pruned: end.pruned,
            row: None,
        }
    }
}

/// The last line of an export of a part of the log.
pub(crate) const PART: &str = r#"{"part":true}"#;

/// A line for the remaining hash of pruned events.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoneLine {
    gone: GonePart,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GonePart {
    writer: String,
    seq: u64,
    size: u64,
    root: String,
}

/// Returns the line for a pruned range of a log.
pub(crate) fn pruned_line(writer: &str, part: &PrunedRange) -> String {
    let (writer, root) = (writer.to_owned(), part.root.to_string());
    let gone = GonePart { writer, seq: part.seq, size: part.size, root };
    serde_json::to_string(&GoneLine { gone }).unwrap_or_default()
}

/// Parses such a line; only the canonical form is accepted.
fn gone_of(text: &str) -> Option<(String, PrunedRange)> {
    let line: GoneLine = serde_json::from_str(text).ok()?;
    let GonePart { writer, seq, size, root } = line.gone;
    let part = PrunedRange { seq, size, root: Hash::parse(&root)? };
    (pruned_line(&writer, &part) == text).then_some((writer, part))
}

/// Maximum length of a line of an export, in bytes.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Reads the next line without its newline; returns whether it had one.
fn line(reader: &mut impl BufRead, text: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    text.clear();
    if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', text)? == 0 {
        return Ok(None);
    }
    let whole = text.pop_if(|byte| *byte == b'\n').is_some();
    Ok(Some(whole))
}

/// Returns the last line, and the ends of the logs if it names them.
fn last_line(mut reader: impl BufRead) -> std::io::Result<(Vec<u8>, Option<Vec<WriterHead>>)> {
    let (mut text, mut last, mut ended) = (Vec::new(), Vec::new(), false);
    while let Some(whole) = line(&mut reader, &mut text)? {
        std::mem::swap(&mut last, &mut text);
        ended = whole;
    }
    let ends: Option<Ends> = serde_json::from_slice(&last).ok();
    // The trailer has only one valid form, so that every change of it is detected.
    let ends = ends
        .filter(|ends| ended && serde_json::to_vec(ends).is_ok_and(|canonical| canonical == last));
    let heads = ends.map(|ends| ends.heads.into_iter().map(WriterHead::from).collect());
    Ok((last, heads))
}

/// Verifies an export in JSON Lines. `open` opens it. It is read three times: for the ends of the
/// logs, for the milestones, and completely.
///
/// # Errors
/// If the file cannot be read, or is not a complete export.
pub fn export<R: BufRead>(
    open: impl Fn() -> std::io::Result<R>,
    known: TrustAnchors,
) -> std::io::Result<VerifyReport> {
    let (last, heads) = last_line(open()?)?;
    if last == PART.as_bytes() {
        let told = "it is a part of a log, which cannot be verified; export all of it";
        return Err(Error::new(ErrorKind::InvalidData, told));
    }
    let mut cut = Problems::default();
    if heads.is_none() {
        let message = "the export does not end with the line that names the ends of its logs";
        cut.add("truncated", "", None, message);
    }
    let mut survey = LogFindings::of(known, heads.as_deref().unwrap_or_default());
    let (mut reader, mut text) = (open()?, Vec::new());
    while line(&mut reader, &mut text)?.is_some() {
        if let Ok(bytes) = std::str::from_utf8(&text)
            && is_milestone(bytes)
        {
            survey.learn(bytes);
        }
    }
    let (expected, surveyed) = survey.finish();
    let mut chains = Chains::new(&expected);
    let mut reader = open()?;
    let mut place = (String::new(), 0);
    let mut rest = heads.is_some();
    let mut readable = false;
    while line(&mut reader, &mut text)?.is_some() {
        if rest && text == last {
            // No line may follow the trailer, not even another trailer.
            rest = false;
            continue;
        }
        let (writer, seq) = place;
        let bytes = String::from_utf8_lossy(&text).into_owned();
        if let Some((writer, part)) = gone_of(&bytes) {
            chains.gone(&writer, &part);
            place = (writer, part.seq.saturating_add(part.size));
            continue;
        }
        let mut read = Read::of(RawEntry { writer, seq, bytes, ..RawEntry::default() });
        if let Some(fields) = &read.fields {
            readable = true;
            (read.writer, read.seq) = (fields.writer.clone(), fields.seq);
        }
        chains.event(&read);
        place = (read.writer, read.seq.saturating_add(1));
    }
    if !readable && heads.is_none() {
        return Err(Error::new(ErrorKind::InvalidData, "it is not an export in JSON Lines"));
    }
    let none = std::collections::BTreeMap::new();
    let (events, found) = match &heads {
        Some(heads) => chains.finish(heads, heads, &none),
        None => chains.look_back(),
    };
    Ok(Problems::report([cut, surveyed, found], events))
}
