//! Finds the package runners and toolchains in a user's home, and the registries that they use.
//!
//! A contained server has its own home and caches. It can read the user's toolchains, but never the
//! user's credentials. Of package manager settings it receives only the address of the registry.
//!
//! Path: 7. Doc: execution.md#homes-and-caches

use std::path::{Path, PathBuf};

/// Maximum size of a settings file, in bytes.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Folders of toolchains and package runners beneath a home. None of these contains credentials.
pub(crate) const FOLDERS: [&str; 16] = [
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".deno/bin",
    ".local/bin",
    ".local/lib",
    ".local/pipx/venvs",
    ".local/share/mise",
    ".local/share/pipx/venvs",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".nvm",
    ".pyenv",
    ".rustup/toolchains",
    ".volta",
];

/// Variables that tell version managers their folders when `HOME` is another folder.
const ROOTS: [(&str, &str); 8] = [
    ("ASDF_DATA_DIR", ".asdf"),
    ("MISE_DATA_DIR", ".local/share/mise"),
    ("NVM_DIR", ".nvm"),
    ("PYENV_ROOT", ".pyenv"),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python"),
    ("VOLTA_HOME", ".volta"),
    ("RUSTUP_HOME", ".rustup"),
    ("PIPX_SHARED_LIBS", ".local/share/pipx/shared"),
];

/// Variables that select additional trusted certificates, most of them as paths.
pub(crate) const CERTIFICATES: [&str; 5] =
    ["NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "UV_SYSTEM_CERTS"];

/// Variables that name a registry. Their values may contain credentials.
const REGISTRIES: [&str; 6] = [
    "npm_config_registry",
    "NPM_CONFIG_REGISTRY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
];

/// Returns the variables of a contained program with its own home. They name the user's toolchains
/// and the registries of the user's package managers, without credentials.
pub(crate) fn variables(home: Option<&Path>, cwd: &Path) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| {
        if found.iter().all(|(known, _)| known != name) {
            found.push((name.to_owned(), value));
        }
    };
    for (name, folder) in ROOTS {
        let standard = home.map(|home| home.join(folder));
        let said = std::env::var_os(name).map(PathBuf::from);
        if let Some(root) = said.or(standard).filter(|root| root.is_dir()) {
            set(name, root.display().to_string());
        }
    }
    for name in CERTIFICATES {
        if let Ok(value) = std::env::var(name) {
            set(name, value);
        }
    }
    for name in REGISTRIES {
        if let Some(value) = std::env::var(name).ok().and_then(|value| without_credentials(&value))
        {
            set(name, value);
        }
    }
    let beneath = |path: &str| home.map(|home| home.join(path));
    let npm = [Some(cwd.join(".npmrc")), beneath(".npmrc")];
    if let Some(url) = first(npm, |text| value_of(text, &["registry"])) {
        set("npm_config_registry", url);
    }
    let pip = [".config/pip/pip.conf", ".pip/pip.conf"].map(beneath);
    if let Some(url) = first(pip, |text| value_of(text, &["index-url", "index_url"])) {
        set("PIP_INDEX_URL", url);
    }
    let uv = [Some(cwd.join("uv.toml")), beneath(".config/uv/uv.toml")];
    if let Some(url) = first(uv, default_index) {
        set("UV_DEFAULT_INDEX", url);
    }
    found
}

/// Returns the registries that the files of a project name, with the variables that pass them on.
#[must_use]
pub fn project_registries(cwd: &Path) -> Vec<(String, String)> {
    let npm = first([Some(cwd.join(".npmrc"))], |text| value_of(text, &["registry"]));
    let uv = first([Some(cwd.join("uv.toml"))], default_index);
    let found = [("npm_config_registry", npm), ("UV_DEFAULT_INDEX", uv)];
    found.into_iter().filter_map(|(name, url)| Some((name.to_owned(), url?))).collect()
}

