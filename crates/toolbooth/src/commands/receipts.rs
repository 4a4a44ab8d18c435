//! `receipts`: reads receipts, resolves unknown outcomes, removes old records.
//!
//! Doc: records.md#retention

use std::collections::BTreeSet;

use serde_json::json;
use toolbooth_audit::ledger::{PruneKind, Pruned};
use toolbooth_audit::reads::{IdKind, Page, ReceiptFilter};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::receipt::Receipt;
use toolbooth_proxy::{Operations, ResolveError};

use super::records::{nothing_yet, one, open, unreadable, whole};
use crate::cli::{PruneWhat, Receipts, ResolvedAs};
use crate::compose::Runtime;
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::output;
use crate::retention;
use crate::times::{now, time};
use crate::trust::Trusted;

pub(super) async fn receipts(loaded: Trusted, command: Receipts) -> Result<bool, Failure> {
    match command {
        Receipts::List { tool, caller, call, state, after, limit, shown } => {
            let filter = ReceiptFilter { tool, caller, call, state, after, limit };
            let page = match open(&loaded).await? {
                Some(operations) => operations.receipts(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    Page::default()
                }
            };
            let last = page.found.last().filter(|_| page.more);
            let next = last.map(|receipt| receipt.receipt_id.clone());
            if shown.format.is_json() {
                let mut out = page.document("receipts");
                out.extend(next.map(|next| ("next".to_owned(), json!(next))));
                output::json(&out);
                return Ok(whole(&page.damaged));
            }
            let rows: Vec<Vec<String>> = page
                .found
                .iter()
                .map(|receipt| {
                    vec![
                        receipt.started_at.clone(),
                        receipt.tool_id.clone(),
                        receipt.state.as_str().to_owned(),
                        receipt.effect.as_str().to_owned(),
                        receipt.attempt.to_string(),
                        receipt.receipt_id.clone(),
                    ]
                })
                .collect();
            output::table(&["STARTED", "TOOL", "STATE", "EFFECT", "ATTEMPT", "RECEIPT"], &rows);
            if let Some(next) = next {
                crate::notice(&format!("more follow: --after {next}"));
            }
            Ok(whole(&page.damaged))
        }
        Receipts::Resolve { id, outcome, result, shown } => {
            let result = match result {
                None => None,
                Some(given) => {
                    let text = super::text_argument(&given)?;
                    let value = toolbooth_contracts::json::parse(&text).map_err(|fault| {
                        Failure::usage(format!("the result is no JSON: {}", fault.message))
                            .at("--result")
                    })?;
                    Some(value)
                }
            };
            let runtime = Runtime::build(OfflineGateway::build(loaded).await?).await?;
            let operations = crate::records::operations(std::sync::Arc::clone(&runtime.reads))?;
            let succeeded = outcome == ResolvedAs::Succeeded;
            let id = match of_one_call(&operations, &id).await {
                Ok(found) => found.unwrap_or(id),
                Err(failure) => {
                    runtime.shut_down().await?;
                    return Err(failure);
                }
            };
            let resolved = runtime.proxy.resolve(&operations, &id, succeeded, result).await;
            runtime.shut_down().await?;
            let receipt = resolved.map_err(|error| match error {
                ResolveError::Store(error) => unreadable(error),
                ResolveError::Missing => {
                    Failure::new(FAILED, "not-found", format!("there is no receipt `{id}`"))
                }
                ResolveError::NotInDoubt(_) => {
                    Failure::new(FAILED, "not-in-doubt", error.to_string())
                        .hint("`toolbooth receipts list --state in_doubt` lists them")
                }
                _ => Failure::usage(with_causes(&error)).at("--result"),
            })?;
            one(Some(receipt), "receipt", &id, shown.format)
        }
        Receipts::Prune { before, what, shown } => {
            let wanted = match before {
                Some(before) => {
                    let kinds = match what {
                        PruneWhat::Receipts => vec![PruneKind::Receipts],
                        // The documents are those that only these logs name.
                        PruneWhat::Logs => vec![PruneKind::Logs, PruneKind::Documents],
                        PruneWhat::Audit => vec![PruneKind::Events],
                        PruneWhat::Calls => vec![PruneKind::Calls],
                        PruneWhat::Approvals => vec![PruneKind::Approvals],
                    };
                    let each = |before: String| {
                        kinds.into_iter().map(|kind| (kind, before.clone())).collect::<Vec<_>>()
                    };
                    let before = time(Some(&before), "--before")?;
                    // A mistyped year would remove everything.
                    if before.as_ref().is_some_and(|before| *before > now()) {
                        let failure = Failure::usage("this is in the future").at("--before");
                        return Err(failure.hint("`0s` means now"));
                    }
                    before.map(each)
                }
                None => Some(retention::retained(&loaded)?),
            };
            let wanted = wanted.unwrap_or_default();
            if wanted.is_empty() {
                return Err(Failure::usage("nothing says which records are old")
                    .hint("give `--before`, or say how long records are kept in `[retention]`"));
            }
            let runtime = Runtime::build(OfflineGateway::build(loaded).await?).await?;
            let pruned = prune(&runtime, wanted).await;
            runtime.shut_down().await?;
            let pruned = pruned?;
            if shown.format.is_json() {
                let rows: Vec<_> = pruned
                    .iter()
                    .map(|(kind, pruned)| {
                        json!({
                            "records": kind.as_str(),
                            "removed": pruned.removed,
                            "tombstones": pruned.tombstones,
                        })
                    })
                    .collect();
                output::json(&json!({ "pruned": rows }));
            } else {
                for (kind, pruned) in pruned {
                    output::line(&format!(
                        "{}: {} removed, {} kept as tombstones",
                        kind.as_str(),
                        pruned.removed,
                        pruned.tombstones
                    ));
                }
            }
            Ok(true)
        }
        Receipts::Show { id, shown } => {
            let found = match open(&loaded).await? {
                Some(operations) => find(&operations, &id).await?,
                None => None,
            };
            one(found, "receipt", &id, shown.format)
        }
    }
}

