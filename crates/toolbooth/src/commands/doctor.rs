//! `doctor`: finds problems of the installation and shows how to fix them.

mod patterns;
mod sources;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use serde::Serialize;
use serde_json::json;
use toolbooth_adapters::findable;
use toolbooth_adapters::sandbox::{default_profile, server_profile};
use toolbooth_audit::backend::disk_space::DiskSpace;
use toolbooth_audit::verify;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_import::HookClient;
use toolbooth_launcher::order::Primitive;
use toolbooth_server::auth::Loopback;
use toolbooth_server::peer::{PeerOwner, PeerOwners, SocketDiagnostics};

use crate::certificate;
use crate::config::{self, Config, Loaded};
use crate::digest_keys::{StoreDigester, fitting_digester};
use crate::door;
use crate::executors;
use crate::failure::Failure;
use crate::notify::{self, Channel};
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::trust::Trusted;

#[derive(Serialize)]
struct Check {
    name: String,
    /// `ok`, `warning` or `failed`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

fn ok(name: impl Into<String>, message: impl Into<String>) -> Check {
    Check { name: name.into(), state: "ok", message: Some(message.into()), remedy: None }
}

fn bad(
    name: impl Into<String>,
    state: &'static str,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Check {
    Check { name: name.into(), state, message: Some(message.into()), remedy: Some(remedy.into()) }
}

pub(super) async fn doctor(
    loaded: Result<Trusted, Failure>,
    format: Format,
) -> Result<bool, Failure> {
    let mut checks = Vec::new();
    match loaded {
        Ok(loaded) => {
            let told = loaded.file.as_ref().map_or_else(
                || "no file, the embedded default".to_owned(),
                |file| file.display().to_string(),
            );
            checks.push(ok("configuration", told));
            http(&loaded, &mut checks);
            issuers(&loaded, &mut checks).await;
            checks.extend(unmatched(&loaded.config));
            if let Err(failure) = crate::settings::limits(&loaded.config) {
                checks.push(of_failure("limits", &failure));
            }
            hooks(&loaded, &mut checks).await;
            notifications(&loaded, &mut checks).await;
            store(&loaded, &mut checks).await;
            sandbox(&loaded, &mut checks).await;
            match OfflineGateway::build(loaded).await {
                Ok(offline) => {
                    // A store that cannot be read was told before.
                    if let Ok(true) = super::pause::apply(&offline).await {
                        let remedy = "`toolbooth pause --list` shows which, and `resume` ends them";
                        checks.push(bad("pauses", "warning", "calls are paused", remedy));
                    }
                    sources::check(&offline, &mut checks).await;
                    patterns::check(&offline, &mut checks);
                }
                Err(failure) => checks.push(of_failure("registry and policy", &failure)),
            }
        }
        Err(failure) => checks.push(of_failure("configuration", &failure)),
    }
    for (program, used) in
        [("node", "Node handlers and npm servers"), ("python3", "Python handlers and servers")]
    {
        checks.push(if findable(program) {
            ok(program, "found")
        } else {
            bad(program, "warning", "not in PATH", format!("install it where you want {used}"))
        });
    }
    let fine = checks.iter().all(|check| check.state != "failed");
    if format.is_json() {
        output::json(&json!({ "ok": fine, "checks": checks }));
        return Ok(fine);
    }
    for check in &checks {
        let message = check.message.as_deref().unwrap_or_default();
        output::line(&format!("{:<8} {:<24} {message}", check.state, check.name));
        if let Some(remedy) = &check.remedy {
            output::line(&format!("         {:<24} help: {remedy}", ""));
        }
    }
    Ok(fine)
}

fn of_failure(name: &str, failure: &Failure) -> Check {
    let shown_path = failure.path.as_ref().map(|path| format!(" ({path})")).unwrap_or_default();
    let remedy = failure.hint.clone().unwrap_or_else(|| "mend it and run this again".to_owned());
    bad(name, "failed", format!("{}{shown_path}", failure.message), remedy)
}

/// Checks the HTTP door: its limits, and the callers that it admits.
fn http(loaded: &Loaded, checks: &mut Vec<Check>) {
    let http = &loaded.config.http;
    match door::limits(&loaded.config) {
        Ok(limits) => {
            let told = format!("up to {} connections", limits.connections_max);
            checks.push(ok("http limits", told));
        }
        Err(failure) => checks.push(of_failure("http limits", &failure)),
    }
    match certificate::read(loaded) {
        Ok(None) => (),
        Ok(Some(_)) => checks.push(ok("http tls", "certificate and key fit each other")),
        Err(failure) => checks.push(of_failure("http tls", &failure)),
    }
    // Behind a proxy, no connection is proven to be the same user's.
    let loopback = if http.behind_proxy { Loopback::None } else { http.loopback };
    checks.push(match loopback {
        Loopback::Any => bad(
            "http callers",
            "warning",
            door::ANY_USER,
            "leave it out: only the user that runs the gateway may call then",
        ),
        Loopback::SameUser if own_socket_is_known() => {
            ok("http callers", "the user that runs the gateway, and holders of keys")
        }
        Loopback::None => ok("http callers", "only holders of keys"),
        Loopback::SameUser => bad(
            "http callers",
            "warning",
            "the kernel does not name the owners of sockets; HTTP callers without a key are refused",
            "use `toolbooth stdio` or API keys (`toolbooth keys create`), or allow socket diagnostics (NETLINK_SOCK_DIAG, `tcp_diag`)",
        ),
    });
}

/// Checks that the issuers of access tokens can be reached, and have keys.
async fn issuers(loaded: &Loaded, checks: &mut Vec<Check>) {
    let listen = loaded.config.http.listen.as_deref().unwrap_or(config::LISTEN);
    let Ok(address) = listen.parse() else { return };
    let accepted = match crate::issuers::accepted(&loaded.config, address) {
        Ok(None) => return,
        Ok(Some(accepted)) => accepted,
        Err(failure) => return checks.push(of_failure("issuers", &failure)),
    };
    for (issuer, found) in accepted.tokens.probe().await {
        let name = format!("issuer {issuer}");
        checks.push(match found {
            Ok(0) => bad(
                name,
                "failed",
                "it has no key for signatures that are accepted here",
                "let it sign with RS256, PS256, ES256, ES384 or EdDSA",
            ),
            Ok(keys) => ok(name, format!("{keys} key(s)")),
            Err(error) => bad(
                name,
                "failed",
                format!("its keys cannot be fetched: {error}"),
                "check `issuer` in `[auth.issuers]`, or name the address of its keys as `jwks_uri`",
            ),
        });
    }
}

/// Returns a warning for each pattern of callers that only tokens of an issuer could match which is not
/// configured.
fn unmatched(config: &Config) -> Vec<Check> {
    let issuers = &config.auth.issuers;
    let is_configured = |pattern: &str| {
        if let Some(name) = pattern.strip_prefix("jwt:") {
            let issuer = name.split_once('#').map_or(name, |(issuer, _)| issuer);
            return config.auth.stdio_caller.as_deref() == Some(pattern)
                || issuers.values().any(|own| own.issuer == issuer);
        }
        let group = pattern.strip_prefix("group:").and_then(|group| group.split_once('/'));
        group.is_none_or(|(issuer, _)| issuers.contains_key(issuer))
    };
    let patterns = config
        .callers
        .iter()
        .flat_map(|(set, caller)| caller.matches.iter().map(move |pattern| (set, pattern)));
    let wrong = patterns.filter(|(_, pattern)| !is_configured(pattern));
    let told = wrong.map(|(set, pattern)| {
        bad(
            format!("callers {set}"),
            "warning",
            format!("`{pattern}` matches no caller: `[auth.issuers]` has no such issuer"),
            "write `jwt:ISSUER#SUBJECT` with the claim `iss`, or `group:NAME/GROUP` with the NAME of \
             `[auth.issuers.NAME]`",
        )
    });
    told.collect()
}

/// Checks the settings of the hooks of clients.
async fn hooks(loaded: &Loaded, checks: &mut Vec<Check>) {
    for client in HookClient::ALL {
        if loaded.config.hooks.of(client).is_none() {
            continue;
        }
        let name = format!("hook {}", client.as_str());
        checks.push(match super::hook::check(client, loaded).await {
            Ok(caller) => ok(name, format!("its calls belong to `{}`", caller.name())),
            Err(failure) => of_failure(&name, &failure),
        });
    }
}

/// Checks that requested approvals can be reported.
async fn notifications(loaded: &Loaded, checks: &mut Vec<Check>) {
    let name = "notifications";
    let found = async {
        let notifier = notify::notifier(loaded, &executors::launcher(loaded)?)?;
        match notifier {
            Some(notifier) => notifier.check().await.map(Some),
            None => Ok(None),
        }
    };
    checks.push(match found.await {
        Ok(None) => return,
        Ok(Some(channel)) => match (channel.warning(), channel) {
            (Some(warning), _) => bad(name, "warning", warning, "give a URL with `https`"),
            (None, Channel::Command(program)) => ok(name, format!("by `{program}`")),
            (None, Channel::Http(host) | Channel::PlainHttp(host)) => {
                ok(name, format!("to {host}"))
            }
        },
        Err(failure) => of_failure(name, &failure),
    });
}

/// Whether the kernel names the owner of a loopback connection that this process makes.
fn own_socket_is_known() -> bool {
    let connected = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, peer) = listener.accept()?;
        std::io::Result::Ok((client, server.local_addr()?, peer, server))
    };
    // Both ends stay open, because the kernel reports no owner once one end is closed.
    connected().is_ok_and(|(_client, local, peer, _server)| {
        SocketDiagnostics::default().owner(peer, local) == PeerOwner::SameUser
    })
}

