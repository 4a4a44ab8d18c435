//! The settings of sandboxes: a name, or a profile.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_adapters::egress::NetworkRules;
use toolbooth_adapters::sandbox::{ProfileSetting, default_profile, is_wide, server_profile};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::sandbox::{
    Enforce, EnvProfile, FsProfile, NetProfile, SandboxLimits, SandboxProfile, WritePath,
};
use toolbooth_contracts::secret_location::SecretRef;

use crate::failure::Failure;

/// Settings for all sandboxes.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandboxes {
    /// A folder for cgroups; absent = the gateway's own cgroup is tried.
    pub(crate) cgroup: Option<PathBuf>,
    /// Addresses and ranges that sandboxed programs can reach although they are not public, such as a package
    /// mirror.
    pub(crate) allow_addresses: Vec<String>,
    /// Named profiles.
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// The sandbox of a process.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Sandbox {
    /// `none`, `default`, `server`, or the name of a profile.
    Named(String),
    /// A profile.
    Own(Box<Profile>),
}

impl Sandbox {
    /// Returns the name of the profile for messages; `None` for a shipped profile.
    pub(crate) fn name(&self, owner: &str) -> Option<String> {
        match self {
            Self::Named(name) if ["none", "default", "server"].contains(&name.as_str()) => None,
            Self::Named(name) => Some(name.clone()),
            Self::Own(_) => Some(format!("servers.{owner}")),
        }
    }
}

// Implemented by hand so that an error names the wrong field instead of "no variant matched".
impl<'de> Deserialize<'de> for Sandbox {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> serde::de::Visitor<'de> for Words {
            type Value = Sandbox;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`none`, `default`, `server`, the name of a profile, or a profile")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Sandbox, E> {
                Ok(Sandbox::Named(name.to_owned()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Sandbox, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                Profile::deserialize(map).map(|profile| Sandbox::Own(Box::new(profile)))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// A profile; it denies everything that it does not name.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Profile {
    /// A shipped profile that applies where this one has no setting: `default`, `server`.
    pub(crate) base: Option<Base>,
    /// `required` or `best-effort`.
    pub(crate) enforce: Option<Enforce>,
    /// Files.
    pub(crate) fs: Option<Fs>,
    /// Network.
    pub(crate) net: Option<Net>,
    /// Environment.
    pub(crate) env: Option<Env>,
    /// Limits.
    pub(crate) limits: Option<Limits>,
}

/// A shipped profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Base {
    /// Read-only access to the working directory; no network.
    Default,
    /// Read-only access to the toolchains of the home; a home of its own; every public host at port 443.
    Server,
}

/// Files that a process can access.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fs {
    /// Paths that it can read; absent = those of `base`, which the entry `...` includes.
    pub(crate) read: Option<Vec<String>>,
    /// Paths that it can write.
    pub(crate) write: Vec<Write>,
    /// Size of its private temporary folder, in MiB.
    pub(crate) tmp_mb: Option<u64>,
}

/// A path that a process can write to.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Write {
    /// The path.
    Path(String),
    /// The path, and its maximum size.
    Bounded(Bounded),
}

/// A path, and its maximum size.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bounded {
    /// The path.
    pub(crate) path: String,
    /// The maximum size, in MiB.
    pub(crate) max_mb: Option<u64>,
}

/// Hosts that a process can reach.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Net {
    /// `...` for those of `base`; `name:port`, `*.name:port`, `address:port`; `*` for every public host at
    /// port 443, `*:port` for every public host at another port.
    pub(crate) hosts: Vec<String>,
}

/// The environment of a process.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Env {
    /// Variables that are passed from the gateway's environment; absent = those of `base`.
    pub(crate) allow: Option<Vec<String>>,
    /// Variables with fixed values.
    pub(crate) set: BTreeMap<String, String>,
    /// Variables with secret values.
    pub(crate) secrets: BTreeMap<String, SecretRef>,
}

/// Enforced limits.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Wall time of one call, in milliseconds.
    pub(crate) wall_ms: Option<u64>,
    /// Processor time of each process of one call, in seconds.
    pub(crate) cpu_s: Option<u64>,
    /// Processor time of all its processes together, in percent of one processor; requires a cgroup.
    pub(crate) cpu_percent: Option<u64>,
    /// Memory, in MiB.
    pub(crate) memory_mb: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: Option<u64>,
    /// Open descriptors.
    pub(crate) open_files: Option<u64>,
    /// Size of one file, in MiB.
    pub(crate) file_mb: Option<u64>,
    /// Bytes of standard output.
    pub(crate) stdout_bytes: Option<u64>,
    /// Bytes of standard error.
    pub(crate) stderr_bytes: Option<u64>,
}

