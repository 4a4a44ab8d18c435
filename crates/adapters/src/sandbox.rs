//! From what a contract wants to what a launcher is told: which profile holds, what it means on
//! this machine, and what is missing.
//!
//! Path: 7. Doc: execution.md#the-sandbox-profile, execution.md#trust-and-containment

use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use toolbooth_contracts::sandbox::{
    Enforce, EnvProfile, FsProfile, NetProfile, SandboxLimits, SandboxProfile,
};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::witness::AppliedSandbox;
use toolbooth_launcher::order::{Bind, Enclosure, Limits, Net, Primitive};
use toolbooth_launcher::wire::Found;

use crate::egress::{AllowList, EVERYWHERE};
use crate::toolchains;
use crate::visible::{self, absolute, lexical};
pub use crate::visible::{Place, is_wide};

/// Variables that say how to print, and where certificates are.
const HARMLESS: [&str; 6] = ["LANG", "LC_ALL", "TZ", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR"];
/// The version of Landlock from which on it rules connections.
const LANDLOCK_NETWORK: u32 = 4;

/// The profile of a tool that has none: where it runs and its interpreter, read-only; a temporary
/// folder of its own; no network.
#[must_use]
pub fn default_profile() -> SandboxProfile {
    SandboxProfile {
        enforce: Enforce::BestEffort,
        fs: Some(FsProfile { read: vec![".".to_owned()], write: Vec::new(), tmp_mb: Some(64) }),
        net: None,
        env: Some(allow(&HARMLESS)),
        limits: Some(SandboxLimits {
            memory_mb: Some(2048),
            cpu_percent: Some(200),
            pids: Some(128),
            open_files: Some(1024),
            file_mb: Some(64),
            ..SandboxLimits::default()
        }),
    }
}

/// The profile of a server that has none: where it runs and package runners, read-only; a home and
/// caches of its own; every public host at port 443.
#[must_use]
pub fn server_profile() -> SandboxProfile {
    let mut read = vec![".".to_owned()];
    read.extend(toolchains::FOLDERS.iter().map(|path| format!("~/{path}")));
    let mut names = HARMLESS.to_vec();
    names.extend(["USER", "LOGNAME", "SHELL"]);
    SandboxProfile {
        enforce: Enforce::BestEffort,
        fs: Some(FsProfile { read, write: Vec::new(), tmp_mb: Some(512) }),
        net: Some(NetProfile { hosts: vec![EVERYWHERE.to_owned()] }),
        env: Some(allow(&names)),
        limits: Some(SandboxLimits {
            memory_mb: Some(4096),
            cpu_percent: Some(400),
            pids: Some(512),
            open_files: Some(4096),
            ..SandboxLimits::default()
        }),
    }
}

fn allow(names: &[&str]) -> EnvProfile {
    let allow = names.iter().map(|name| (*name).to_owned()).collect();
    EnvProfile { allow, ..EnvProfile::default() }
}

/// The profile of a process that runs one call of a tool.
///
/// The trust level is the floor: what the contract says holds, but for an untrusted tool it is
/// required in any case. `None` = the tool runs as the gateway does.
#[must_use]
pub fn of_call(own: Option<&SandboxProfile>, trust: TrustLevel) -> Option<SandboxProfile> {
    let mut profile = match own {
        Some(own) => own.clone(),
        None if trust.is_free() => return None,
        None => default_profile(),
    };
    if !trust.is_free() {
        // What a profile leaves open is bounded all the same.
        let own = profile.limits.take().unwrap_or_default();
        let floor = default_profile().limits.unwrap_or_default();
        profile.limits = Some(SandboxLimits {
            memory_mb: own.memory_mb.or(floor.memory_mb),
            cpu_percent: own.cpu_percent.or(floor.cpu_percent),
            pids: own.pids.or(floor.pids),
            open_files: own.open_files.or(floor.open_files),
            file_mb: own.file_mb.or(floor.file_mb),
            ..own
        });
    }
    if trust == TrustLevel::Untrusted {
        profile.enforce = Enforce::Required;
    }
    Some(profile)
}

/// What configuration says of a process that serves many calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: its trust decides.
    #[default]
    Unsaid,
    /// It runs as the gateway does.
    Free,
    /// A profile.
    Profile {
        /// What it says.
        profile: Box<SandboxProfile>,
        /// Whether it must be whole, where an operator wrote that; else its trust decides.
        enforce: Option<Enforce>,
    },
}

