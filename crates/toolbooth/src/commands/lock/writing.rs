//! Writes the lock file, and the pins.
//!
//! Doc: registry.md#the-lock

use std::path::Path;

use toolbooth_registry::lock::{Lock, LockFile, ToolDiff};

use super::Compared;
use crate::failure::{Failure, OUT_OF_REACH};

/// Writes a file atomically.
pub(in crate::commands) fn replace_file(path: &Path, text: &str) -> Result<(), Failure> {
    crate::files::replace(path, text.as_bytes()).map_err(|error| {
        let message = format!("the file cannot be written: {error}");
        Failure::new(OUT_OF_REACH, "cannot-write", message).at(path.display().to_string())
    })
}

/// Writes the lock file with the previously approved tools and the chosen ones. `all` states whether the
/// chosen ones are all differences.
pub(super) async fn write_lock(
    compared: Compared,
    chosen: &[ToolDiff],
    all: bool,
) -> Result<(String, LockFile), Failure> {
    // Only the pins of configured sources are written, because the lock file is shared and the pins are not.
    let mut lock = match &compared.before {
        Lock::FirstUse(pins) => {
            pins.of_sources(|source| compared.states.iter().any(|state| state.source == source))
        }
        _ => compared.lock.clone(),
    };
    chosen.iter().for_each(|diff| compared.approve(&mut lock, diff));
    if all && compared.all_answered() {
        lock.complete();
    }
    let loaded = compared.record(chosen).await?;
    let path = loaded.lock();
    replace_file(&path, &lock.to_text())?;
    Ok((path.display().to_string(), lock))
}

/// Adds the chosen tools to the current pins, because another process can have pinned tools meanwhile.
///
/// A gateway that starts records the tools in `same`.
pub(super) async fn write_pins(
    compared: Compared,
    chosen: &[ToolDiff],
    same: &[&str],
) -> Result<String, Failure> {
    let mut approved = compared.lock.clone();
    chosen.iter().for_each(|diff| compared.approve(&mut approved, diff));
    let must_exist = compared.lock != LockFile::empty();
    let loaded = compared.record(chosen).await?;
    let pins = loaded.pins();
    if !(chosen.is_empty() && same.is_empty()) {
        pins.change(must_exist, |kept| {
            for id in same {
                kept.forget_record(id);
            }
            for diff in chosen {
                kept.take_over(&approved, &diff.tool_id);
                kept.mark_approved(&diff.tool_id);
            }
        })?;
    }
    Ok(pins.path().display().to_string())
}
