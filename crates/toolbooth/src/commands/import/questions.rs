//! Asks on a terminal for the sandboxes of imported servers.
//!
//! Doc: importing.md#questions, importing.md#containment

use std::collections::BTreeMap;
use std::path::PathBuf;

use toolbooth_adapters::mcp::ServerTransport;
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};
use toolbooth_import::{Section, Sections};

use crate::config::Loaded;
use crate::failure::Failure;
use crate::import::containment::{Containment, Folder, container_lines, container_runner, folders};
use crate::{executors, terminal};

/// An added server with its profile and the folders that it cannot write.
struct Contained {
    name: String,
    profile: SandboxProfile,
    folders: Vec<Folder>,
}

/// Completes the added sections. `draft` is the configuration with them; `asks` states whether a user can
/// answer. Returns the servers that cannot start in a sandbox, with the reason.
pub(super) async fn settle_containment(
    sections: &mut Sections,
    added: &[String],
    draft: &Loaded,
    asks: bool,
    notices: &mut Vec<String>,
) -> Result<BTreeMap<(&'static str, String), String>, Failure> {
    let mut skipped = BTreeMap::new();
    let mut contained = Vec::new();
    let names: Vec<String> = sections
        .keys()
        .filter(|(kind, _)| *kind == "servers")
        .map(|(_, name)| name.clone())
        .collect();
    for name in names {
        let Some(server) = draft.config.servers.get(&name) else { continue };
        let is_new = added.contains(&format!("servers.{name}"));
        let settings = match executors::server_settings(draft, &name, server) {
            Ok(settings) => settings,
            Err(failure) => {
                // With it, the whole configuration would be refused.
                if let Some(section) = sections.get_mut(&("servers", name.clone()))
                    && is_new
                    && server.enabled != Some(false)
                {
                    section.set("enabled", false);
                    let message = failure.message;
                    notices.push(format!(
                        "servers.{name}: {message}; it is written with `enabled = false`"
                    ));
                }
                continue;
            }
        };
        let ServerTransport::Stdio(child) = settings.transport else { continue };
        let Some(profile) = child.profile.clone() else { continue };
        let command = server.command.as_deref().unwrap_or_default();
        if let Some(runner) = container_runner(command, &server.args) {
            let lines = container_lines(runner);
            let reason = format!("{} {}; {}", lines[0], lines[1], lines[2]);
            if is_new {
                if let Some(section) = sections.get_mut(&("servers", name.clone())) {
                    lines.iter().for_each(|line| section.comment(line));
                }
                notices.push(format!("servers.{name}: {reason}"));
            }
            skipped.insert(("servers", name), reason);
        } else if is_new && server.enabled != Some(false) {
            let folders = folders(&child, &profile);
            contained.push(Contained { name, profile, folders });
        }
    }
    let missing = missing(draft, &contained).await?;
    let relaxed = missing.as_ref().is_some_and(|what| {
        let question = format!(
            "the sandbox is not complete here: {what}\nmay the imported servers run with what there is (`enforce = \"best-effort\"`)?"
        );
        asks && terminal::confirm(&question)
    });
    if let (Some(what), false) = (&missing, relaxed) {
        notices.push(format!(
            "servers that are not trusted do not start here: {what}; a commented line in their sections lets them run with what there is"
        ));
    }
    for one in contained {
        let required = one.profile.enforce == Enforce::Required;
        let lacking = missing.as_deref().filter(|_| required);
        if let Some(section) = sections.get_mut(&("servers", one.name.clone())) {
            settle(section, one, lacking, relaxed, asks, notices);
        }
    }
    Ok(skipped)
}

/// Returns the features that the profiles require and this machine lacks.
async fn missing(draft: &Loaded, contained: &[Contained]) -> Result<Option<String>, Failure> {
    let required = contained.iter().find(|one| one.profile.enforce == Enforce::Required);
    let Some(one) = required else { return Ok(None) };
    let launcher = executors::launcher(draft)?;
    Ok(launcher.check(&one.profile).await.err().map(|unavailable| unavailable.what))
}

/// Writes the agreed settings into a section, and the others as comments.
fn settle(
    section: &mut Section,
    one: Contained,
    lacking: Option<&str>,
    relaxed: bool,
    asks: bool,
    notices: &mut Vec<String>,
) {
    let enforce =
        if lacking.is_some() && relaxed { Enforce::BestEffort } else { one.profile.enforce };
    let mut agreed: Vec<PathBuf> = Vec::new();
    let mut offered: Vec<Folder> = Vec::new();
    for folder in one.folders {
        let beside = if folder.is_project {
            " (then it reads all of it too, and a `.env` that is made or saved anew there while it runs)"
        } else {
            ""
        };
        let shown = folder.path.display();
        let question = format!("servers.{}: may it write {shown}{beside}?", one.name);
        if asks && !folder.is_wide && terminal::confirm(&question) {
            agreed.push(folder.path);
        } else {
            offered.push(folder);
        }
    }
    let held = Containment { enforce, read: Vec::new(), write: agreed.clone() };
    if !agreed.is_empty() || enforce != one.profile.enforce {
        section.set("sandbox", held.value());
    }
    if let (Some(what), false) = (lacking, relaxed) {
        let line = Containment { enforce: Enforce::BestEffort, ..held.clone() }.line();
        section.comment(&format!("It does not start here: {what}. To run it with what there is:"));
        section.comment(&line);
    }
    for folder in &offered {
        let shown = folder.path.display();
        let now = if folder.is_wide {
            format!("it can neither read nor write {shown}, which holds all kinds of things")
        } else if folder.is_project {
            format!(
                "it can read the folders in {shown}, and the files beside them as they are when it starts, and write none"
            )
        } else {
            format!("it can read {shown}, and not write it")
        };
        notices
            .push(format!("servers.{}: {now}; a commented line in its section lets it", one.name));
        if offered.len() == 1 {
            let what = if folder.is_wide { "read and write" } else { "write" };
            section.comment(&format!("To let it {what} {shown}:"));
            let write = agreed.iter().chain([&folder.path]).cloned().collect();
            section.comment(&Containment { enforce, read: Vec::new(), write }.line());
        }
        if folder.is_project {
            section.comment(&format!("To let it read all of {shown}, as it is at any moment:"));
            let read = vec![folder.path.clone()];
            section.comment(&Containment { enforce, read, write: agreed.clone() }.line());
        }
    }
    if offered.len() > 1 {
        // Two settings of one name would make the file invalid.
        section.comment("To let it write these folders (leave out those that it must not):");
        let write = agreed.iter().chain(offered.iter().map(|folder| &folder.path)).cloned();
        section.comment(&Containment { enforce, read: Vec::new(), write: write.collect() }.line());
    }
}
