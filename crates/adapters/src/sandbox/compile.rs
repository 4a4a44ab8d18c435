//! Compiles a profile into the launcher's sandbox specification, for the primitives of this
//! machine.
//!
//! Path: 7. Doc: execution.md#the-sandbox-profile

use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};
use toolbooth_launcher::order::{Bind, Limits, Net, Primitive, SandboxSpec};
use toolbooth_launcher::wire::Found;

use crate::egress::AllowList;
use crate::error::Unavailable;
use crate::program_location::{ProgramLocation, absolute};
use crate::visible_paths;

/// The first version of Landlock that restricts connections.
const LANDLOCK_NETWORK: u32 = 4;

/// A profile that is compiled for one program on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The specification for the launcher.
    pub sandbox_spec: SandboxSpec,
    /// Maximum size of standard output, in bytes.
    pub stdout_bytes: Option<u64>,
    /// Maximum size of standard error, in bytes.
    pub stderr_bytes: Option<u64>,
    /// The entry for the records.
    pub sandbox: AppliedSandbox,
}

/// Compiles `profile` for a program at `location`.
///
/// # Errors
/// [`Unavailable`] if the profile is required and a primitive for it is missing.
pub fn apply(
    profile: &SandboxProfile,
    location: &ProgramLocation<'_>,
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
            // Without the cgroup each process is limited separately.
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
    // A private root contains its own `/etc/resolv.conf`.
    let host_names = net != Net::None && !primitives.contains(&Primitive::PrivateRoot);
    let binds = visible_paths::binds(profile, location, host_names);
    let hidden = visible_paths::hidden(profile, location, &binds);
    let limits = profile.limits.clone().unwrap_or_default();
    let cgroup = found
        .iter()
        .find(|one| one.primitive == Primitive::MemoryCgroup)
        .and_then(|one| one.detail.as_ref())
        .map(PathBuf::from);
    let user = primitives.contains(&Primitive::UserNamespace);
    let missing: Vec<String> =
        missing.into_iter().map(|(primitive, _)| primitive.as_str().to_owned()).collect();
    let digest = digest(profile, location, &primitives, &binds, &hidden);
    let sandbox = AppliedSandbox { digest, missing, reached: Vec::new() };
    let sandbox_spec = SandboxSpec {
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
    Ok(Applied { sandbox_spec, stdout_bytes, stderr_bytes, sandbox })
}

fn allow_list(profile: &SandboxProfile) -> AllowList {
    let hosts = profile.net.as_ref().map(|net| net.hosts.as_slice()).unwrap_or_default();
    // A list that cannot be parsed allows nothing. Configuration and contracts are checked when
    // they are loaded.
    AllowList::parse(hosts).unwrap_or_default()
}

/// Returns the network of a program. Without a network namespace, connections to named hosts cannot
/// be told from others. Then only a profile that names every public host has network access,
/// limited to its ports.
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

/// Returns a digest of everything that was applied: the profile, every visible path, and the
/// primitives that enforce it. It includes the names of variables, but not their values.
fn digest(
    profile: &SandboxProfile,
    location: &ProgramLocation<'_>,
    primitives: &[Primitive],
    binds: &[Bind],
    hidden: &[PathBuf],
) -> String {
    let mut profile = profile.clone();
    if let Some(fs) = &mut profile.fs {
        let shown = |path: &str| absolute(path, location).display().to_string();
        fs.read = fs.read.iter().map(|path| shown(path)).collect();
        for write in &mut fs.write {
            write.path = shown(&write.path);
        }
    }
    if let Some(env) = &mut profile.env {
        env.set.values_mut().for_each(String::clear);
    }
    let names: Vec<&str> = primitives.iter().map(|primitive| primitive.as_str()).collect();
    let seen: Vec<_> =
        binds.iter().map(|bind| (bind.path.to_string_lossy(), bind.writable)).collect();
    let hidden: Vec<_> = hidden.iter().map(|path| path.to_string_lossy()).collect();
    let document = json!({
        "profile": profile, "primitives": names, "paths": seen, "hidden": hidden,
    });
    let text = toolbooth_contracts::json::canonical(&document);
    HEXLOWER.encode(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toolbooth_contracts::sandbox::{FsProfile, NetProfile, WritePath};
    use toolbooth_launcher::order::Relay;

    use super::super::default_profile;
    use super::*;

    fn found(missing: &[Primitive]) -> Vec<Found> {
        let one = |primitive: Primitive| Found {
            primitive,
            missing: missing.contains(&primitive).then(|| "not there".to_owned()),
            detail: None,
        };
        Primitive::ALL.into_iter().map(one).collect()
    }

    fn location() -> ProgramLocation<'static> {
        ProgramLocation {
            words: &[],
            cwd: Path::new("/srv/tools"),
            home: Some(Path::new("/home/me")),
            also: &[],
            hidden: &[],
            own: None,
        }
    }

    #[test]
    fn a_required_profile_names_what_is_missing_and_what_helps() {
        let profile = SandboxProfile::default();
        let error = apply(&profile, &location(), &found(&[Primitive::Landlock])).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("landlock") && told.contains("5.13"), "{told}");
        let profile = SandboxProfile { enforce: Enforce::BestEffort, ..profile };
        let applied = apply(&profile, &location(), &found(&[Primitive::Landlock])).unwrap();
        assert_eq!(applied.sandbox.missing, ["landlock"]);
        assert!(!applied.sandbox_spec.primitives.contains(&Primitive::Landlock));
        // Without the cgroup each process is limited separately.
        let gone = [Primitive::MemoryCgroup];
        assert!(apply(&SandboxProfile::default(), &location(), &found(&gone)).is_ok());
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
            apply(&profile, &location(), found).unwrap().sandbox_spec.net
        };
        let relay = |ports: &[u16], proxy| Net::Relayed(Relay { ports: ports.to_vec(), proxy });
        assert_eq!(net(&["*"], &found(&[])), relay(&[443], false));
        assert_eq!(net(&["a.example:80"], &found(&[])), relay(&[80, 443], true));
        let mut shared = found(&[Primitive::NetworkNamespace]);
        let required = of(&["*"], Enforce::Required);
        assert!(apply(&required, &location(), &shared).is_err());
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
        let first = apply(&profile, &location(), &all).unwrap().sandbox.digest;
        assert_eq!(first, apply(&profile, &location(), &all).unwrap().sandbox.digest);
        let less = apply(&profile, &location(), &found(&[Primitive::Seccomp])).unwrap();
        assert_ne!(first, less.sandbox.digest);
        let elsewhere = ProgramLocation { cwd: Path::new("/srv/other"), ..location() };
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
        let applied = apply(&profile, &location(), &found(&[])).unwrap();
        let path = |path: &str| {
            applied.sandbox_spec.binds.iter().find(|bind| bind.path == Path::new(path)).cloned()
        };
        assert!(!path("/srv/tools/data").unwrap().writable);
        assert!(path("/srv/shared").is_some() && path("/home/me/x").is_some());
        let out = path("/srv/tools/out").unwrap();
        assert!(out.writable && out.bytes_max == Some(1 << 20));
        assert!(path("/srv/tools").is_none());
    }
}
