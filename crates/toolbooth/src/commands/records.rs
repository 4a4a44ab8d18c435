//! `logs`, and functions shared by all commands that read records.

use serde::Serialize;
use serde_json::Value;
use toolbooth_audit::reads::{DamagedRow, LogFilter, Page};
use toolbooth_contracts::causes::with_causes;
use toolbooth_proxy::Operations;

use crate::cli::{LogFilterArgs, Logs};
use crate::config::Loaded;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Format};
use crate::records;
use crate::times::time;
use crate::trust::Trusted;

/// Opens the records; `None` if nothing was ever recorded.
pub(super) async fn open(loaded: &Loaded) -> Result<Option<Operations>, Failure> {
    match records::reads(loaded, None).await? {
        Some(reads) => records::operations(reads).map(Some),
        None => Ok(None),
    }
}

/// Opens the records for commands that require them.
pub(super) async fn need(loaded: &Loaded) -> Result<Operations, Failure> {
    open(loaded).await?.ok_or_else(|| {
        Failure::store("nothing was recorded yet").at(records::store_location(loaded))
    })
}

pub(super) fn unreadable(error: toolbooth_audit::LedgerError) -> Failure {
    Failure::store(with_causes(&error))
}

/// Reports damaged rows. Returns whether there are none.
pub(super) fn whole(damaged: &[DamagedRow]) -> bool {
    for row in damaged {
        crate::notice(&format!("{row}; `toolbooth audit verify` looks at the whole store"));
    }
    damaged.is_empty()
}

pub(super) fn nothing_yet(loaded: &Loaded) {
    crate::notice(&format!("nothing was recorded yet under {}", records::store_location(loaded)));
}

pub(super) async fn logs(loaded: Trusted, command: Logs) -> Result<bool, Failure> {
    match command {
        Logs::Query { filter, shown } => {
            let LogFilterArgs {
                tool,
                agent,
                caller,
                code,
                turn,
                phase,
                epic,
                call,
                error,
                since,
                until,
                limit,
            } = *filter;
            let filter = LogFilter {
                tool,
                agent,
                caller,
                code,
                turn,
                phase,
                epic,
                call,
                error,
                since: time(since.as_deref(), "--since")?,
                until: time(until.as_deref(), "--until")?,
                limit,
            };
            let page = match open(&loaded).await? {
                Some(operations) => operations.agent_logs(filter).await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    Page::default()
                }
            };
            if shown.format.is_json() {
                output::json(&page.document("logs"));
                return Ok(whole(&page.damaged));
            }
            let rows: Vec<Vec<String>> = page
                .found
                .iter()
                .map(|log| {
                    let code = log.error_code.map_or("ok", |code| code.as_str());
                    vec![
                        log.timestamp.clone(),
                        log.tool_name.clone(),
                        log.agent_id.clone().unwrap_or_default(),
                        code.to_owned(),
                        format!("{:.1} ms", log.duration_ms),
                        log.id.clone(),
                    ]
                })
                .collect();
            output::table(&["TIME", "TOOL", "AGENT", "OUTCOME", "DURATION", "LOG"], &rows);
            Ok(whole(&page.damaged))
        }
        Logs::Show { id, shown } => {
            let found = match open(&loaded).await? {
                Some(operations) => operations.agent_log(&id).await.map_err(unreadable)?,
                None => None,
            };
            one(found, "agent log", &id, shown.format)
        }
    }
}

pub(super) fn one(
    found: Option<impl Serialize>,
    what: &str,
    id: &str,
    format: Format,
) -> Result<bool, Failure> {
    let Some(found) = found else {
        return Err(Failure::new(FAILED, "not-found", format!("there is no {what} `{id}`")));
    };
    let value = serde_json::to_value(&found).unwrap_or_default();
    match (format, &value) {
        (Format::Table, Value::Object(members)) => {
            for (name, value) in members {
                output::foreign(&format!("{name:<16}{}", output::cell(Some(value))));
            }
        }
        _ => output::json(&value),
    }
    Ok(true)
}
