//! From what a contract wants to what a launcher is told: which profile holds, what it means on
//! this machine, and what is missing.
//!
//! Path: 7. Doc: execution.md#the-sandbox-profile, execution.md#trust-and-containment

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use toolbooth_contracts::sandbox::{
    Enforce, EnvProfile, FsProfile, NetProfile, SandboxLimits, SandboxProfile, WritePath,
};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::witness::AppliedSandbox;
use toolbooth_launcher::order::{Bind, Enclosure, Limits, Net, Primitive};
use toolbooth_launcher::wire::Found;

use crate::egress::{AllowList, EVERYWHERE};
use crate::process::{is_wide, named, with_interpreters};

/// What any program needs of a system: never a home, never what only an administrator reads.
const BASE: [&str; 28] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// What finding names on an open network needs beside it.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Variables that say how to print, and where certificates are.
const HARMLESS: [&str; 6] = ["LANG", "LC_ALL", "TZ", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Where package runners keep themselves and what they fetch, beneath a home.
const HOME_READ: [&str; 15] = [
    ".asdf",
    ".bun",
    ".cargo/bin",
    ".config/pip",
    ".config/uv",
    ".deno",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".local/share/uv",
    ".local/share/pnpm",
    ".npmrc",
    ".nvm",
    ".pyenv",
    ".volta",
];
/// What they write there.
const HOME_WRITE: [&str; 2] = [".npm", ".cache"];
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
            pids: Some(128),
            open_files: Some(1024),
            file_mb: Some(64),
            ..SandboxLimits::default()
        }),
    }
}

