//! Converts `[retention]` into the records to remove.
//!
//! Doc: records.md#retention

use toolbooth_audit::ledger::PruneKind;

use crate::config::Loaded;
use crate::failure::Failure;
use crate::times::{duration, time};

/// Returns the kinds of records that `[retention]` removes, each with the time before which it does.
pub(crate) fn retained(loaded: &Loaded) -> Result<Vec<(PruneKind, String)>, Failure> {
    let retention = &loaded.config.retention;
    let kinds = [
        (PruneKind::Receipts, &retention.receipts, "retention.receipts"),
        (PruneKind::Logs, &retention.logs, "retention.logs"),
        // After the logs that name them.
        (PruneKind::Documents, &retention.logs, "retention.logs"),
        (PruneKind::Events, &retention.audit, "retention.audit"),
        (PruneKind::Calls, &retention.calls, "retention.calls"),
        (PruneKind::Approvals, &retention.approvals, "retention.approvals"),
    ];
    let mut wanted = Vec::new();
    for (kind, age, setting) in kinds {
        let Some(age) = age else { continue };
        check(age, setting)?;
        if let Some(before) = time(Some(age), setting)? {
            wanted.push((kind, before));
        }
    }
    Ok(wanted)
}

/// Checks that records are kept for some time: not for none, and not until a date.
fn check(age: &str, setting: &'static str) -> Result<(), Failure> {
    if duration(age).is_some_and(|age| !age.is_zero()) {
        return Ok(());
    }
    let message = format!("records cannot be kept for `{}`", age.escape_debug());
    let failure = Failure::configuration(message).at(setting);
    Err(failure.hint("give a duration above zero, such as `12h` or `90d`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_for_a_duration_above_zero() {
        for (age, is_valid) in [
            ("90d", true),
            ("1s", true),
            ("0d", false),
            ("0s", false),
            ("2030-01-01T00:00:00Z", false),
        ] {
            assert_eq!(check(age, "retention.logs").is_ok(), is_valid, "{age}");
        }
    }
}
