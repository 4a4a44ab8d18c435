//! Provides the shipped sandbox profiles, and chooses a process's profile from contract,
//! configuration and trust.
//!
//! Path: 7. Doc: execution.md#trust-and-containment

use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::{
    Enforce, EnvProfile, FsProfile, NetProfile, SandboxLimits, SandboxProfile,
};
use toolbooth_contracts::trust::TrustLevel;

use crate::egress::EVERYWHERE;
use crate::toolchains;

/// Variables for output and for the location of certificates.
pub(super) const HARMLESS: [&str; 6] =
    ["LANG", "LC_ALL", "TZ", "TERM", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The profile of a tool without one. The working directory and the interpreter are read-only. It
/// has a private temporary folder and no network.
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

/// The profile of a server without one. The working directory and package runners are read-only. It
/// has its own home and caches, and can reach every public host at port 443.
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

/// Returns the profile for trying a program. It is unchanged, except that of the hosts it allows
/// only the registries of package runners remain.
#[must_use]
pub fn trial_profile(profile: SandboxProfile, cwd: &Path) -> SandboxProfile {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let registries = toolchains::registry_hosts(home.as_deref(), cwd);
    let net = profile.net.map(|net| {
        let every = net.hosts.iter().any(|host| host == EVERYWHERE);
        let hosts = registries.into_iter().filter(|host| every || net.hosts.contains(host));
        NetProfile { hosts: hosts.collect() }
    });
    SandboxProfile { net, ..profile }
}

fn allow(names: &[&str]) -> EnvProfile {
    let allow = names.iter().map(|name| (*name).to_owned()).collect();
    EnvProfile { allow, ..EnvProfile::default() }
}

/// The profile of a process that runs one call of a tool.
///
/// The trust level is the minimum. The profile of the contract applies, but for an untrusted tool
/// it is always required. `None` = the tool runs as the gateway does.
#[must_use]
pub fn of_call(own: Option<&SandboxProfile>, trust: TrustLevel) -> Option<SandboxProfile> {
    let mut profile = match own {
        Some(own) => own.clone(),
        None if trust.is_free() => return None,
        None => default_profile(),
    };
    if !trust.is_free() {
        // Limits that a profile leaves open are still bounded.
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

/// The configured profile of a process that serves many calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProfileSetting {
    /// Not configured: the trust level decides.
    #[default]
    Unsaid,
    /// It runs as the gateway does.
    Free,
    /// A profile.
    Profile {
        /// The profile itself.
        profile: Box<SandboxProfile>,
        /// Whether the whole profile is required, if an operator wrote that. Otherwise the trust
        /// level decides.
        enforce: Option<Enforce>,
    },
}

impl ProfileSetting {
    /// Returns the effective profile. `shipped` is the profile of its kind, and `trust` the trust
    /// level of its tools.
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

/// Returns a profile without a configured `enforce`. It is required for an untrusted program.
fn by_trust(profile: SandboxProfile, trust: TrustLevel) -> SandboxProfile {
    let required = trust == TrustLevel::Untrusted;
    let enforce = if required { Enforce::Required } else { profile.enforce };
    SandboxProfile { enforce, ..profile }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_sets_the_floor() {
        assert_eq!(of_call(None, TrustLevel::Trusted), None);
        assert_eq!(of_call(None, TrustLevel::Sandbox).unwrap().enforce, Enforce::BestEffort);
        assert_eq!(of_call(None, TrustLevel::Untrusted).unwrap().enforce, Enforce::Required);
        let own = SandboxProfile { enforce: Enforce::BestEffort, ..SandboxProfile::default() };
        let floor = of_call(Some(&own), TrustLevel::Untrusted).unwrap();
        assert_eq!(floor.enforce, Enforce::Required);
        assert_eq!(of_call(Some(&own), TrustLevel::Trusted), Some(own));
        let unsaid = ProfileSetting::Unsaid;
        assert_eq!(unsaid.profile(server_profile, TrustLevel::Builtin), None);
        let held = unsaid.profile(server_profile, TrustLevel::Untrusted).unwrap();
        assert_eq!(held.enforce, Enforce::Required);
        let held = unsaid.profile(server_profile, TrustLevel::Sandbox).unwrap();
        assert_eq!(held.enforce, Enforce::BestEffort);
        // An untrusted program runs with less only if an operator wrote that.
        let based =
            |enforce| ProfileSetting::Profile { profile: Box::new(server_profile()), enforce };
        for (enforce, held) in
            [(None, Enforce::Required), (Some(Enforce::BestEffort), Enforce::BestEffort)]
        {
            let profile = based(enforce).profile(default_profile, TrustLevel::Untrusted).unwrap();
            assert_eq!(profile.enforce, held);
        }
    }
}
