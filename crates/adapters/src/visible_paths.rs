//! Which paths of this machine a contained program sees: those of its profile, what it is made of,
//! and what an operator wrote on its command line.
//!
//! Nothing follows from what an agent says. Folders that hold all kinds of things are never opened
//! because something in them is named.
//!
//! Path: 7. Doc: execution.md#what-a-program-sees

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_launcher::order::Bind;

use crate::command_line::{find, is_executable};
use crate::place::{Place, absolute, lexical};
use crate::project::{OF_CALLS, OF_SERVERS, PROJECT_FILES, is_project, parts, survey};
use crate::sandbox::profile::{default_profile, server_profile};
use crate::secret_places::SecretPlaces;
use crate::toolchains::CERTIFICATES;

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
/// What finding names on the machine's own network needs beside it.
const NAMES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Interpreters of interpreters that are looked for.
const INTERPRETERS_MAX: usize = 4;
/// Folders that are looked at above a file.
const PROJECT_DEPTH: usize = 6;
/// Everything that the program may see. `host_names`: it finds names as the machine does.
pub(crate) fn binds(profile: &SandboxProfile, place: &Place<'_>, host_names: bool) -> Vec<Bind> {
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
        .map(|write| absolute(&write.path, place))
        .flat_map(|path| [path.canonicalize().ok(), Some(path)])
        .flatten()
        .collect();
    // What a program may write it may have put there: nothing follows from that.
    let ours = |path: &Path| !written.iter().any(|written| path.starts_with(written));
    if let Some(program) = place.words.first() {
        for program in with_interpreters(program, place.cwd, ours) {
            for path in installation(&program, place.home) {
                of_folder(path, place, &written).into_iter().for_each(|path| {
                    add(path, false, true, None);
                });
            }
        }
    }
    for word in place.words.iter().skip(1).filter(|word| ours(word)) {
        if let Some(path) = opened_with(word, place.home) {
            of_folder(path, place, &written).into_iter().for_each(|path| {
                add(path, false, true, None);
            });
            // The same by the name that the program is given.
            if word.is_file() {
                add(lexical(word), false, true, None);
            }
        }
    }
    for path in place.also {
        add(path.clone(), false, true, None);
    }
    if place.own.is_some() {
        for path in CERTIFICATES.iter().filter_map(std::env::var_os).map(PathBuf::from) {
            if path.is_absolute() && path.is_file() {
                add(path, false, true, None);
            }
        }
    }
    // A shipped profile means the folder of a project, not a home that somebody started it in.
    let shipped = [default_profile().fs, server_profile().fs].contains(&profile.fs);
    let wide = is_wide(place.cwd, place.home);
    for path in fs.read.iter().filter(|path| !(shipped && wide && *path == ".")) {
        if path == "." {
            // Where it runs; what is meant as a whole is written as a path.
            for part in of_folder(lexical(place.cwd), place, &written) {
                let optional = part != place.cwd;
                add(part, false, optional, None);
            }
            continue;
        }
        // What a shipped profile names beneath a home is there or not.
        add(absolute(path, place), false, path.starts_with("~/"), None);
    }
    for write in &fs.write {
        let max = write.max_mb.map(|count| count.saturating_mul(1 << 20));
        add(absolute(&write.path, place), true, write.path.starts_with("~/"), max);
    }
    // What stands in a repository is run by git outside, as hooks and filters are.
    for repository in repositories(&written) {
        if ours_alone(&repository, &written) {
            add(repository, false, true, None);
        }
    }
    let mut binds: Vec<Bind> = binds.into_values().collect();
    if let Some(own) = place.own {
        let path = own.canonicalize().unwrap_or_else(|_| own.to_owned());
        binds.retain(|bind| bind.path != path);
        let (writable, optional, mapped) = (true, false, true);
        binds.push(Bind { path, writable, optional, mapped, bytes_max: None, own: true });
    }
    binds
}

/// A path as it is given to a program: of a project, a server is given parts.
fn of_folder(path: PathBuf, place: &Place<'_>, written: &[PathBuf]) -> Vec<PathBuf> {
    let is_server = place.own.is_some();
    if !(is_server && path.is_dir() && is_project(&path)) {
        return vec![path];
    }
    let mut parts = parts(&path, &SecretPlaces::of_machine(place.home));
    // What may be written is given as a whole.
    parts.retain(|part| !written.iter().any(|written| part.starts_with(written)));
    parts
}

/// The repositories in folders that may be written.
fn repositories(written: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let folders = written.iter().filter(|folder| folder.is_dir());
    folders.flat_map(|folder| survey(folder, OF_CALLS).repositories)
}

