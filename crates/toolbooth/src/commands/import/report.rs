//! Prints the report of `import`.
//!
//! Doc: importing.md

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolbooth_import::permissions::{Change, Switched};

use crate::import::trial::{Attempt, Trial};
use crate::import::{Backup, Installed};
use crate::output::{self, Format};

/// A server that the client keeps, with the reason.
pub(super) type KeptServer = (String, String);

/// The data of the report of one run.
pub(super) struct Report<'r> {
    pub(super) format: Format,
    pub(super) is_rehearsal: bool,
    pub(super) file: &'r Path,
    pub(super) target: &'r Path,
    pub(super) added: Vec<String>,
    pub(super) kept: Vec<String>,
    pub(super) notices: Vec<String>,
    pub(super) trial: &'r Trial,
    pub(super) installed: Option<Installed>,
    /// Capabilities that the client loses.
    pub(super) less: Vec<String>,
    /// Old and new names of tools, by server.
    pub(super) names: Vec<(String, String, String)>,
    /// Servers that the client keeps.
    pub(super) stays: Vec<KeptServer>,
}

/// Returns the capabilities that the client loses, as sentences.
pub(super) fn less(trial: &Trial, switched: &[Switched]) -> Vec<String> {
    let mut less = Vec::new();
    for one in switched {
        let attempt = trial.attempts.get(&("servers", one.name.clone()));
        match attempt {
            Some(Attempt::Answered(state)) => {
                let quarantined = state.quarantined.iter().map(|text| ("in quarantine", text));
                let problems = state.problems.iter().map(|text| ("left out", text));
                for (what, text) in quarantined.chain(problems) {
                    less.push(format!("{}: {what}: {text}", one.name));
                }
            }
            Some(other) => {
                let reason = other.reason().unwrap_or_default();
                less.push(format!("{}: no tools were listed: {reason}", one.name));
            }
            None => less.push(format!("{}: it was not imported", one.name)),
        }
    }
    less.push(
        "questions of these servers (elicitation, sampling, roots) are not passed on by this version"
            .to_owned(),
    );
    less
}

/// Returns the names that change.
pub(super) fn names(switched: &[Switched]) -> Vec<(String, String, String)> {
    let named = |one: &Switched| -> Vec<(String, String, String)> {
        let passed = one.tools.iter().filter_map(|tool| {
            Some((one.name.clone(), tool.name.clone(), tool.wire_name.clone()?))
        });
        passed.collect()
    };
    switched.iter().flat_map(named).collect()
}

/// Prints that a client's file is restored.
pub(super) fn undone(
    path: &Path,
    (backup, undone, others): &(PathBuf, PathBuf, Vec<Backup>),
    secrets: &[String],
    format: Format,
) {
    if format.is_json() {
        output::json(&json!({
            "ok": true,
            "file": path,
            "restored": backup,
            "undone": undone,
            "permissions": others,
            "secrets": secrets,
        }));
        return;
    }
    output::line(&format!("{} is as it was in {}", path.display(), backup.display()));
    for other in others {
        output::line(&format!(
            "{} is as it was in {}",
            other.file.display(),
            other.backup.display()
        ));
    }
    crate::notice(&format!("the replaced settings are kept in {}", undone.display()));
    for secret in secrets {
        crate::notice(&format!("a secret is still kept in `{secret}`"));
    }
}

fn changes(list: &[Change]) -> Vec<String> {
    let line = |change: &Change| {
        let new = match change.new.as_slice() {
            [] => "nothing: no tool of this name is passed on".to_owned(),
            names => names.join(", "),
        };
        format!("  {}: {} → {new}", change.list, change.old)
    };
    list.iter().map(line).collect()
}