/// Checks the sandbox support of this machine, and shows the default profiles.
async fn sandbox(loaded: &Loaded, checks: &mut Vec<Check>) {
    let launcher = match crate::executors::launcher(loaded) {
        Ok(launcher) => launcher,
        Err(failure) => {
            checks.push(of_failure("sandbox", &failure));
            return;
        }
    };
    let found = match launcher.primitives().await {
        Ok(found) => found,
        Err(error) => {
            let remedy = "run this program by its own name, not through a wrapper";
            checks.push(bad("sandbox", "failed", error.to_string(), remedy));
            return;
        }
    };
    for one in found {
        let name = format!("sandbox {}", one.primitive.as_str());
        checks.push(match &one.missing {
            None => ok(name, one.detail.clone().unwrap_or_else(|| "there".to_owned())),
            Some(why) => bad(name, "warning", format!("missing: {why}"), one.primitive.remedy()),
        });
    }
    let missing = |wanted| found.iter().any(|one| one.primitive == wanted && one.missing.is_some());
    if missing(Primitive::NetworkNamespace) {
        checks.push(bad(
            "sandbox network",
            "warning",
            "contained programs have no network of their own: with `enforce = \"best-effort\"` those \
             that may reach every public host reach the named ports of every address by TCP, this \
             machine's own too, and anything by UDP; without Landlock 4 they have no network, nor \
             have those with a list of hosts",
            Primitive::NetworkNamespace.remedy(),
        ));
    }
    if missing(Primitive::MemoryCgroup) {
        checks.push(ok(
            "sandbox memory",
            "no cgroup: memory of all processes together is summed five times a second",
        ));
    }
    for (name, profile) in [("default", default_profile()), ("server", server_profile())] {
        checks.push(ok(format!("profile {name}"), described(&profile, name == "server")));
    }
}

