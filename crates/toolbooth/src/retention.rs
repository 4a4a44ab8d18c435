//! Converts `[retention]` into the records to remove.
//!
//! Doc: records.md#retention

use toolbooth_audit::ledger::PruneKind;

use crate::config::Loaded;
use crate::failure::Failure;
use crate::times::time;

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
    for (kind, age, place) in kinds {
        let Some(age) = age else { continue };
        if let Some(before) = time(Some(age), place)? {
            wanted.push((kind, before));
        }
    }
    Ok(wanted)
}
