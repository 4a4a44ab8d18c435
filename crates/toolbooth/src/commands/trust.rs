//! `trust`: shows the processes and access of a configuration, and records its trust.
//!
//! Doc: trust.md#commands

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::config;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Format};
use crate::terminal;
use crate::trust::{Judged, TrustFile};

/// The action on a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrustAction {
    /// Shows it, and trusts it after confirmation.
    Ask,
    /// Shows it, and trusts it.
    Yes,
    /// Shows it.
    Show,
}

/// Returns the selected configuration file: a file, one in a folder, or the one in use.
fn file(given: Option<&Path>, configuration: Option<&Path>) -> Result<PathBuf, Failure> {
    let file = match given {
        Some(path) if path.is_dir() => path.join(config::FILE),
        Some(path) => path.to_owned(),
        None => config::configuration_path(configuration)?,
    };
    // A registry file without a configuration is used too.
    let beside = file.parent().map(|folder| folder.join(config::REGISTRY));
    if file.is_file() || beside.is_some_and(|registry| registry.is_file()) {
        return Ok(file);
    }
    Err(Failure::usage("there is no configuration to trust")
        .at(file.display().to_string())
        .hint("name it: `toolbooth trust FILE`; `toolbooth init` writes one"))
}

pub(super) fn trust(
    given: Option<&Path>,
    (configuration, data): (Option<&Path>, Option<&Path>),
    action: TrustAction,
    format: Format,
) -> Result<bool, Failure> {
    let file = file(given, configuration)?;
    let loaded = config::load_at(&file, data)?;
    let path = std::path::absolute(&file).unwrap_or(file);
    let judged = Judged::of(loaded, path.clone())?;
    let (told, was_trusted) = (judged.told(), judged.is_trusted());
    if !format.is_json() {
        told.iter().for_each(|line| output::foreign(line));
    }
    let shown = path.display();
    let is_trusted = match action {
        TrustAction::Show => was_trusted,
        // The stored state is updated, so that a removed entry that returns is asked for again.
        _ if was_trusted => judged.keep(|_| true).map(|()| true)?,
        TrustAction::Yes => judged.keep(|_| true).map(|()| true)?,
        TrustAction::Ask if !terminal::can_ask(format) => {
            return Err(Failure::usage("there is no terminal to ask on")
                .at(shown.to_string())
                .hint("`toolbooth trust --yes` trusts it without a question; `--trust FILE` names it for one run"));
        }
        TrustAction::Ask => {
            terminal::confirm("trust it?") && judged.keep(|_| true).map(|()| true)?
        }
    };
    if format.is_json() {
        let changes: Vec<_> = judged
            .changes
            .iter()
            .map(|change| json!({ "entry": change.name, "before": change.before, "now": change.now }))
            .collect();
        output::json(&json!({
            "file": path, "trusted": is_trusted, "changes": changes, "told": told,
        }));
        return Ok(is_trusted);
    }
    output::foreign(&match (is_trusted, was_trusted) {
        (true, true) => format!("{shown} is trusted"),
        (true, false) => format!("{shown} is trusted now"),
        (false, _) => format!("{shown} is not trusted"),
    });
    Ok(is_trusted)
}

/// Prints the trusted configurations.
pub(super) fn list(format: Format) -> Result<bool, Failure> {
    let contents = match TrustFile::of_user() {
        Some(own) => own.read()?,
        None => Default::default(),
    };
    if format.is_json() {
        let all: Vec<_> = contents
            .configurations
            .iter()
            .map(|(file, kept)| {
                json!({ "file": file, "trustedAt": kept.trusted_at, "entries": kept.entries })
            })
            .collect();
        output::json(&json!({ "configurations": all }));
        return Ok(true);
    }
    let rows: Vec<Vec<String>> = contents
        .configurations
        .iter()
        .map(|(file, kept)| {
            vec![kept.trusted_at.clone(), kept.entries.len().to_string(), file.clone()]
        })
        .collect();
    output::table(&["SINCE", "ENTRIES", "CONFIGURATION"], &rows);
    Ok(true)
}

/// Removes the trust of a configuration, which can be deleted already.
pub(super) fn forget(
    given: Option<&Path>,
    configuration: Option<&Path>,
    format: Format,
) -> Result<bool, Failure> {
    let file = match given {
        Some(path) if path.is_dir() => path.join(config::FILE),
        Some(path) => path.to_owned(),
        None => config::configuration_path(configuration)?,
    };
    let name = crate::trust::name(&std::path::absolute(&file).unwrap_or(file));
    let mut was_known = false;
    if let Some(own) = TrustFile::of_user() {
        own.change(|contents| was_known = contents.configurations.remove(&name).is_some())?;
    }
    if !was_known {
        return Err(Failure::new(FAILED, "not-found", "it was not trusted").at(name));
    }
    match format.is_json() {
        true => output::json(&json!({ "file": name, "trusted": false })),
        false => output::foreign(&format!("{name} is not trusted any more")),
    }
    Ok(true)
}