impl Standing {
    /// The profile that holds; `shipped` is the one of its kind, and `trust` that of its tools.
    #[must_use]
    pub fn profile(
        &self,
        shipped: fn() -> SandboxProfile,
        trust: TrustLevel,
    ) -> Option<SandboxProfile> {
        match self {
            Self::Free => None,
            Self::Profile { profile, enforce: Some(enforce) } => {
                Some(SandboxProfile { enforce: *enforce, ..(**profile).clone() })
            }
            Self::Profile { profile, enforce: None } => Some(by_trust((**profile).clone(), trust)),
            Self::Unsaid => (!trust.is_free()).then(|| by_trust(shipped(), trust)),
        }
    }
}

/// A profile of which nobody says whether it must be whole: for an untrusted program it must.
fn by_trust(profile: SandboxProfile, trust: TrustLevel) -> SandboxProfile {
    let required = trust == TrustLevel::Untrusted;
    let enforce = if required { Enforce::Required } else { profile.enforce };
    SandboxProfile { enforce, ..profile }
}

/// What a contract wants kept from a tool, and the process that serves it has: the contract's
/// profile does not hold there. Sentences, empty where the process has nothing more.
#[must_use]
pub fn exceeds(has: Option<&SandboxProfile>, wanted: &SandboxProfile) -> Vec<String> {
    let Some(has) = has else { return vec!["it runs without a sandbox".to_owned()] };
    let mut more = Vec::new();
    if has.enforce == Enforce::BestEffort && wanted.enforce == Enforce::Required {
        more.push("its profile is not required".to_owned());
    }
    let (fs, own) = (has.fs.clone().unwrap_or_default(), wanted.fs.clone().unwrap_or_default());
    let writes: Vec<&str> = own.write.iter().map(|write| write.path.as_str()).collect();
    for path in &fs.read {
        if !within(path, own.read.iter().map(String::as_str).chain(writes.iter().copied())) {
            more.push(format!("it may read `{path}`"));
        }
    }
    for write in &fs.write {
        if !within(&write.path, writes.iter().copied()) {
            more.push(format!("it may write `{}`", write.path));
        }
    }
    let hosts = |profile: &SandboxProfile| profile.net.clone().unwrap_or_default().hosts;
    let named = hosts(wanted);
    for host in hosts(has) {
        if !named.contains(&host) && !named.iter().any(|host| host == EVERYWHERE) {
            more.push(format!("it may reach `{host}`"));
        }
    }
    let env = |profile: &SandboxProfile| profile.env.clone().unwrap_or_default();
    let own = env(wanted);
    for name in env(has).allow.iter().filter(|name| !HARMLESS.contains(&name.as_str())) {
        if !own.allow.contains(name) {
            more.push(format!("it sees the variable `{name}`"));
        }
    }
    if fs.tmp_mb > own_fs_tmp(wanted) {
        more.push("it has more temporary space".to_owned());
    }
    let own_env = env(wanted);
    for name in env(has).set.keys().chain(env(has).secrets.keys()) {
        if !own_env.set.contains_key(name) && !own_env.secrets.contains_key(name) {
            more.push(format!("it is given the variable `{name}`"));
        }
    }
    let (has, wanted) =
        (has.limits.clone().unwrap_or_default(), wanted.limits.clone().unwrap_or_default());
    for (name, has, wanted) in [
        ("memoryMb", has.memory_mb, wanted.memory_mb),
        ("cpuPercent", has.cpu_percent, wanted.cpu_percent),
        ("pids", has.pids, wanted.pids),
        ("openFiles", has.open_files, wanted.open_files),
        ("fileMb", has.file_mb, wanted.file_mb),
    ] {
        if let Some(wanted) = wanted
            && has.is_none_or(|has| has > wanted)
        {
            more.push(format!("its limit `{name}` is wider"));
        }
    }
    more
}

fn own_fs_tmp(profile: &SandboxProfile) -> Option<u64> {
    profile.fs.as_ref().and_then(|fs| fs.tmp_mb)
}