/// Whether a profile names neither a path nor anything beneath it.
fn ours_alone(path: &Path, written: &[PathBuf]) -> bool {
    !written.iter().any(|written| written.starts_with(path))
}

/// What the program must not see, though it stands beneath what it may: the gateway's own, files of
/// the project that hold secrets (`.env`), a git configuration with credentials, and secret places.
pub(crate) fn hidden(profile: &SandboxProfile, place: &Place<'_>, binds: &[Bind]) -> Vec<PathBuf> {
    let mut hidden = place.hidden.to_vec();
    let base = |bind: &Bind| {
        let toolchain = place.home.is_some_and(|home| {
            crate::toolchains::FOLDERS.iter().any(|folder| home.join(folder) == bind.path)
        });
        bind.own || toolchain || BASE.iter().any(|base| Path::new(base) == bind.path)
    };
    let fs = profile.fs.clone().unwrap_or_default();
    let said = fs.read.iter().map(String::as_str).chain(fs.write.iter().map(|it| it.path.as_str()));
    let named: Vec<PathBuf> = said
        .map(|path| absolute(path, place))
        .flat_map(|path| [path.canonicalize().ok(), Some(path)])
        .flatten()
        .collect();
    let places = SecretPlaces::of_machine(place.home);
    for bind in binds.iter().filter(|bind| !base(bind)) {
        // A file that is bound is named; folders may hold secrets.
        let Some(folder) = bind.path.canonicalize().ok().filter(|path| path.is_dir()) else {
            continue;
        };
        let known = places.within(&folder).cloned();
        let bounds = if place.own.is_some() { OF_SERVERS } else { OF_CALLS };
        for path in survey(&folder, bounds).secrets.into_iter().chain(known) {
            if !named.contains(&path) && !hidden.contains(&path) {
                hidden.push(path);
            }
        }
    }
    if place.own.is_some() {
        // What a link or another name beside the parts of a project tells of what is in them.
        let words = place.words.iter().skip(1).filter_map(|word| opened_with(word, place.home));
        for project in words.chain([lexical(place.cwd)]).filter(|folder| is_project(folder)) {
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

/// A program, and the interpreters that the first lines of scripts name; nothing that follows from
/// what `ours` says is not the operator's.
fn with_interpreters(program: &Path, cwd: &Path, ours: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let mut next = Some(program.to_owned());
    while let Some(program) = next.filter(|program| ours(program)) {
        if programs.contains(&program) || programs.len() > INTERPRETERS_MAX {
            break;
        }
        // What nobody can run is opened for nobody.
        next = interpreter(&program, cwd).filter(|program| is_executable(program));
        programs.push(program);
    }
    programs
}

/// What the first line of a script says that runs it.
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

/// What has to be readable for a path that an operator wrote on a command line: a file with its
/// project, or alone where it has none; a folder that does not hold all kinds of things.
#[must_use]
pub fn opened_with(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    if real.is_file() {
        return Some(project_of(&real, home));
    }
    (real.is_dir() && !is_wide(&real, home)).then_some(real)
}

/// The folder of the project that a program's file belongs to, else the file.
fn project_of(file: &Path, home: Option<&Path>) -> PathBuf {
    // What is installed together is found together.
    let installed = file.ancestors().filter(|folder| folder.ends_with("node_modules")).last();
    if let Some(folder) = installed {
        return folder.to_owned();
    }
    let mut above =
        file.ancestors().skip(1).take(PROJECT_DEPTH).take_while(|folder| !is_wide(folder, home));
    let project = above.find(|folder| PROJECT_FILES.iter().any(|name| folder.join(name).is_file()));
    project.unwrap_or(file).to_owned()
}

/// Whether a folder holds much that has nothing to do with one program; such a folder is opened only
/// where a profile names it.
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

/// Whether a folder is the system's own.
pub(crate) fn is_system(folder: &Path) -> bool {
    BASE.iter().any(|base| folder.starts_with(base))
        || ["/etc", "/dev", "/proc", "/sys", "/run", "/var/run", "/boot"]
            .iter()
            .any(|system| folder.starts_with(system))
}

/// Where a program that is not the system's own is installed: its file by both of its names where it
/// is a link, and what stands beside the `bin` of a toolchain.
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
        let Some(prefix) = folder.parent().filter(|prefix| !is_wide(prefix, home)) else {
            continue;
        };
        match folder.file_name().and_then(|name| name.to_str()) {
            Some("bin") if is_toolchain(prefix) => {
                for beside in ["bin", "lib", "lib64", "share", "pyvenv.cfg"] {
                    found.push(prefix.join(beside));
                }
            }
            // The folder of a version manager, whose programs stand for those of its versions.
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

/// Whether a folder is that of a Python or Node installation, and of nothing else.
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