/// The default registries of package runners.
const STANDARD_REGISTRIES: [&str; 6] = [
    "registry.npmjs.org",
    "npm.jsr.io",
    "jsr.io",
    "deno.land",
    "pypi.org",
    "files.pythonhosted.org",
];

/// Returns the hosts of the registries that a user's package runners use, at port 443.
pub(crate) fn registry_hosts(home: Option<&Path>, cwd: &Path) -> Vec<String> {
    let own = variables(home, cwd).into_iter().filter_map(|(_, url)| {
        let rest = url.strip_prefix("https://")?.split('/').next()?.to_owned();
        Some(rest.strip_suffix(":443").map_or(rest.clone(), str::to_owned))
    });
    let all = STANDARD_REGISTRIES.into_iter().map(str::to_owned).chain(own);
    let mut hosts: Vec<String> =
        all.filter(|host| !host.contains(':')).map(|host| format!("{host}:443")).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Returns the first address in one of these files, without credentials.
fn first<const N: usize>(
    files: [Option<PathBuf>; N],
    read: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    files.into_iter().flatten().find_map(|path| {
        use std::io::Read;
        let mut text = String::new();
        // Opening a named pipe would block until another process writes to it.
        std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        let file = std::fs::File::open(path).ok()?;
        file.take(SETTINGS_BYTES_MAX).read_to_string(&mut text).ok()?;
        without_credentials(&read(&text)?)
    })
}

/// Returns the value of a setting of the form `name = value`.
fn value_of(text: &str, names: &[&str]) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        names.contains(&name.trim()).then(|| value.to_owned())
    })
}

/// Returns the default index of a `uv.toml`.
fn default_index(text: &str) -> Option<String> {
    if let Some(url) = value_of(text, &["index-url"]) {
        return Some(url);
    }
    // `[[index]]` with `default = true`.
    text.split("[[index]]").skip(1).find_map(|section| {
        let own = section.split("\n[").next().unwrap_or_default();
        let is_default = value_of(own, &["default"]).is_some_and(|value| value == "true");
        is_default.then(|| value_of(own, &["url"])).flatten()
    })
}

/// Returns an address without user name and password. `None` if it is not a URL or contains a
/// variable.
fn without_credentials(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://")?;
    if !matches!(scheme, "http" | "https") || url.contains('$') {
        return None;
    }
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A query may contain a credential too.
    let path = path.split(['?', '#']).next().unwrap_or_default();
    (!host.is_empty()).then(|| format!("{scheme}://{host}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_handed_on_without_credentials() {
        let home = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            ".npmrc",
            "//r.example/:_authToken=hunter1\nregistry = https://me:hunter2@r.example/npm/?t=hunter3\n",
        );
        write(
            ".config/pip/pip.conf",
            "[global]\nindex-url = https://__token__:hunter4@r.example/simple\n",
        );
        write(
            ".config/uv/uv.toml",
            "[[index]]\nurl = \"https://other.example\"\n[[index]]\nurl = \"https://u:hunter5@uv.example/simple\"\ndefault = true\n[pip]\n",
        );
        write(".nvm/x", "");
        let found = variables(Some(home.path()), Path::new("/nowhere"));
        let of =
            |name: &str| found.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        assert_eq!(of("npm_config_registry"), Some("https://r.example/npm/"));
        assert_eq!(of("PIP_INDEX_URL"), Some("https://r.example/simple"));
        assert_eq!(of("UV_DEFAULT_INDEX"), Some("https://uv.example/simple"));
        assert!(!format!("{found:?}").contains("hunter"), "{found:?}");
    }

    #[test]
    fn only_addresses_are_handed_on() {
        assert_eq!(without_credentials("https://${TOKEN}@r.example/"), None);
        assert_eq!(without_credentials("file:///etc"), None);
        assert_eq!(without_credentials("http://r.example").as_deref(), Some("http://r.example"));
    }
}
