//! `store`: backs up and restores the records, and returns unused space.

use std::path::Path;

use serde_json::json;
use toolbooth_contracts::causes::with_causes;
use toolbooth_store::sqlite::{self, MaintenanceError};

use crate::cli::Store;
use crate::failure::{FAILED, Failure, OUT_OF_REACH, USAGE};
use crate::output;
use crate::trust::Trusted;

pub(super) async fn store(loaded: Trusted, command: Store) -> Result<bool, Failure> {
    crate::records::only_sqlite(&loaded)?;
    let (data, shown, what) = match &command {
        Store::Backup { to, shown } => {
            (loaded.data.clone(), shown, format!("the records are copied to {}", to.display()))
        }
        Store::Restore { from, shown } => (
            loaded.data.clone(),
            shown,
            format!("the records of {} are in their place", from.display()),
        ),
        Store::Vacuum { shown } => {
            (loaded.data.clone(), shown, "the space of removed records is free".to_owned())
        }
    };
    let format = shown.format;
    let is_restore = matches!(command, Store::Restore { .. });
    let copy = match &command {
        Store::Backup { to, .. } => Some(to.clone()),
        _ => None,
    };
    let working = tokio::task::spawn_blocking(move || match command {
        Store::Backup { to, .. } => sqlite::backup(&data, &to).map(|()| None),
        Store::Restore { from, .. } => sqlite::restore(&data, &from),
        Store::Vacuum { .. } => sqlite::vacuum(&data).map(|()| None),
    });
    let kept = working
        .await
        .map_err(|error| Failure::store(with_causes(&error)))?
        .map_err(|error| failure(&error))?;
    if copy.is_some_and(|copy| is_readable_by_tools(&loaded, &copy)) {
        crate::notice(
            "warning: the copy has the keys of the store, and tools without a sandbox may read the folder that it is in; move it away",
        );
    }
    if format.is_json() {
        let mut out = json!({ "ok": true });
        if let (Some(kept), Some(members)) = (&kept, out.as_object_mut()) {
            members.insert("kept".to_owned(), json!(kept.display().to_string()));
        }
        output::json(&out);
        return Ok(true);
    }
    output::line(&what);
    if let Some(kept) = kept {
        output::line(&format!("the previous store is in {}", kept.display()));
    }
    if is_restore {
        output::line(
            "calls since the backup are unknown now; `toolbooth audit accept-restore` takes the records as they are",
        );
    }
    Ok(true)
}

/// Whether a folder is in the folder of the configuration, which tools without a sandbox may read, and not in the
/// data folder.
fn is_readable_by_tools(loaded: &Trusted, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = real(folder);
    folder.starts_with(real(&loaded.folder)) && !folder.starts_with(real(&loaded.data))
}

fn failure(error: &MaintenanceError) -> Failure {
    let exit = match error {
        MaintenanceError::There(_) | MaintenanceError::NoBackup(_) => USAGE,
        MaintenanceError::InUse => FAILED,
        _ => OUT_OF_REACH,
    };
    let failure = Failure::new(exit, "store", with_causes(error));
    match error {
        MaintenanceError::InUse => failure.hint("stop the gateways that use it first"),
        _ => failure,
    }
}