fn within<'p>(path: &str, mut beneath: impl Iterator<Item = &'p str>) -> bool {
    let path = lexical(Path::new(path));
    beneath.any(|parent| path.starts_with(lexical(Path::new(parent))))
}

/// What a profile means for one program on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// What the launcher is told.
    pub enclosure: Enclosure,
    /// Bytes of standard output.
    pub stdout_bytes: Option<u64>,
    /// Bytes of standard error.
    pub stderr_bytes: Option<u64>,
    /// What the records say.
    pub sandbox: AppliedSandbox,
}

/// A primitive that a required profile needs is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is required, and {what}")]
pub struct Unavailable {
    /// What is missing, why, and what helps.
    pub what: String,
}

/// What `profile` means here.
///
/// # Errors
/// [`Unavailable`] where it is required and something of it is missing.
pub fn apply(
    profile: &SandboxProfile,
    place: &Place<'_>,
    found: &[Found],
) -> Result<Applied, Unavailable> {
    let allowed = allow_list(profile);
    let wanted = |primitive: &Primitive| match primitive {
        Primitive::MemoryCgroup => memory_bytes(profile).is_some(),
        _ => true,
    };
    let mut primitives = Vec::new();
    let mut missing = Vec::new();
    for one in found.iter().filter(|one| wanted(&one.primitive)) {
        match &one.missing {
            None => primitives.push(one.primitive),
            // Each process is bounded by itself where all together cannot be.
            Some(_) if one.primitive == Primitive::MemoryCgroup => (),
            Some(why) => missing.push((one.primitive, why.as_str())),
        }
    }
    if profile.enforce == Enforce::Required
        && let Some((primitive, why)) = missing.first()
    {
        let what =
            format!("this machine has no {}: {why}; {}", primitive.as_str(), primitive.remedy());
        return Err(Unavailable { what });
    }
    let net = network(&allowed, &primitives, found);
    // With a root of its own it has a resolver's file of its own too.
    let host_names = net != Net::None && !primitives.contains(&Primitive::PrivateRoot);
    let binds = visible::binds(profile, place, host_names);
    let hidden = visible::hidden(profile, place, &binds);
    let limits = profile.limits.clone().unwrap_or_default();
    let cgroup = found
        .iter()
        .find(|one| one.primitive == Primitive::MemoryCgroup)
        .and_then(|one| one.detail.as_ref())
        .map(PathBuf::from);
    let user = primitives.contains(&Primitive::UserNamespace);
    let missing: Vec<String> =
        missing.into_iter().map(|(primitive, _)| primitive.as_str().to_owned()).collect();
    let digest = digest(profile, place, &primitives, &binds, &hidden);
    let sandbox = AppliedSandbox { digest, missing, reached: Vec::new() };
    let enclosure = Enclosure {
        primitives,
        binds,
        hidden,
        tmp_mb: profile.fs.as_ref().and_then(|fs| fs.tmp_mb).unwrap_or_default(),
        net,
        limits: Limits {
            cpu_s: limits.cpu_s,
            cpu_percent: limits.cpu_percent,
            memory_bytes: memory_bytes(profile),
            pids: limits.pids,
            open_files: limits.open_files,
            file_bytes: limits.file_mb.map(mebibytes),
        },
        fresh_user: user && rustix::process::geteuid().is_root(),
        cgroup,
    };
    let (stdout_bytes, stderr_bytes) = (limits.stdout_bytes, limits.stderr_bytes);
    Ok(Applied { enclosure, stdout_bytes, stderr_bytes, sandbox })
}

fn allow_list(profile: &SandboxProfile) -> AllowList {
    let hosts = profile.net.as_ref().map(|net| net.hosts.as_slice()).unwrap_or_default();
    // What cannot be read allows nothing; configuration and contracts are checked where they come in.
    AllowList::parse(hosts).unwrap_or_default()
}

