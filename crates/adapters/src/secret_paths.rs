//! Lists the paths in which a machine stores secrets of its users. A contained program sees none of
//! them unless its profile names it.
//!
//! Path: 7. Doc: execution.md#secret-places

use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::SandboxProfile;

use crate::error::LeadsToSecret;
use crate::program_location::{ProgramLocation, absolute};

/// Places in a home.
const OF_HOMES: [&str; 72] = [
    ".ssh",
    ".aws",
    ".gnupg",
    ".azure",
    ".kube",
    ".oci",
    ".password-store",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".docker/config.json",
    ".config/containers/auth.json",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/gcloud",
    ".config/doctl",
    ".config/op",
    ".config/1Password",
    ".config/rclone",
    ".config/git/credentials",
    ".config/sops",
    ".config/age",
    ".config/pypoetry/auth.toml",
    ".config/pip/pip.conf",
    ".config/github-copilot",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".git-credentials",
    ".pgpass",
    ".my.cnf",
    ".boto",
    ".s3cfg",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".composer/auth.json",
    ".nuget/NuGet/NuGet.Config",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/state/toolbooth",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    "snap/firefox",
    "snap/chromium",
    ".var/app",
    ".config/Claude",
    ".cursor/mcp.json",
    ".fly",
    ".pulumi/credentials.json",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    "Library/Keychains",
    "Library/Application Support/Google/Chrome",
];
/// Places of the machine.
const OF_THE_MACHINE: [&str; 9] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/var/run/secrets",
];
/// Names of files that contain secrets wherever they are.
const FILES: [&str; 6] =
    [".npmrc", ".netrc", ".pypirc", ".git-credentials", ".pgpass", ".vault-token"];
/// Endings of example files, which name the secrets of a project but contain none.
const EXAMPLES: [&str; 5] = [".example", ".sample", ".template", ".dist", ".defaults"];
/// Files of which two mark a folder as the data folder of a gateway, or a backup of it.
const DATA_FILES: [&str; 5] =
    ["checkpoint.note", "digest.key", "operator.key", "signing.key", "toolbooth.db"];
/// The name of the data folder where no other is configured.
const DATA_FOLDER: &str = ".toolbooth";
/// Maximum number of folders above a path that are examined.
const ABOVE_MAX: usize = 64;

/// Whether a file of this name contains secrets, wherever it is.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let is_env = matches!(name, ".env" | ".envrc") || name.starts_with(".env.");
    FILES.contains(&name) || (is_env && !EXAMPLES.iter().any(|end| name.ends_with(end)))
}

/// Whether a folder with this name and these files is the data folder of a gateway, or a backup of it.
pub(crate) fn is_data_folder<'f>(name: &str, files: impl IntoIterator<Item = &'f str>) -> bool {
    name == DATA_FOLDER
        || files.into_iter().filter(|file| DATA_FILES.contains(file)).nth(1).is_some()
}

/// Whether a path is, or is in, the data folder of a gateway, or a backup of it.
#[cfg(feature = "builtin")]
pub(crate) fn is_in_data_folder(path: &Path) -> bool {
    path.ancestors().take(ABOVE_MAX).any(is_at_data_folder)
}

fn is_at_data_folder(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let there = DATA_FILES.into_iter().filter(|file| path.join(file).is_file());
    (name == DATA_FOLDER && path.is_dir()) || is_data_folder("", there)
}

/// Returns the known homes of the machine.
fn homes(home: Option<&Path>) -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = home.map(Path::to_owned).into_iter().collect();
    homes.push(PathBuf::from("/root"));
    for all in ["/home", "/Users"] {
        let users = std::fs::read_dir(all).into_iter().flatten().flatten();
        homes.extend(users.take(100).map(|user| user.path()));
    }
    let real = |home: PathBuf| home.canonicalize().unwrap_or(home);
    let mut homes: Vec<PathBuf> = homes.into_iter().map(real).collect();
    homes.dedup();
    homes
}

/// The existing secret paths of this machine, as real paths.
#[derive(Debug)]
pub(crate) struct SecretPaths(Vec<PathBuf>);

impl SecretPaths {
    /// Finds the places in the home of the user who runs the gateway, and in those of other users.
    pub(crate) fn of_machine(home: Option<&Path>) -> Self {
        let of_homes =
            homes(home).into_iter().flat_map(|home| OF_HOMES.map(|secret| home.join(secret)));
        let keys = ["rsa", "ecdsa", "ed25519", "dsa"];
        let of_hosts = keys.map(|key| PathBuf::from(format!("/etc/ssh/ssh_host_{key}_key")));
        let of_machine = OF_THE_MACHINE.into_iter().map(PathBuf::from).chain(of_hosts);
        // Only the gateway may read or write its record of trusted configurations.
        let of_gateways = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let of_gateways = of_gateways.map(|state| state.join("toolbooth"));
        let all = of_machine.chain(of_homes).chain(of_gateways);
        // Most of them do not exist, and this check is the cheapest.
        let there = all.filter(|secret| secret.symlink_metadata().is_ok());
        Self(there.filter_map(|secret| secret.canonicalize().ok()).collect())
    }

