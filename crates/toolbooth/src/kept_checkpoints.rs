//! The checkpoints in the data folder. A store that lacks one was rolled back.
//!
//! Doc: records.md#tamper-evidence

use toolbooth_audit::checkpoint::{self, Checkpoint};
use toolbooth_contracts::causes::with_causes;
use toolbooth_store::sqlite::RESTORED;

use crate::config::Loaded;
use crate::failure::Failure;
use crate::records::reads;

/// Returns the newest checkpoints in the data folder, for verification; none without their file.
pub(crate) fn kept_notes(loaded: &Loaded) -> Vec<String> {
    let text = std::fs::read(loaded.data.join("checkpoint.note")).unwrap_or_default();
    checkpoint::notes(&String::from_utf8_lossy(&text))
}

/// Whether the store in the data folder was restored, and no operator has accepted that.
pub(crate) fn is_restored(loaded: &Loaded) -> bool {
    loaded.config.store.url.is_none() && loaded.data.join(RESTORED).exists()
}

/// Whether the store was restored, or lacks a checkpoint in the data folder.
pub(crate) async fn is_rolled_back(loaded: &Loaded) -> Result<bool, Failure> {
    if is_restored(loaded) {
        return Ok(true);
    }
    let is_there = loaded.data.join("checkpoint.note").exists();
    let notes = kept_notes(loaded);
    let kept = notes.iter().map(|note| Checkpoint::of_note(note));
    // With a damaged checkpoint file, the state of the store is unknown, so it counts as rolled back.
    let Ok(kept) = kept.collect::<Result<Vec<_>, _>>() else { return Ok(true) };
    if kept.is_empty() {
        return Ok(is_there);
    }
    let Some(reads) = reads(loaded, None).await? else { return Ok(true) };
    let heads = reads.heads().await.map_err(|error| Failure::store(with_causes(&error)))?;
    let has = |kept: &Checkpoint| {
        heads.iter().any(|head| head.writer == kept.writer && head.size >= kept.size)
    };
    Ok(!kept.iter().all(has))
}
