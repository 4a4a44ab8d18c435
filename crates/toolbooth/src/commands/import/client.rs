//! `import CLIENT`: reads a client's servers, tries them, writes them, and installs Toolbooth.
//!
//! Doc: importing.md#clients, importing.md#install

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toolbooth_contracts::causes::with_causes;
use toolbooth_import::permissions::{self, Exchange, GATEWAY, Switched};
use toolbooth_import::servers::{self as clients, Imported};
use toolbooth_import::{Client, Extended, HookClient, Replaced};

use super::report::{self, KeptServer, Report};
use super::{NamedPaths, questions};
use crate::cli::ClientArgs;
use crate::config;
use crate::failure::{FAILED, Failure};
use crate::import::secrets::{self, MovedValues};
use crate::import::trial::{self, Trial};
use crate::import::{self, Installed};
use crate::trust::{Consent, Gate, Judged};
use crate::{secret_shapes, terminal};

/// The largest accepted file of a client, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Restores a client's file.
pub(super) fn undo(
    client: Client,
    arguments: ClientArgs,
    paths: NamedPaths<'_>,
) -> Result<bool, Failure> {
    let path = file(client, arguments.file)?;
    let undone = import::undo(client, &path)?;
    // If the configuration cannot be read, the report lists no secrets of it.
    let target = config::configuration_path(paths.configuration)?;
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    let secrets = config::draft(&text, &target, paths.data)
        .map(|loaded| secrets::kept(&loaded))
        .unwrap_or_default();
    report::undone(&path, &undone, &secrets, arguments.shown.format);
    Ok(true)
}

pub(super) async fn servers(
    client: Client,
    arguments: ClientArgs,
    paths: NamedPaths<'_>,
    gate: &Gate,
) -> Result<bool, Failure> {
    let ClientArgs { file, install, dry_run, no_try, yes, force, secrets, shown, .. } = arguments;
    let path = self::file(client, file)?;
    let target = config::configuration_path(paths.configuration)?;
    let before = read(&target)?;
    let mut imported = imported(client, &path, door(&before))?;
    if imported.sections.is_empty() {
        for notice in &imported.notices {
            crate::notice(&format!("note: {notice}"));
        }
        return Err(Failure::new(FAILED, "nothing-to-import", "the file names no servers")
            .at(path.display().to_string()));
    }
    let at = |failure: Failure| {
        if failure.path.is_some() { failure } else { failure.at(target.display().to_string()) }
    };
    let present = config::draft(&before, &target, paths.data)?;
    let hooked = HookClient::ALL.into_iter().filter(|own| present.config.hooks.of(*own).is_some());
    for name in hooked.map(HookClient::as_str) {
        if imported.sections.remove(&("servers", name.to_owned())).is_some() {
            imported.notices.push(format!(
                "the server `{name}` was left out: `{name}.…` are the tools of the client of `[hooks.{name}]`; rename it"
            ));
        }
    }
    let disabled = permissions::disabled(client, &path);
    for (name, _) in &disabled {
        if let Some(section) = imported.sections.get_mut(&("servers", name.clone())) {
            section.set("enabled", false);
        }
    }
    let Extended { text, added, kept } =
        import::into_configuration(&before, &imported.sections).map_err(at)?;
    let draft = config::draft(&text, &target, paths.data)?;
    let data = draft.data.clone();
    let mut notices = std::mem::take(&mut imported.notices);
    let unused = disabled.iter().filter(|(name, _)| added.contains(&format!("servers.{name}")));
    notices.extend(unused.map(|(name, shown_path)| {
        let shown_path = shown_path.display();
        format!("servers.{name}: the client does not start it ({shown_path}); it is written with `enabled = false`")
    }));
    let asks = terminal::can_ask(shown.format) && !dry_run;
    let sections = &mut imported.sections;
    let skipped =
        questions::settle_containment(sections, &added, &draft, asks, &mut notices).await?;
    // Values are moved before the trial, so that the trial uses the settings that are written.
    let (moved, told) = match dry_run {
        true => (MovedValues::default(), secrets::rehearse(sections, &added)),
        false => secrets::relocate(secrets, sections, &added, &data)?,
    };
    notices.extend(told);
    let names: Vec<(&'static str, String)> = sections.keys().cloned().collect();
    let tried = async {
        let text = import::into_configuration(&before, sections).map_err(at)?.text;
        let draft = config::draft(&text, &target, paths.data)?;
        if dry_run {
            return trial::untried(&draft, &names, "`--dry-run` starts no server");
        }
        let judged = Judged::of(draft.clone(), target.clone())?;
        // If no server starts now, the command that starts it will ask.
        let asks = asks && (install || !no_try);
        let consent = Consent::ask(&judged, yes || gate.names(&target), asks, &added);
        let mut skipped = skipped;
        skipped.extend(consent.refused(&names));
        let trial = match no_try {
            true => trial::untried(&draft, &names, "`--no-try` starts no server")?,
            false => interruptible(trial::run(draft, &names, &skipped, &consent)).await?,
        };
        if !added.is_empty() {
            write(&target, &before, &text)?;
        }
        consent.keep(&judged);
        Ok(trial)
    };
    let trial = tried.await.inspect_err(|_: &Failure| moved.take_back())?;
    let mut report = Report {
        format: shown.format,
        is_rehearsal: dry_run,
        file: &path,
        target: &target,
        added,
        kept,
        notices,
        trial: &trial,
        installed: None,
        less: Vec::new(),
        names: Vec::new(),
        stays: Vec::new(),
    };
    if !install {
        report.print();
        return Ok(true);
    }
    let refused = refused(client, &path, &imported.servers);
    let (switched, stays) = divide(&imported.servers, &refused, &trial, force);
    report.stays = stays;
    if switched.is_empty() {
        report.print();
        crate::notice(
            "no server answered: the client's file stays as it is; `--force` replaces them all",
        );
        return Ok(false);
    }
    let names = trial.names();
    let exchange = Exchange { switched: &switched, all: &imported.servers, names: &names };
    let installed = replace(client, &path, &target, exchange)?;
    trial.remember_names();
    report.less = report::less(&trial, &switched);
    report.names = report::names(&switched);
    report.installed = Some(installed);
    report.print();
    Ok(true)
}

/// Returns the path of the client's file, named or found.
fn file(client: Client, named: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return Ok(path);
    }
    let paths = client.default_paths();
    paths.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Failure::usage("no configuration of this client was found")
            .hint(format!("name the file; looked at {}", looked.join(", ")))
    })
}