/// The profile of a server that has none: as much of home and caches as package runners need, and
/// the network.
#[must_use]
pub fn server_profile() -> SandboxProfile {
    let beneath_home = |path: &&str| format!("~/{path}");
    let mut read = vec![".".to_owned()];
    read.extend(HOME_READ.iter().map(beneath_home));
    let write = HOME_WRITE.iter().map(beneath_home);
    let mut names = HARMLESS.to_vec();
    names.extend(["HOME", "USER", "LOGNAME", "SHELL"]);
    SandboxProfile {
        enforce: Enforce::BestEffort,
        fs: Some(FsProfile {
            read,
            write: write.map(|path| WritePath { path, max_mb: None }).collect(),
            tmp_mb: Some(512),
        }),
        net: Some(NetProfile { hosts: vec![EVERYWHERE.to_owned()] }),
        env: Some(allow(&names)),
        limits: Some(SandboxLimits {
            memory_mb: Some(4096),
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
    /// This.
    Profile(Box<SandboxProfile>),
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
            Self::Profile(own) => Some((**own).clone()),
            Self::Unsaid => (!trust.is_free()).then(shipped),
        }
    }
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

/// Where a program stands that is to be contained.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// What an operator wrote on the command line that is there: the program first.
    pub words: &'a [PathBuf],
    /// Where it runs; what relative paths are relative to.
    pub cwd: &'a Path,
    /// The home of whoever runs the gateway.
    pub home: Option<&'a Path>,
    /// What the program needs to read beside its profile.
    pub also: &'a [PathBuf],
    /// What no program may see: the gateway's own.
    pub hidden: &'a [PathBuf],
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
    let binds = binds(profile, place, host_names);
    let limits = profile.limits.clone().unwrap_or_default();
    let cgroup = found
        .iter()
        .find(|one| one.primitive == Primitive::MemoryCgroup)
        .and_then(|one| one.detail.as_ref())
        .map(PathBuf::from);
    let user = primitives.contains(&Primitive::UserNamespace);
    let missing: Vec<String> =
        missing.into_iter().map(|(primitive, _)| primitive.as_str().to_owned()).collect();
    let digest = digest(profile, place, &primitives, &binds);
    let sandbox = AppliedSandbox { digest, missing, reached: Vec::new() };
    let enclosure = Enclosure {
        primitives,
        binds,
        hidden: place.hidden.to_vec(),
        tmp_mb: profile.fs.as_ref().and_then(|fs| fs.tmp_mb).unwrap_or_default(),
        net,
        limits: Limits {
            cpu_s: limits.cpu_s,
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
        "profile": profile, "primitives": names, "paths": seen, "hidden": place.hidden,
    });
    let text = toolbooth_contracts::json::canonical(&document);
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything that the program may see.
fn binds(profile: &SandboxProfile, place: &Place<'_>, host_names: bool) -> Vec<Bind> {
    let mut binds: BTreeMap<PathBuf, Bind> = BTreeMap::new();
    let mut add = |path: PathBuf, writable: bool, optional: bool, bytes_max: Option<u64>| {
        let mapped = !BASE.iter().chain(&NAMES).any(|base| Path::new(base) == path);
        let bind = Bind { path: path.clone(), writable, optional, mapped, bytes_max };
        let known = binds.entry(path).or_insert_with(|| bind.clone());
        if writable && !known.writable {
            *known = bind;
        }
    };
    let names: &[&str] = if host_names { &NAMES } else { &[] };
    for path in BASE.iter().chain(names) {
        add(PathBuf::from(path), false, true, None);
    }
    let fs = profile.fs.clone().unwrap_or_default();
    let written: Vec<PathBuf> = fs
        .write
        .iter()
        .map(|write| absolute(&write.path, place))
        .flat_map(|path| [path.canonicalize().ok(), Some(path)])
        .flatten()
        .collect();
    // What a program may write it may have put there: nothing follows from that.
    let ours = |path: &Path| !written.iter().any(|written| path.starts_with(written));
    if let Some(program) = place.words.first() {
        for program in with_interpreters(program, place.cwd, ours) {
            for path in installation(&program, place.home) {
                add(path, false, true, None);
            }
        }
    }
    for word in place.words.iter().skip(1).filter(|word| ours(word)) {
        if let Some(path) = named(word, place.home) {
            add(path, false, true, None);
            // The same by the name that the program is given.
            if word.is_file() {
                add(lexical(word), false, true, None);
            }
        }
    }
    for path in place.also {
        add(path.clone(), false, true, None);
    }
    // A shipped profile means the folder of a project, not a home that somebody started it in.
    let shipped = [default_profile().fs, server_profile().fs].contains(&profile.fs);
    let wide = is_wide(place.cwd, place.home);
    for path in fs.read.iter().filter(|path| !(shipped && wide && *path == ".")) {
        // What a shipped profile names beneath a home is there or not.
        add(absolute(path, place), false, path.starts_with("~/"), None);
    }
    for write in &fs.write {
        let max = write.max_mb.map(mebibytes);
        add(absolute(&write.path, place), true, write.path.starts_with("~/"), max);
    }
    binds.into_values().collect()
}

/// Where a program that is not the system's own is installed: its file, and the folder above its
/// `bin`, by both of its names where it is a link.
fn installation(program: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let mut found = vec![program.to_owned()];
    let real = program.canonicalize().ok();
    found.extend(real.clone());
    for file in [Some(program.to_owned()), real].into_iter().flatten() {
        // What is installed together is found together.
        let together = file.ancestors().filter(|folder| folder.ends_with("node_modules")).last();
        if let Some(folder) = together {
            found.push(folder.to_owned());
            continue;
        }
        let Some(folder) = file.parent() else { continue };
        let named = folder.file_name().is_some_and(|name| name == "bin" || name == "shims");
        let Some(prefix) = folder.parent().filter(|_| named) else { continue };
        // Never a whole home, nor all that a user keeps beneath it.
        let wide = prefix == Path::new("/")
            || home.is_some_and(|home| home.starts_with(prefix) || prefix == home.join(".local"));
        if wide {
            found.push(folder.to_owned());
        } else {
            found.push(prefix.to_owned());
        }
    }
    found
}

/// A path of a profile as it is here.
fn absolute(path: &str, place: &Place<'_>) -> PathBuf {
    if let (Some(rest), Some(home)) = (path.strip_prefix("~/"), place.home) {
        return lexical(&home.join(rest));
    }
    lexical(&place.cwd.join(path))
}

/// A path without `.` and `..`, links not looked at.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => (),
            Component::ParentDir if out.pop() => (),
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
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
        assert_eq!(held.enforce, Enforce::BestEffort);
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
    fn installations_never_take_in_a_home() {
        let home = Some(Path::new("/home/me"));
        let of = |program: &str| installation(Path::new(program), home);
        assert!(
            of("/home/me/.nvm/versions/v1/bin/node")
                .contains(&PathBuf::from("/home/me/.nvm/versions/v1"))
        );
        let local = of("/home/me/.local/bin/uvx");
        assert!(local.contains(&PathBuf::from("/home/me/.local/bin")));
        assert!(!local.contains(&PathBuf::from("/home/me/.local")));
        assert!(!of("/home/me/bin/tool").contains(&PathBuf::from("/home/me")));
    }

    #[test]
    fn what_a_server_has_beyond_a_contract_is_told() {
        let wanted = SandboxProfile::default();
        assert!(exceeds(Some(&wanted), &wanted).is_empty());
        let told = exceeds(Some(&server_profile()), &wanted).join("; ");
        for part in ["not required", "may read `.`", "may write `~/.npm`", "may reach `*`", "HOME"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(exceeds(None, &wanted), ["it runs without a sandbox"]);
    }
}