/// Describes a profile in one line.
fn described(profile: &SandboxProfile, is_server: bool) -> String {
    let fs = profile.fs.clone().unwrap_or_default();
    let write: Vec<&str> = fs.write.iter().map(|write| write.path.as_str()).collect();
    let write = match (write.as_slice(), is_server) {
        ([], true) => "a home of its own".to_owned(),
        ([], false) => "nothing".to_owned(),
        (paths, _) => paths.join(" "),
    };
    let hosts = profile.net.as_ref().map(|net| net.hosts.join(" ")).unwrap_or_default();
    let list = |words: String| if words.is_empty() { "nothing".to_owned() } else { words };
    let limits = profile.limits.clone().unwrap_or_default();
    let limit = |name: &str, limit: Option<u64>, unit: &str| {
        limit.map(|limit| format!(", {name} {limit}{unit}")).unwrap_or_default()
    };
    format!(
        "reads {}; writes {}; reaches {}; tmp {} MiB{}{}{}{}{}",
        list(fs.read.join(" ")),
        write,
        list(hosts.replace('*', "every public host at 443")),
        fs.tmp_mb.unwrap_or_default(),
        limit("memory", limits.memory_mb, " MiB"),
        limit("processors", limits.cpu_percent, " %"),
        limit("processes", limits.pids, ""),
        limit("open files", limits.open_files, ""),
        limit("file", limits.file_mb, " MiB"),
    )
}