impl Sandboxes {
    /// Returns the rules for the networks of sandboxed programs.
    pub(crate) fn network(&self) -> Result<NetworkRules, Failure> {
        NetworkRules::parse(&self.allow_addresses).map_err(|error| {
            Failure::configuration(with_causes(&error))
                .at("sandbox.allow_addresses".to_owned())
                .hint("write an address or a range, such as `203.0.113.7` or `203.0.113.0/24`")
        })
    }

    /// Returns the profile that `said` at `setting` selects for a process that serves many calls and runs in
    /// `folder`.
    pub(crate) fn profile_setting(
        &self,
        said: Option<&Sandbox>,
        setting: &str,
        folder: Option<&Path>,
    ) -> Result<ProfileSetting, Failure> {
        let profile_setting = self.meaning(said, setting, folder)?;
        if let ProfileSetting::Profile { profile, .. } = &profile_setting {
            let limits = profile.limits.clone().unwrap_or_default();
            let of_calls = [
                ("wall_ms", limits.wall_ms),
                ("cpu_s", limits.cpu_s),
                ("stdout_bytes", limits.stdout_bytes),
                ("stderr_bytes", limits.stderr_bytes),
            ];
            if let Some((name, _)) = of_calls.iter().find(|(_, limit)| limit.is_some()) {
                let message =
                    format!("`{name}` bounds processes of one call; this one serves many");
                let hint = match *name {
                    "cpu_s" => "`cpu_percent` bounds its processor time",
                    _ => "the tools' `timeout_ms` bounds each call",
                };
                return Err(Failure::configuration(message).at(setting.to_owned()).hint(hint));
            }
        }
        Ok(profile_setting)
    }

    /// Rejects invalid profiles, also those that are not used.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for name in self.profiles.keys() {
            let setting = format!("sandbox.profiles.{name}");
            if ["none", "default", "server"].contains(&name.as_str()) {
                let message = format!("`{name}` is the name of a shipped profile");
                return Err(Failure::configuration(message).at(setting).hint("call it otherwise"));
            }
            self.meaning(Some(&Sandbox::Named(name.clone())), &setting, None)?;
        }
        Ok(())
    }

    fn meaning(
        &self,
        said: Option<&Sandbox>,
        setting: &str,
        folder: Option<&Path>,
    ) -> Result<ProfileSetting, Failure> {
        let mut enforce = None;
        let profile = match said {
            None => return Ok(ProfileSetting::Unsaid),
            Some(Sandbox::Named(name)) => match name.as_str() {
                "none" => return Ok(ProfileSetting::Free),
                "default" => default_profile(),
                "server" => server_profile(),
                other => match self.profiles.get(other) {
                    Some(profile) => {
                        enforce = profile.enforce;
                        profile.contract(folder)
                    }
                    None => return Err(self.unknown(other, setting)),
                },
            },
            Some(Sandbox::Own(profile)) => {
                enforce = profile.enforce;
                profile.contract(folder)
            }
        };
        let limits = profile.limits.clone().unwrap_or_default();
        let zero = [
            limits.memory_mb,
            limits.pids,
            limits.open_files,
            limits.cpu_s,
            limits.cpu_percent,
            limits.wall_ms,
        ];
        if zero.contains(&Some(0)) {
            let message = "a limit of 0 lets nothing run";
            return Err(Failure::configuration(message.to_owned()).at(setting.to_owned()));
        }
        let hosts = profile.net.as_ref().map(|net| net.hosts.clone()).unwrap_or_default();
        toolbooth_adapters::egress::AllowList::parse(&hosts)
            .map_err(|error| Failure::configuration(with_causes(&error)).at(setting.to_owned()))?;
        Ok(ProfileSetting::Profile { profile: Box::new(profile), enforce })
    }

    fn unknown(&self, name: &str, setting: &str) -> Failure {
        let known = self.profiles.keys().map(String::as_str);
        let near = toolbooth_contracts::id::nearest(
            name,
            ["none", "default", "server"].into_iter().chain(known),
        );
        let failure = Failure::configuration(format!("there is no sandbox profile `{name}`"));
        failure.at(setting.to_owned()).hint(match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => "write it as `[sandbox.profiles.NAME]`, or say `none`, `default` or `server`"
                .to_owned(),
        })
    }

    /// Returns the profile for processes of one call each that run in `folder`; `None` if no sandbox is set.
    pub(crate) fn of_calls(
        &self,
        said: Option<&Sandbox>,
        setting: &str,
        folder: Option<&Path>,
    ) -> Result<Option<SandboxProfile>, Failure> {
        match self.meaning(said, setting, folder)? {
            ProfileSetting::Unsaid => Ok(None),
            ProfileSetting::Profile { profile, .. } => Ok(Some(*profile)),
            ProfileSetting::Free => Err(Failure::configuration(
                "how a tool of one process per call is contained is decided by its trust level",
            )
            .at(setting.to_owned())
            .hint("say `trust_level = \"trusted\"` for tools that may run as the gateway does")),
        }
    }
}

