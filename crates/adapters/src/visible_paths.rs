//! Selects the paths of this machine that a contained program sees.
//!
//! They are the paths of its profile, the files that it needs to run, and the paths that an
//! operator wrote on its command line. Input from an agent never adds a path. Naming a path inside
//! a folder of mixed content never opens that folder.
//!
//! Path: 7. Doc: execution.md#what-a-program-sees

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_launcher::order::Bind;

use crate::command_line::{find, is_executable};
use crate::program_location::{ProgramLocation, absolute, lexical};
use crate::project::{OF_CALLS, OF_SERVERS, PROJECT_FILES, is_project, parts, survey};
use crate::sandbox::profile::{default_profile, server_profile};
use crate::secret_paths::SecretPaths;
use crate::toolchains::CERTIFICATES;

/// System paths that any program needs. They contain no home and no file that only root can read.
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
/// Additional paths that a program needs to resolve names on the machine's own network.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Maximum number of interpreters that are followed from one script to the next.
const INTERPRETERS_MAX: usize = 4;
/// Maximum number of parent folders of a file that are searched for a project.
const PROJECT_DEPTH: usize = 6;
/// Returns every path that the program can see. `host_names`: it resolves names as the machine
/// does.
pub(crate) fn binds(
    profile: &SandboxProfile,
    location: &ProgramLocation<'_>,
    host_names: bool,
) -> Vec<Bind> {
    let mut binds: BTreeMap<PathBuf, Bind> = BTreeMap::new();
    let mut add = |path: PathBuf, writable: bool, optional: bool, bytes_max: Option<u64>| {
        let mapped = !BASE.iter().chain(&NAMES).any(|base| Path::new(base) == path);
        let bind = Bind { path: path.clone(), writable, optional, mapped, bytes_max, own: false };
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
        .map(|write| absolute(&write.path, location))
        .flat_map(|path| [path.canonicalize().ok(), Some(path)])
        .flatten()
        .collect();
    // The program may have created a path that it can write, so such a path opens no other path.
    let ours = |path: &Path| !written.iter().any(|written| path.starts_with(written));
    if let Some(program) = location.words.first() {
        for program in with_interpreters(program, location.cwd, ours) {
            for path in installation(&program, location.home) {
                of_folder(path, location, &written).into_iter().for_each(|path| {
                    add(path, false, true, None);
                });
            }
        }
    }
    for word in location.words.iter().skip(1).filter(|word| ours(word)) {
        if let Some(path) = opened_with(word, location.home) {
            of_folder(path, location, &written).into_iter().for_each(|path| {
                add(path, false, true, None);
            });
            // Also under the path that is passed to the program, which may be a link.
            if word.is_file() {
                add(lexical(word), false, true, None);
            }
        }
    }
    for path in location.also {
        add(path.clone(), false, true, None);
    }
    if location.own.is_some() {
        for path in CERTIFICATES.iter().filter_map(std::env::var_os).map(PathBuf::from) {
            if path.is_absolute() && path.is_file() {
                add(path, false, true, None);
            }
        }
    }
    // `.` in a shipped profile means the folder of a project, not a home in which the program was
    // started.
    let shipped = [default_profile().fs, server_profile().fs].contains(&profile.fs);
    let wide = is_wide(location.cwd, location.home);
    for path in fs.read.iter().filter(|path| !(shipped && wide && *path == ".")) {
        if path == "." {
            // The working directory may be divided into parts. A path that is written out is bound
            // as a whole.
            for part in of_folder(lexical(location.cwd), location, &written) {
                let optional = part != location.cwd;
                add(part, false, optional, None);
            }
            continue;
        }
        // A shipped profile names paths beneath a home that may not exist.
        add(absolute(path, location), false, path.starts_with("~/"), None);
    }
    for write in &fs.write {
        let max = write.max_mb.map(|count| count.saturating_mul(1 << 20));
        add(absolute(&write.path, location), true, write.path.starts_with("~/"), max);
    }
    // Git runs hooks and filters of a repository outside of the sandbox, so repositories are
    // read-only.
    for repository in repositories(&written) {
        if ours_alone(&repository, &written) {
            add(repository, false, true, None);
        }
    }
    let mut binds: Vec<Bind> = binds.into_values().collect();
    if let Some(own) = location.own {
        let path = own.canonicalize().unwrap_or_else(|_| own.to_owned());
        binds.retain(|bind| bind.path != path);
        let (writable, optional, mapped) = (true, false, true);
        binds.push(Bind { path, writable, optional, mapped, bytes_max: None, own: true });
    }
    binds
}

/// Returns the paths to bind for one path: the parts of a project for a server, otherwise the path
/// itself.
fn of_folder(path: PathBuf, location: &ProgramLocation<'_>, written: &[PathBuf]) -> Vec<PathBuf> {
    let is_server = location.own.is_some();
    if !(is_server && path.is_dir() && is_project(&path)) {
        return vec![path];
    }
    let mut parts = parts(&path, &SecretPaths::of_machine(location.home));
    // A writable path is bound as a whole.
    parts.retain(|part| !written.iter().any(|written| part.starts_with(written)));
    parts
}

/// Returns the repositories in writable folders.
fn repositories(written: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let folders = written.iter().filter(|folder| folder.is_dir());
    folders.flat_map(|folder| survey(folder, OF_CALLS).repositories)
}

/// Whether no writable path of the profile is this path or is beneath it.
fn ours_alone(path: &Path, written: &[PathBuf]) -> bool {
    !written.iter().any(|written| written.starts_with(path))
}

/// Returns the paths that the program must not see although they are beneath visible ones. They are
/// the gateway's own files, files of the project with secrets (`.env`), a git configuration with
/// credentials, and secret places.
pub(crate) fn hidden(
    profile: &SandboxProfile,
    location: &ProgramLocation<'_>,
    binds: &[Bind],
) -> Vec<PathBuf> {
    let mut hidden = location.hidden.to_vec();
    let base = |bind: &Bind| {
        let toolchain = location.home.is_some_and(|home| {
            crate::toolchains::FOLDERS.iter().any(|folder| home.join(folder) == bind.path)
        });
        bind.own || toolchain || BASE.iter().any(|base| Path::new(base) == bind.path)
    };
    let fs = profile.fs.clone().unwrap_or_default();
    let said = fs.read.iter().map(String::as_str).chain(fs.write.iter().map(|it| it.path.as_str()));
    let named: Vec<PathBuf> = said
        .map(|path| absolute(path, location))
        .flat_map(|path| [path.canonicalize().ok(), Some(path)])
        .flatten()
        .collect();
    let secret_paths = SecretPaths::of_machine(location.home);
    for bind in binds.iter().filter(|bind| !base(bind)) {
        // A file is bound only by its own name. A folder may contain secrets.
        let Some(folder) = bind.path.canonicalize().ok().filter(|path| path.is_dir()) else {
            continue;
        };
        let known = secret_paths.within(&folder).cloned();
        let bounds = if location.own.is_some() { OF_SERVERS } else { OF_CALLS };
        for path in survey(&folder, bounds).secrets.into_iter().chain(known) {
            if !named.contains(&path) && !hidden.contains(&path) {
                hidden.push(path);
            }
        }
    }
    if location.own.is_some() {
        // A link or another name next to the parts of a project may reveal secrets in the project.
        let words =
            location.words.iter().skip(1).filter_map(|word| opened_with(word, location.home));
        for project in words.chain([lexical(location.cwd)]).filter(|folder| is_project(folder)) {
            for path in survey(&project, OF_SERVERS).secrets {
                let is_seen = binds.iter().any(|bind| path.starts_with(&bind.path));
                if is_seen && !named.contains(&path) && !hidden.contains(&path) {
                    hidden.push(path);
                }
            }
        }
    }
    hidden
}

/// Returns a program and the interpreters that the first lines of scripts name. Stops at a path
/// that `ours` rejects, because such a path is not the operator's.
fn with_interpreters(program: &Path, cwd: &Path, ours: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let mut next = Some(program.to_owned());
    while let Some(program) = next.filter(|program| ours(program)) {
        if programs.contains(&program) || programs.len() > INTERPRETERS_MAX {
            break;
        }
        // An interpreter that is not executable is not made visible.
        next = interpreter(&program, cwd).filter(|program| is_executable(program));
        programs.push(program);
    }
    programs
}

/// Returns the interpreter that the first line of a script names.
fn interpreter(script: &Path, cwd: &Path) -> Option<PathBuf> {
    use std::io::Read;
    let mut start = Vec::new();
    std::fs::File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let first = words.next()?;
    if first.ends_with("/env") {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return find(name, cwd);
    }
    Some(PathBuf::from(first))
}

/// Returns the path to make readable for a path on the command line of an operator. For a file this
/// is its project, or the file alone outside of a project. A folder with mixed content returns
/// `None`.
#[must_use]
pub fn opened_with(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    if real.is_file() {
        return Some(project_of(&real, home));
    }
    (real.is_dir() && !is_wide(&real, home)).then_some(real)
}

/// Returns the folder of the project that a program's file belongs to, otherwise the file.
fn project_of(file: &Path, home: Option<&Path>) -> PathBuf {
    // Packages that are installed together load each other.
    let installed = file.ancestors().filter(|folder| folder.ends_with("node_modules")).last();
    if let Some(folder) = installed {
        return folder.to_owned();
    }
    let mut above =
        file.ancestors().skip(1).take(PROJECT_DEPTH).take_while(|folder| !is_wide(folder, home));
    let project = above.find(|folder| PROJECT_FILES.iter().any(|name| folder.join(name).is_file()));
    project.unwrap_or(file).to_owned()
}

/// Whether a folder contains much that is unrelated to one program. Such a folder is opened only if
/// a profile names it.
#[must_use]
pub fn is_wide(folder: &Path, home: Option<&Path>) -> bool {
    const WIDE: [&str; 19] = [
        "/boot",
        "/dev",
        "/proc",
        "/sys",
        "/usr",
        "/usr/local",
        "/",
        "/etc",
        "/home",
        "/media",
        "/mnt",
        "/opt",
        "/root",
        "/run",
        "/srv",
        "/tmp",
        "/var",
        "/var/lib",
        "/var/tmp",
    ];
    const WIDE_AT_HOME: [&str; 6] = [".local", ".local/share", ".config", ".cache", ".ssh", ".aws"];
    WIDE.iter().any(|wide| Path::new(wide) == folder)
        || home.is_some_and(|home| {
            home.starts_with(folder) || WIDE_AT_HOME.iter().any(|own| home.join(own) == folder)
        })
}

/// Whether a folder belongs to the system.
pub(crate) fn is_system(folder: &Path) -> bool {
    BASE.iter().any(|base| folder.starts_with(base))
        || ["/etc", "/dev", "/proc", "/sys", "/run", "/var/run", "/boot"]
            .iter()
            .any(|system| folder.starts_with(system))
}

/// Returns the installation of a program that does not belong to the system. It is the file under
/// both of its names if it is a link, and the folders next to the `bin` of a toolchain.
fn installation(program: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let mut found = vec![program.to_owned()];
    let real = program.canonicalize().ok();
    found.extend(real.clone());
    for file in [Some(program.to_owned()), real].into_iter().flatten() {
        // Packages that are installed together load each other.
        let together = file.ancestors().filter(|folder| folder.ends_with("node_modules")).last();
        if let Some(folder) = together {
            found.push(folder.to_owned());
            continue;
        }
        let Some(folder) = file.parent() else { continue };
        let Some(prefix) = folder.parent().filter(|prefix| !is_wide(prefix, home)) else {
            continue;
        };
        match folder.file_name().and_then(|name| name.to_str()) {
            Some("bin") if is_toolchain(prefix) => {
                for beside in ["bin", "lib", "lib64", "share", "pyvenv.cfg"] {
                    found.push(prefix.join(beside));
                }
            }
            // The folder of a version manager. Its shims run the programs of the installed
            // versions.
            Some("shims")
                if ["versions", "installs"].iter().any(|own| prefix.join(own).is_dir()) =>
            {
                found.push(prefix.to_owned());
            }
            _ => found.push(project_of(&file, home)),
        }
    }
    found
}

/// Whether a folder is a Python or Node installation and nothing else.
fn is_toolchain(prefix: &Path) -> bool {
    let python = || {
        let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with("python"))
    };
    prefix.join("pyvenv.cfg").is_file() || prefix.join("lib/node_modules").is_dir() || python()
}

#[cfg(test)]
mod tests;