async fn store(loaded: &Loaded, checks: &mut Vec<Check>) {
    let location = crate::records::store_location(loaded);
    // Another failure of the database is found below.
    if let Ok(missing) = crate::records::missing_rights(loaded).await
        && !missing.is_empty()
    {
        let message = format!("the user of `store.url` lacks {}", missing.join("; "));
        checks.push(bad("store", "failed", message, crate::records::RIGHTS));
        return;
    }
    let reads = match crate::records::reads(loaded, None).await {
        Ok(Some(reads)) => reads,
        Ok(None) => {
            checks.push(ok("store", format!("nothing recorded yet, will be made at {location}")));
            return;
        }
        Err(failure) => {
            checks.push(of_failure("store", &failure));
            return;
        }
    };
    match crate::kept_checkpoints::is_rolled_back(loaded).await {
        Ok(true) => {
            let message = match crate::kept_checkpoints::is_restored(loaded) {
                true => "the records were restored from a backup; no call is taken",
                false => "the records are older than their newest checkpoint; no call is taken",
            };
            let remedy = "if they were put back on purpose: `toolbooth audit accept-restore`";
            checks.push(bad("store", "failed", message, remedy));
            return;
        }
        Ok(false) => (),
        Err(failure) => checks.push(of_failure("store", &failure)),
    }
    let pins = match super::audit::recorded_pins(loaded) {
        Ok(pins) => pins,
        Err(failure) => {
            checks.push(of_failure("lock", &failure));
            BTreeMap::new()
        }
    };
    let digester = match fitting_digester(loaded, &*reads).await {
        Ok(StoreDigester::Fits(digester)) => Some(digester),
        Ok(StoreDigester::Lacks(reason)) => {
            let remedy = match &loaded.config.store.url {
                Some(_) => "give the key of the other replicas as `digest_key`",
                None => "restore `digest.key` from a backup",
            };
            checks.push(bad("store", "failed", reason, remedy));
            return;
        }
        Err(failure) => {
            checks.push(of_failure("store", &failure));
            return;
        }
    };
    if crate::kept_checkpoints::kept_notes(loaded).is_empty() {
        checks.push(bad(
            "checkpoint",
            "warning",
            super::audit::NO_CHECKPOINT,
            "restore `checkpoint.note` from a backup",
        ));
    }
    let known = verify::TrustAnchors { pins, digester, ..verify::TrustAnchors::default() };
    checks.push(match verify::store(&*reads, known).await {
        Ok(report) if report.ok => {
            let fits = format!("{} event(s), all digests fit", report.events);
            match crate::records::space(loaded) {
                Ok(Some((space, DiskSpace::Enough))) => ok("store", format!("{fits}, {space}")),
                Ok(Some((space, state))) => {
                    let (state, what) = match state {
                        DiskSpace::Full => {
                            ("failed", "there is no space for records: calls are refused")
                        }
                        _ => ("warning", "space for records runs short: agent logs are removed"),
                    };
                    let remedy =
                        "free space on the disk, raise `[store] bytes_max`, or prune old records";
                    bad("store", state, format!("{what} ({fits}, {space})"), remedy)
                }
                Ok(None) => ok("store", fits),
                Err(failure) => of_failure("store", &failure),
            }
        }
        Ok(report) => bad(
            "store",
            "failed",
            format!("{} problem(s) in the records", report.problems.len()),
            "`toolbooth audit verify` names each place",
        ),
        Err(error) => bad("store", "failed", error.to_string(), "restore it from a backup"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_issuers_that_are_not_configured_are_told() {
        let found = |matches: &str| {
            let text = format!(
                "[auth]\nstdio_caller = \"jwt:https://a#b\"\n[auth.issuers.own]\n\
                 issuer = \"https://id.example\"\n[callers.one]\nmatch = [\"{matches}\"]\n"
            );
            unmatched(&config::parse(&text, "toolbooth.toml", Vec::new()).unwrap()).len()
        };
        for fits in
            ["jwt:https://id.example#*", "jwt:https://a#b", "group:own/team", "group:team", "key:*"]
        {
            assert_eq!(found(fits), 0, "{fits}");
        }
        for wrong in ["jwt:https://id.example/#*", "jwt:own#bob", "group:other/team"] {
            assert_eq!(found(wrong), 1, "{wrong}");
        }
    }
}