impl Profile {
    /// Returns the profile in the form of contracts, for a process that runs in `folder`. Missing settings
    /// are those of the base.
    fn contract(&self, folder: Option<&Path>) -> SandboxProfile {
        let base = match self.base {
            Some(Base::Default) => default_profile(),
            Some(Base::Server) => server_profile(),
            None => SandboxProfile::default(),
        };
        let write = |write: &Write| match write {
            Write::Path(path) => WritePath { path: path.clone(), max_mb: None },
            Write::Bounded(own) => WritePath { path: own.path.clone(), max_mb: own.max_mb },
        };
        let base_fs = base.fs.clone().unwrap_or_default();
        let base_read = inherited(&base_fs.read, folder);
        let fs = |fs: &Fs| FsProfile {
            read: with_base(fs.read.as_deref(), &base_read),
            write: fs.write.iter().map(write).collect(),
            tmp_mb: fs.tmp_mb.or(base_fs.tmp_mb),
        };
        let base_hosts = base.net.clone().unwrap_or_default().hosts;
        let net =
            |net: &Net| NetProfile { hosts: with_base(Some(net.hosts.as_slice()), &base_hosts) };
        let base_env = base.env.clone().unwrap_or_default();
        let env = |env: &Env| EnvProfile {
            allow: with_base(env.allow.as_deref(), &base_env.allow),
            set: env.set.clone(),
            secrets: env.secrets.clone(),
        };
        let base_limits = base.limits.clone().unwrap_or_default();
        let limits = |own: &Limits| SandboxLimits {
            wall_ms: own.wall_ms.or(base_limits.wall_ms),
            cpu_s: own.cpu_s.or(base_limits.cpu_s),
            cpu_percent: own.cpu_percent.or(base_limits.cpu_percent),
            memory_mb: own.memory_mb.or(base_limits.memory_mb),
            pids: own.pids.or(base_limits.pids),
            open_files: own.open_files.or(base_limits.open_files),
            file_mb: own.file_mb.or(base_limits.file_mb),
            stdout_bytes: own.stdout_bytes.or(base_limits.stdout_bytes),
            stderr_bytes: own.stderr_bytes.or(base_limits.stderr_bytes),
        };
        SandboxProfile {
            enforce: self.enforce.unwrap_or(base.enforce),
            fs: self.fs.as_ref().map(fs).or(base.fs),
            net: self.net.as_ref().map(net).or(base.net),
            env: self.env.as_ref().map(env).or(base.env),
            limits: self.limits.as_ref().map(limits).or(base.limits),
        }
    }
}

/// The list entry that includes the entries of the base.
const REST: &str = "...";

/// Returns a list with the entry `...` replaced by the base's entries; without a list, the base's entries.
fn with_base(own: Option<&[String]>, base: &[String]) -> Vec<String> {
    let Some(own) = own else { return base.to_vec() };
    let entry = |entry: &String| match entry.as_str() {
        REST => base.to_vec(),
        _ => vec![entry.clone()],
    };
    own.iter().flat_map(entry).collect()
}

/// Returns the paths that a profile inherits from its base. `.` is the folder of a project. It is omitted if
/// the process runs in a home, `/tmp` and the like, or in an unknown folder.
fn inherited(read: &[String], folder: Option<&Path>) -> Vec<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let wide = folder.is_none_or(|folder| is_wide(folder, home.as_deref()));
    read.iter().filter(|path| !(wide && *path == ".")).cloned().collect()
}

#[cfg(test)]
mod tests;