    /// Returns the real path of the secret place that contains a path or is the path.
    fn of(&self, path: &Path) -> Option<PathBuf> {
        let real = path.canonicalize().ok()?;
        if let Some(secret) = self.0.iter().find(|secret| real.starts_with(secret)) {
            return Some(secret.clone());
        }
        let names_one = |path: &&Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            (is_secret_name(name) && path.is_file()) || is_at_data_folder(path)
        };
        real.ancestors().take(ABOVE_MAX).find(names_one).map(Path::to_owned)
    }

    /// Returns the places beneath a folder.
    pub(crate) fn within<'p>(&'p self, folder: &'p Path) -> impl Iterator<Item = &'p PathBuf> {
        self.0.iter().filter(move |secret| *secret != folder && secret.starts_with(folder))
    }
}

/// Returns the real path of the secret place that contains a path or is the path.
#[must_use]
pub fn secret_path_of(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    SecretPaths::of_machine(home).of(path)
}

/// Checks that neither the working directory nor the command line leads a contained program to
/// secrets. A path that the profile names directly, and not through a link, is allowed.
pub(crate) fn check(
    profile: &SandboxProfile,
    location: &ProgramLocation<'_>,
) -> Result<(), LeadsToSecret> {
    let fs = profile.fs.clone().unwrap_or_default();
    let said = fs.read.iter().map(String::as_str).chain(fs.write.iter().map(|it| it.path.as_str()));
    // `.` does not name a specific folder, and another user may have chosen the target of a link.
    let said: Vec<PathBuf> =
        said.filter(|path| *path != ".").map(|path| absolute(path, location)).collect();
    let is_plain = |path: &&PathBuf| {
        let bases = [location.home, Some(location.cwd), Some(Path::new("/"))].into_iter().flatten();
        let base = bases.into_iter().find(|base| path.starts_with(base));
        let written = base
            .and_then(|base| Some(base.canonicalize().ok()?.join(path.strip_prefix(base).ok()?)));
        written.is_some() && path.canonicalize().ok() == written
    };
    let meant: Vec<PathBuf> =
        said.iter().filter(is_plain).filter_map(|path| path.canonicalize().ok()).collect();
    let secret_paths = SecretPaths::of_machine(location.home);
    let secret = |path: &Path| {
        let real = path.canonicalize().ok()?;
        let found = secret_paths.of(path)?;
        (!meant.iter().any(|own| real.starts_with(own))).then_some(found)
    };
    let led = |what, path: &Path, secret| LeadsToSecret { what, path: path.to_owned(), secret };
    if let Some(found) = secret(location.cwd) {
        return Err(led("its folder", location.cwd, found));
    }
    for (what, paths) in [("its argument", location.words), ("a path of its profile", &said)] {
        for path in paths {
            if let Some(found) = secret(path) {
                return Err(led(what, path, found));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for file in [
            ".ssh/id_rsa",
            ".config/gh/hosts.yml",
            "p/.env",
            "p/.env.example",
            "p/a.txt",
            ".npmrc",
            "d/digest.key",
            "d/signing.key",
            "d/toolbooth.db",
            "q/.toolbooth/secrets/token",
            "b/digest.key",
            "b/toolbooth.db",
            "k/digest.key",
        ] {
            let path = home.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        home
    }

    #[test]
    fn paths_of_and_beneath_secrets_are_known_by_their_real_paths() {
        let home = home();
        let at = |path: &str| home.path().canonicalize().unwrap().join(path);
        std::os::unix::fs::symlink(at(".ssh"), at("p/keys")).unwrap();
        std::os::unix::fs::symlink(at(".ssh/id_rsa"), at("p/plain.txt")).unwrap();
        let of = |path: &str| secret_path_of(&at(path), Some(home.path()));
        for (path, path_found) in [
            (".ssh", ".ssh"),
            (".ssh/id_rsa", ".ssh"),
            ("p/keys/id_rsa", ".ssh"),
            ("p/plain.txt", ".ssh"),
            ("p/../.config/gh/hosts.yml", ".config/gh"),
            ("p/.env", "p/.env"),
            (".npmrc", ".npmrc"),
            ("d/toolbooth.db", "d"),
            ("q/.toolbooth/secrets", "q/.toolbooth"),
            ("b/toolbooth.db", "b"),
        ] {
            assert_eq!(of(path), Some(at(path_found)), "{path}");
        }
        for ordinary in ["p", "p/a.txt", "p/.env.example", "", ".config", "q", "k/digest.key"] {
            assert_eq!(of(ordinary), None, "{ordinary}");
        }
        assert_eq!(secret_path_of(Path::new("/etc/shadow"), None), Some("/etc/shadow".into()));
        assert_eq!(secret_path_of(Path::new("/etc/passwd"), None), None);
    }

    #[test]
    fn a_folder_names_the_secret_paths_beneath_it() {
        let home = home();
        let real = home.path().canonicalize().unwrap();
        let secret_paths = SecretPaths::of_machine(Some(home.path()));
        let found: Vec<&PathBuf> = secret_paths.within(&real).collect();
        for path_found in [".ssh", ".config/gh", ".npmrc"] {
            assert!(found.contains(&&real.join(path_found)), "{path_found}: {found:?}");
        }
        assert_eq!(secret_paths.within(&real.join("p")).count(), 0);
    }
}