impl Report<'_> {
    pub(super) fn print(&self) {
        if self.format.is_json() {
            output::json(&self.json());
        } else {
            self.text();
        }
    }

    fn json(&self) -> Value {
        let stays: Vec<Value> =
            self.stays.iter().map(|(name, why)| json!({ "server": name, "reason": why })).collect();
        let is_done = self.installed.is_some() || self.stays.is_empty();
        let mut out = json!({
            "ok": is_done,
            "file": self.file,
            "configuration": self.target,
            "added": self.added,
            "kept": self.kept,
            "notices": self.notices,
            "servers": self.trial.json(),
        });
        let Some(members) = out.as_object_mut() else { return out };
        if !stays.is_empty() {
            members.insert("stays".to_owned(), json!(stays));
        }
        if let Some(installed) = &self.installed {
            let mut permissions: Vec<Value> = installed
                .permissions
                .iter()
                .map(|(own, changes)| {
                    json!({ "file": own.file, "backup": own.backup, "changes": changes })
                })
                .collect();
            if !installed.own.is_empty() {
                permissions.push(json!({
                    "file": self.file, "backup": installed.backup, "changes": installed.own,
                }));
            }
            let names: Vec<Value> = self
                .names
                .iter()
                .map(|(server, old, new)| json!({ "server": server, "old": old, "new": new }))
                .collect();
            members.insert("backup".to_owned(), json!(installed.backup));
            members.insert("less".to_owned(), json!(self.less));
            members.insert("names".to_owned(), json!(names));
            members.insert("permissions".to_owned(), json!(permissions));
        }
        out
    }

    fn text(&self) {
        let verb = if self.is_rehearsal { "would be added" } else { "added" };
        let target = self.target.display();
        for section in &self.added {
            output::foreign(&format!("{target}: [{section}] {verb}"));
        }
        for section in &self.kept {
            output::foreign(&format!("{target}: [{section}] is there already and stays"));
        }
        for notice in &self.notices {
            output::foreign(&format!("  note: {notice}"));
        }
        self.attempts();
        let Some(installed) = &self.installed else {
            if !self.is_rehearsal && self.stays.is_empty() {
                crate::notice(
                    "next: `toolbooth list` shows the tools; `--install` points the client at Toolbooth",
                );
            }
            return;
        };
        output::line(&format!(
            "{} starts Toolbooth now; it was copied to {}",
            self.file.display(),
            installed.backup.display()
        ));
        for (name, reason) in &self.stays {
            output::foreign(&format!("  the client keeps {name}: {reason}"));
        }
        for less in &self.less {
            output::foreign(&format!("  less: {less}"));
        }
        for (own, list) in &installed.permissions {
            let (file, backup) = (own.file.display(), own.backup.display());
            output::line(&format!("{file}: permissions carried over; it was copied to {backup}"));
            changes(list).iter().for_each(|line| output::foreign(line));
        }
        if !installed.own.is_empty() {
            output::line(&format!("{}: permissions carried over", self.file.display()));
            changes(&installed.own).iter().for_each(|line| output::foreign(line));
        }
        if installed.permissions.is_empty() && installed.own.is_empty() {
            output::line(
                "names that change; the client's permissions for them are not carried over:",
            );
            for (server, old, new) in &self.names {
                output::foreign(&format!("  {server}: {old} → {new}"));
            }
        }
        crate::notice("`--undo` restores the client's file");
    }

    fn attempts(&self) {
        let rows: Vec<Vec<String>> = self
            .trial
            .attempts
            .iter()
            .map(|((kind, name), attempt)| {
                let source = if *kind == "commands" { "command" } else { "mcp" };
                let (tools, state) = match attempt {
                    Attempt::Answered(state) => (state.tools.to_string(), "answers".to_owned()),
                    Attempt::Failed(reason) => (String::new(), reason.clone()),
                    Attempt::NotTried(reason) => (String::new(), format!("not started: {reason}")),
                };
                vec![format!("{source}:{name}"), tools, state]
            })
            .collect();
        if self.is_rehearsal {
            return;
        }
        output::table(&["SOURCE", "TOOLS", "STATE"], &rows);
        for attempt in self.trial.attempts.values() {
            let Attempt::Answered(state) = attempt else { continue };
            for problem in &state.problems {
                output::foreign(&format!("  {}: {problem}", state.source));
            }
            for quarantined in &state.quarantined {
                output::foreign(&format!("  {}: in quarantine: {quarantined}", state.source));
            }
        }
    }
}
