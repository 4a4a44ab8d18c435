//! Self-contained proofs that an event is in a log, or that one log is the beginning of another.
//! Each proof is under signed checkpoints.
//!
//! Doc: records.md#proofs

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};

use crate::LedgerReads;
use crate::backend::merkle::{self, Hash, Leaves, leaf_hash};
use crate::backend::pruning::PrunedRange;
use crate::checkpoint::Checkpoint;
pub use crate::error::ProofError;
use crate::note;
use crate::reads::{EventFilter, Include};

/// A proof in its file format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "lowercase", deny_unknown_fields)]
pub enum Proof {
    /// An event is in the log that a checkpoint covers.
    Inclusion {
        /// The event, byte for byte as hashed.
        event: String,
        /// Its place in the log.
        index: u64,
        /// The path to the root, lowest node first, in hex.
        hashes: Vec<String>,
        /// The signed checkpoint.
        checkpoint: String,
    },
    /// The log of one checkpoint is the beginning of the log of another.
    Consistency {
        /// The earlier signed checkpoint.
        first: String,
        /// The later signed checkpoint.
        second: String,
        /// The nodes, in hex.
        hashes: Vec<String>,
    },
}

fn parse(hashes: &[String]) -> Result<Vec<Hash>, ProofError> {
    let hashes: Option<Vec<Hash>> = hashes.iter().map(|text| Hash::parse(text)).collect();
    hashes.ok_or(ProofError::Wrong("a hash is not 64 hex digits"))
}

fn text(hashes: &[Hash]) -> Vec<String> {
    hashes.iter().map(Hash::to_string).collect()
}

impl Proof {
    /// Checks the proof with the key that signs checkpoints, without a store. Returns a sentence
    /// that describes the result.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn check(&self, key: &note::PublicKey) -> Result<String, ProofError> {
        match self {
            Self::Inclusion { event, index, hashes, checkpoint } => {
                let signed = Checkpoint::parse(key.open(checkpoint)?)?;
                let said: AuditEvent = serde_json::from_str(event)
                    .map_err(|_| ProofError::Wrong("the event cannot be read"))?;
                if said.writer != signed.writer || said.seq != *index {
                    return Err(ProofError::Wrong("the event is of another place"));
                }
                let leaf = leaf_hash(event.as_bytes());
                if !merkle::includes(leaf, *index, signed.size, &parse(hashes)?, signed.root) {
                    return Err(ProofError::Wrong("the event is not in the signed log"));
                }
                Ok(format!(
                    "{} of call {} at {} is event {index} of the {} events that {} signed",
                    said.body.event,
                    said.body.call_id.unwrap_or_default(),
                    said.body.time,
                    signed.size,
                    signed.writer
                ))
            }
            Self::Consistency { first, second, hashes } => {
                let (first, second) =
                    (Checkpoint::parse(key.open(first)?)?, Checkpoint::parse(key.open(second)?)?);
                if first.writer != second.writer {
                    return Err(ProofError::Wrong("the checkpoints are of different logs"));
                }
                let hashes = parse(hashes)?;
                let (old, new) = ((first.size, first.root), (second.size, second.root));
                if !merkle::consistent(old.0, old.1, new.0, new.1, &hashes) {
                    return Err(ProofError::Wrong("the earlier log is not the beginning"));
                }
                Ok(format!(
                    "the first {} events of {} are the same in both checkpoints",
                    first.size, first.writer
                ))
            }
        }
    }
}

/// Returns the leaves of the first events of a log, at least `size`; pruned events as subtrees.
async fn leaves(reads: &dyn LedgerReads, writer: &str, size: u64) -> Result<Leaves, ProofError> {
    let heads = reads.heads().await?;
    // A page starts after a place, so the place before the first event is the end of the previous
    // writer's log.
    let before = heads.iter().map(|head| &head.writer).filter(|own| own.as_str() < writer).max();
    let first = before.map(|before| (before.clone(), u64::MAX));
    let mut gone = VecDeque::new();
    let mut after = first.clone();
    loop {
        let page = reads.pruned_ranges(after.take(), 1_000).await?;
        let Some((last, part)) = page.last() else { break };
        after = Some((last.clone(), part.seq));
        let is_past = last.as_str() > writer;
        gone.extend(page.into_iter().filter(|(own, _)| own == writer).map(|(_, part)| part));
        if is_past {
            break;
        }
    }
    let mut leaves = Leaves::default();
    let mut after = first;
    while leaves.size() < size {
        let page = reads.log_page(after.take(), 1_000, Include::Events).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.writer.clone(), last.seq));
        for entry in page.iter().filter(|entry| entry.writer == writer) {
            while let Some(part) = gone.pop_front_if(|part: &mut PrunedRange| part.seq < entry.seq)
            {
                leaves.push(part.size, part.root);
            }
            leaves.push(1, leaf_hash(entry.bytes.as_bytes()));
        }
        if page.iter().any(|entry| entry.writer.as_str() > writer) {
            break;
        }
    }
    if leaves.size() < size {
        let message = format!("the log of {writer} has {} events, not {size}", leaves.size());
        return Err(ProofError::Missing(message));
    }
    Ok(leaves)
}

