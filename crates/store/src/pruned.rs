//! Shortening a log: what is gone is vouched for by the signed checkpoint over it.
//!
//! Doc: records.md#retention

use serde_json::Value;
use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::merkle::{Frontier, Hash, leaf_hash};
use toolbooth_audit::reads::PrunedLog;

/// The key that the first event of a log names.
fn signing_key(started: &str) -> Option<String> {
    let started: Value = serde_json::from_str(started).ok()?;
    started.pointer("/facts/signingKey")?.as_str().map(str::to_owned)
}

/// Of which records an event says that those from before a time were pruned, and the time.
fn pruned_before(body: &str) -> Option<(String, String)> {
    if !body.contains("\"RECEIPTS_PRUNED\"") {
        return None;
    }
    let event: Value = serde_json::from_str(body).ok()?;
    let of = |name: &str| event.pointer(name)?.as_str().map(str::to_owned);
    Some((of("/facts/records")?, of("/facts/before")?))
}

/// What is kept of the first `size` events of a log: what was kept of it before, and the events
/// since, where all of that fits the checkpoint event that covers it. What does not fit is
/// evidence, and must not be removed.
pub(crate) fn fold(
    old: Option<PrunedLog>,
    bodies: &[String],
    size: u64,
    checkpoint: &str,
) -> Result<PrunedLog, &'static str> {
    let mut frontier = match &old {
        None => Frontier::default(),
        Some(old) => {
            let peaks: Option<Vec<Hash>> = old.peaks.iter().map(|text| Hash::parse(text)).collect();
            peaks
                .and_then(|peaks| Frontier::restore(old.size, peaks))
                .ok_or("its beginning cannot be read")?
        }
    };
    let (mut receipts_before, mut logs_before) = match &old {
        None => (None, None),
        Some(old) => (old.receipts_before.clone(), old.logs_before.clone()),
    };
    let (mut last, key) = match old {
        None => (None, bodies.first().and_then(|started| signing_key(started))),
        Some(old) => (Some(old.last_leaf), old.key),
    };
    for body in bodies {
        match pruned_before(body) {
            Some((kind, before)) if kind == "receipts" => {
                receipts_before = Some(before).max(receipts_before);
            }
            Some((kind, before)) if kind == "logs" => logs_before = Some(before).max(logs_before),
            _ => (),
        }
        let leaf = leaf_hash(body.as_bytes());
        frontier.push(leaf);
        last = Some(leaf.to_string());
    }
    let event: Value =
        serde_json::from_str(checkpoint).map_err(|_| "a checkpoint is unreadable")?;
    let note = event.pointer("/facts/note").and_then(Value::as_str).unwrap_or_default();
    let signed = Checkpoint::of_note(note).ok();
    let sound = frontier.size() == size
        && signed.is_some_and(|signed| signed.size == size && signed.root == frontier.root());
    let (Some(last_leaf), true) = (last, sound) else {
        return Err("it does not fit its checkpoint; `audit verify` tells more");
    };
    Ok(PrunedLog {
        size,
        last_leaf,
        peaks: frontier.peaks().iter().map(Hash::to_string).collect(),
        note: note.to_owned(),
        key,
        receipts_before,
        logs_before,
    })
}