/// Receipts that are shown where an id means several.
const SHOWN_MAX: usize = 10;

/// Returns the ids of the receipts of a call.
async fn of_call(
    operations: &Operations,
    call: &str,
) -> Result<impl Iterator<Item = String>, Failure> {
    let call = Some(call.to_owned());
    let filter = ReceiptFilter { call, limit: SHOWN_MAX, ..ReceiptFilter::default() };
    let receipts = operations.receipts(filter).await.map_err(unreadable)?;
    Ok(receipts.found.into_iter().map(|receipt| receipt.receipt_id))
}

/// Returns the id of the only receipt of a call. An outcome is not written by a part of an id.
async fn of_one_call(operations: &Operations, call: &str) -> Result<Option<String>, Failure> {
    let mut receipts = of_call(operations, call).await?;
    Ok(receipts.next().filter(|_| receipts.next().is_none()))
}

/// Returns the receipt with this id, with this call's id, or with an id that begins with this prefix.
async fn find(operations: &Operations, id: &str) -> Result<Option<Receipt>, Failure> {
    /// A shorter prefix is too ambiguous.
    const PREFIX_MIN: usize = 4;
    let whole = operations.receipt(id).await.map_err(unreadable)?;
    if whole.is_some() {
        return Ok(whole);
    }
    let mut meant: BTreeSet<String> = of_call(operations, id).await?.collect();
    if meant.is_empty() && id.len() < PREFIX_MIN {
        return Ok(None);
    }
    // The id of a call means that call, also where another id begins with it.
    let is_whole = !meant.is_empty();
    let named = match is_whole {
        true => Vec::new(),
        false => operations.named(id, SHOWN_MAX).await.map_err(unreadable)?,
    };
    for named in named {
        match named.kind {
            IdKind::Receipt => drop(meant.insert(named.id)),
            IdKind::Call => meant.extend(of_call(operations, &named.id).await?),
        }
    }
    let mut all = meant.iter();
    match (all.next(), all.next()) {
        (Some(one), None) => operations.receipt(one).await.map_err(unreadable),
        (None, _) => Ok(None),
        _ => {
            let shown: Vec<&str> = meant.iter().take(SHOWN_MAX).map(String::as_str).collect();
            let message = format!("`{id}` may mean several receipts");
            Err(Failure::usage(message).hint(format!("give more of one of {}", shown.join(", "))))
        }
    }
}

/// Removes old records in steps, so that calls continue in between.
pub(super) async fn prune(
    runtime: &Runtime,
    wanted: Vec<(PruneKind, String)>,
) -> Result<Vec<(PruneKind, Pruned)>, Failure> {
    let mut done = Vec::new();
    for (kind, before) in wanted {
        let mut all = Pruned::default();
        loop {
            let pruned = runtime.proxy.prune(kind, before.clone()).await.map_err(unreadable)?;
            all.removed += pruned.removed;
            all.tombstones += pruned.tombstones;
            if pruned == Pruned::default() {
                break;
            }
        }
        done.push((kind, all));
    }
    Ok(done)
}