/// Returns the checkpoints of a writer with their notes, oldest first.
async fn checkpoints(
    reads: &dyn LedgerReads,
    writer: &str,
) -> Result<Vec<(Checkpoint, String)>, ProofError> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = reads.log_page(after.take(), 1_000, Include::Milestones).await?;
        let Some(last) = page.last() else { return Ok(found) };
        after = Some((last.writer.clone(), last.seq));
        for entry in page.iter().filter(|entry| entry.writer == writer) {
            let event: Option<AuditEvent> = serde_json::from_str(&entry.bytes).ok();
            let note = event
                .filter(|event| event.body.event == AuditEventKind::Checkpoint)
                .and_then(|event| Some(event.body.facts?.get("note")?.as_str()?.to_owned()));
            if let Some(note) = note
                && let Ok(checkpoint) = Checkpoint::of_note(&note)
            {
                found.push((checkpoint, note));
            }
        }
    }
}

/// Returns the proof that the last event of a call is in its log.
///
/// # Errors
/// [`ProofError::Missing`] if the call does not exist or no checkpoint covers it yet;
/// [`ProofError::Store`].
pub async fn inclusion(reads: &dyn LedgerReads, call_id: &str) -> Result<Proof, ProofError> {
    let filter =
        EventFilter { call: Some(call_id.to_owned()), limit: 100, ..EventFilter::default() };
    let events = reads.events(filter).await?.found;
    let Some(event) = events.iter().map(|placed| &placed.event).next_back() else {
        return Err(ProofError::Missing(format!("there is no event of a call `{call_id}`")));
    };
    let covering = checkpoints(reads, &event.writer).await?;
    let Some((checkpoint, note)) =
        covering.into_iter().find(|(checkpoint, _)| checkpoint.size > event.seq)
    else {
        let message = "no checkpoint covers the call yet; one is signed at an interval, and when the gateway stops";
        return Err(ProofError::Missing(message.to_owned()));
    };
    let leaves = leaves(reads, &event.writer, checkpoint.size).await?;
    let hashes = leaves
        .inclusion(event.seq, checkpoint.size)
        .ok_or(ProofError::Wrong("the event is beyond its checkpoint"))?;
    let bytes = crate::backend::chain::bytes_of(event);
    Ok(Proof::Inclusion { event: bytes, index: event.seq, hashes: text(&hashes), checkpoint: note })
}

/// Returns the proof that the log of the note `first` is the beginning of the log of `second`.
///
/// # Errors
/// [`ProofError`].
pub async fn consistency(
    reads: &dyn LedgerReads,
    first: &str,
    second: &str,
) -> Result<Proof, ProofError> {
    let (old, new) = (Checkpoint::of_note(first)?, Checkpoint::of_note(second)?);
    if old.writer != new.writer {
        return Err(ProofError::Missing("the checkpoints are of different logs".to_owned()));
    }
    if old.size > new.size {
        return Err(ProofError::Missing("the first checkpoint is the later one".to_owned()));
    }
    let leaves = leaves(reads, &new.writer, new.size).await?;
    let missing = || {
        let told = "there is no proof of a checkpoint over nothing, nor of one among events that were pruned";
        ProofError::Missing(told.to_owned())
    };
    let hashes = leaves.consistency(old.size, new.size).ok_or_else(missing)?;
    Ok(Proof::Consistency {
        first: first.to_owned(),
        second: second.to_owned(),
        hashes: text(&hashes),
    })
}