/// Returns the address at which the gateway of a configuration listens.
fn door(configuration: &str) -> Option<SocketAddr> {
    let table: Option<toml::Table> = configuration.parse().ok();
    let listen = table.as_ref().and_then(|table| table.get("http")?.get("listen")?.as_str());
    listen.unwrap_or(config::LISTEN).parse().ok()
}

/// Reads the servers of a client's file, except the gateway that listens at `door`.
fn imported(client: Client, path: &Path, door: Option<SocketAddr>) -> Result<Imported, Failure> {
    let wrong = |message: String| Failure::usage(message).at(path.display().to_string());
    let text = crate::files::read_within(path, FILE_BYTES_MAX)
        .map_err(|error| wrong(format!("the file cannot be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| wrong("the file is not UTF-8".to_owned()))?;
    let shapes = secret_shapes::shapes();
    clients::read(client, path, &text, &shapes, door).map_err(|error| wrong(with_causes(&error)))
}

fn read(target: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(target) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            let message = format!("the configuration cannot be read: {error}");
            Err(Failure::configuration(message).at(target.display().to_string()))
        }
    }
}

/// Runs a trial that an interrupt from the terminal ends.
async fn interruptible(
    trial: impl Future<Output = Result<Trial, Failure>>,
) -> Result<Trial, Failure> {
    tokio::select! {
        trial = trial => trial,
        _ = tokio::signal::ctrl_c() => {
            let message = "interrupted; nothing was written";
            Err(Failure::new(FAILED, "interrupted", message))
        }
    }
}

/// Writes the configuration, unless it has changed since it was read.
fn write(target: &Path, before: &str, text: &str) -> Result<(), Failure> {
    if read(target)? != before {
        return Err(Failure::usage("the configuration was changed meanwhile; nothing was written")
            .at(target.display().to_string())
            .hint("run this again"));
    }
    crate::commands::lock::replace_file(target, text)
}

/// Returns the servers of which the client refuses several tools with one entry, each with the reason.
fn refused(client: Client, path: &Path, servers: &[String]) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    for file in permissions::files(client, path) {
        let text = std::fs::read_to_string(&file.path).unwrap_or_default();
        for (server, entry) in permissions::wide_refusals(&text, &file, servers) {
            let shown_path = file.path.display();
            let why = format!(
                "the client refuses more than one of its tools (`{entry}` in {shown_path})"
            );
            refused.push((server, why));
        }
    }
    refused
}

/// Divides the servers into those that Toolbooth replaces and those that the client keeps.
fn divide(
    servers: &[String],
    refused: &[(String, String)],
    trial: &Trial,
    force: bool,
) -> (Vec<Switched>, Vec<KeptServer>) {
    let (mut switched, mut stays) = (Vec::new(), Vec::new());
    for name in servers {
        let attempt = trial.attempts.get(&("servers", name.clone()));
        let refusal = refused.iter().find(|(server, _)| server == name).map(|(_, why)| why.clone());
        let reason = match attempt {
            None => Some("it was not imported".to_owned()),
            Some(attempt) => attempt.reason().map(str::to_owned),
        };
        // `force` does not override a refusal of the client.
        match reason.filter(|_| !force).or(refusal) {
            Some(reason) => stays.push((name.clone(), reason)),
            None => switched.push(Switched { name: name.clone(), tools: trial.tools(name) }),
        }
    }
    (switched, stays)
}

fn replace(
    client: Client,
    path: &Path,
    target: &Path,
    exchange: Exchange<'_>,
) -> Result<Installed, Failure> {
    let Exchange { switched, all: servers, .. } = exchange;
    let is_switched = |name: &String| switched.iter().any(|one| one.name == *name);
    let replaced =
        if servers.iter().all(is_switched) { Replaced::All } else { Replaced::Some(switched) };
    if servers.iter().any(|name| name == GATEWAY && !is_switched(name)) {
        let message = format!("the client keeps another server called `{GATEWAY}`");
        return Err(Failure::usage(message)
            .at(path.display().to_string())
            .hint("give it another name there, or use `--force`"));
    }
    import::install(client, path, target, replaced, exchange)
}