/// The network of a program here. Without one of its own, connections to named hosts cannot be told
/// from others, so only a profile that names every public host has any, by its ports.
fn network(allowed: &AllowList, primitives: &[Primitive], found: &[Found]) -> Net {
    let Some(relay) = allowed.relay() else { return Net::None };
    if primitives.contains(&Primitive::NetworkNamespace) {
        return Net::Relayed(relay);
    }
    let version = found
        .iter()
        .find(|one| one.primitive == Primitive::Landlock)
        .and_then(|one| one.detail.as_deref()?.rsplit(' ').next()?.parse::<u32>().ok());
    let ruled = primitives.contains(&Primitive::Landlock)
        && version.is_some_and(|version| version >= LANDLOCK_NETWORK);
    if ruled && allowed.is_everywhere() { Net::Ports(allowed.ports()) } else { Net::None }
}

fn mebibytes(count: u64) -> u64 {
    count.saturating_mul(1 << 20)
}

fn memory_bytes(profile: &SandboxProfile) -> Option<u64> {
    profile.limits.as_ref().and_then(|limits| limits.memory_mb).map(mebibytes)
}

/// A digest of everything that was applied: the profile, every path that is seen, and the
/// primitives by which it holds. Values of variables are not in it, their names are.
fn digest(
    profile: &SandboxProfile,
    place: &Place<'_>,
    primitives: &[Primitive],
    binds: &[Bind],
    hidden: &[PathBuf],
) -> String {
    let mut profile = profile.clone();
    if let Some(fs) = &mut profile.fs {
        let shown = |path: &str| absolute(path, place).display().to_string();
        fs.read = fs.read.iter().map(|path| shown(path)).collect();
        for write in &mut fs.write {
            write.path = shown(&write.path);
        }
    }
    if let Some(env) = &mut profile.env {
        env.set.values_mut().for_each(String::clear);
    }
    let names: Vec<&str> = primitives.iter().map(|primitive| primitive.as_str()).collect();
    let seen: Vec<_> = binds.iter().map(|bind| (&bind.path, bind.writable)).collect();
    let document = json!({
        "profile": profile, "primitives": names, "paths": seen, "hidden": hidden,
    });
    let text = toolbooth_contracts::json::canonical(&document);
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::sandbox::WritePath;
    use toolbooth_launcher::order::Relay;

    use super::*;

    fn found(missing: &[Primitive]) -> Vec<Found> {
        let one = |primitive: Primitive| Found {
            primitive,
            missing: missing.contains(&primitive).then(|| "not there".to_owned()),
            detail: None,
        };
        Primitive::ALL.into_iter().map(one).collect()
    }

    fn place() -> Place<'static> {
        Place {
            words: &[],
            cwd: Path::new("/srv/tools"),
            home: Some(Path::new("/home/me")),
            also: &[],
            hidden: &[],
            own: None,
        }
    }

    #[test]
    fn trust_sets_the_floor() {
        assert_eq!(of_call(None, TrustLevel::Trusted), None);
        assert_eq!(of_call(None, TrustLevel::Sandbox).unwrap().enforce, Enforce::BestEffort);
        assert_eq!(of_call(None, TrustLevel::Untrusted).unwrap().enforce, Enforce::Required);
        let own = SandboxProfile { enforce: Enforce::BestEffort, ..SandboxProfile::default() };
        let floor = of_call(Some(&own), TrustLevel::Untrusted).unwrap();
        assert_eq!(floor.enforce, Enforce::Required);
        assert_eq!(of_call(Some(&own), TrustLevel::Trusted), Some(own));
        let unsaid = Standing::Unsaid;
        assert_eq!(unsaid.profile(server_profile, TrustLevel::Builtin), None);
        let held = unsaid.profile(server_profile, TrustLevel::Untrusted).unwrap();
        assert_eq!(held.enforce, Enforce::Required);
        let held = unsaid.profile(server_profile, TrustLevel::Sandbox).unwrap();
        assert_eq!(held.enforce, Enforce::BestEffort);
        // Only where an operator wrote it an untrusted program runs with less.
        let based = |enforce| Standing::Profile { profile: Box::new(server_profile()), enforce };
        for (enforce, held) in
            [(None, Enforce::Required), (Some(Enforce::BestEffort), Enforce::BestEffort)]
        {
            let profile = based(enforce).profile(default_profile, TrustLevel::Untrusted).unwrap();
            assert_eq!(profile.enforce, held);
        }
    }

    #[test]
    fn a_required_profile_names_what_is_missing_and_what_helps() {
        let profile = SandboxProfile::default();
        let error = apply(&profile, &place(), &found(&[Primitive::Landlock])).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("landlock") && told.contains("5.13"), "{told}");
        let profile = SandboxProfile { enforce: Enforce::BestEffort, ..profile };
        let applied = apply(&profile, &place(), &found(&[Primitive::Landlock])).unwrap();
        assert_eq!(applied.sandbox.missing, ["landlock"]);
        assert!(!applied.enclosure.primitives.contains(&Primitive::Landlock));
        // Memory is bounded otherwise.
        let gone = [Primitive::MemoryCgroup];
        assert!(apply(&SandboxProfile::default(), &place(), &found(&gone)).is_ok());
    }

    #[test]
    fn without_a_network_of_its_own_a_program_has_ports_or_none() {
        let of = |hosts: &[&str], enforce| SandboxProfile {
            net: Some(NetProfile { hosts: hosts.iter().map(|host| (*host).to_owned()).collect() }),
            enforce,
            ..SandboxProfile::default()
        };
        let net = |hosts: &[&str], found: &[Found]| {
            let profile = of(hosts, Enforce::BestEffort);
            apply(&profile, &place(), found).unwrap().enclosure.net
        };
        let relay = |ports: &[u16], proxy| Net::Relayed(Relay { ports: ports.to_vec(), proxy });
        assert_eq!(net(&["*"], &found(&[])), relay(&[443], false));
        assert_eq!(net(&["a.example:80"], &found(&[])), relay(&[80, 443], true));
        let mut shared = found(&[Primitive::NetworkNamespace]);
        let required = of(&["*"], Enforce::Required);
        assert!(apply(&required, &place(), &shared).is_err());
        assert_eq!(net(&["*"], &shared), Net::None, "Landlock is too old");
        for one in shared.iter_mut().filter(|one| one.primitive == Primitive::Landlock) {
            one.detail = Some("version 4".to_owned());
        }
        assert_eq!(net(&["*", "*:80"], &shared), Net::Ports(vec![80, 443]));
        assert_eq!(net(&["a.example:443"], &shared), Net::None);
    }

    #[test]
    fn the_digest_is_of_what_was_applied() {
        let all = found(&[]);
        let profile = default_profile();
        let first = apply(&profile, &place(), &all).unwrap().sandbox.digest;
        assert_eq!(first, apply(&profile, &place(), &all).unwrap().sandbox.digest);
        let less = apply(&profile, &place(), &found(&[Primitive::Seccomp])).unwrap();
        assert_ne!(first, less.sandbox.digest);
        let elsewhere = Place { cwd: Path::new("/srv/other"), ..place() };
        assert_ne!(first, apply(&profile, &elsewhere, &all).unwrap().sandbox.digest);
    }

    #[test]
    fn paths_are_relative_to_where_the_tool_runs() {
        let fs = FsProfile {
            read: vec!["./data".to_owned(), "../shared".to_owned(), "~/x".to_owned()],
            write: vec![WritePath { path: "out".to_owned(), max_mb: Some(1) }],
            tmp_mb: None,
        };
        let profile = SandboxProfile { fs: Some(fs), ..SandboxProfile::default() };
        let applied = apply(&profile, &place(), &found(&[])).unwrap();
        let path = |path: &str| {
            applied.enclosure.binds.iter().find(|bind| bind.path == Path::new(path)).cloned()
        };
        assert!(!path("/srv/tools/data").unwrap().writable);
        assert!(path("/srv/shared").is_some() && path("/home/me/x").is_some());
        let out = path("/srv/tools/out").unwrap();
        assert!(out.writable && out.bytes_max == Some(1 << 20));
        assert!(path("/srv/tools").is_none());
    }

    #[test]
    fn what_a_server_has_beyond_a_contract_is_told() {
        let wanted = SandboxProfile::default();
        assert!(exceeds(Some(&wanted), &wanted).is_empty());
        let told = exceeds(Some(&server_profile()), &wanted).join("; ");
        for part in ["not required", "may read `.`", "may read `~/.nvm`", "may reach `*`", "USER"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(exceeds(None, &wanted), ["it runs without a sandbox"]);
    }
}
