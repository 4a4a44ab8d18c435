//! What stands in the folder of a project: files with secrets, repositories, and the parts of it that a
//! server is given.
//!
//! A server runs for long. A file that holds secrets may be replaced meanwhile, and a mount that covers
//! it goes with it; one may be made that was not there. So a server is given the folders in a
//! project, and not the folder itself.
//!
//! Path: 7. Doc: execution.md#what-a-server-sees-of-a-project

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::secret_places::{SecretPlaces, is_secret_name};

/// Files by which a folder is known as a project's.
pub(crate) const PROJECT_FILES: [&str; 6] =
    ["package.json", "pyproject.toml", "requirements.txt", "setup.py", "go.mod", "deno.json"];
/// How far files with secrets and repositories are looked for beneath a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    depth: usize,
    folders: usize,
}

/// For a process of one call: each start looks again.
pub(crate) const OF_CALLS: Bounds = Bounds { depth: 3, folders: 300 };
/// For a server.
pub(crate) const OF_SERVERS: Bounds = Bounds { depth: 8, folders: 2_000 };
/// Entries of one folder.
pub(crate) const ENTRIES_MAX: usize = 2_000;
/// Usual names of files with secrets.
const SECRET_FILES: [&str; 12] = [
    ".env",
    ".env.local",
    ".env.dev",
    ".env.development",
    ".env.prod",
    ".env.production",
    ".env.staging",
    ".env.test",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
];
/// Folders that hold what tools have made.
const BUILT: [&str; 4] = ["node_modules", "site-packages", "target", "__pycache__"];
/// Bytes of a configuration of git.
const GIT_CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What is looked for beneath a folder.
#[derive(Debug, Default)]
pub(crate) struct FolderFindings {
    /// Files that hold secrets.
    pub(crate) secrets: Vec<PathBuf>,
    /// Repositories of git: folders, or files that name one.
    pub(crate) repositories: Vec<PathBuf>,
    /// Whether there is more than was looked at.
    pub(crate) is_cut: bool,
}

/// Looks for files with secrets and repositories beneath a folder, the nearest first. Each folder has
/// bounds of its own, so that many files in one hide nothing in another.
pub(crate) fn survey(root: &Path, bounds: Bounds) -> FolderFindings {
    let mut found = FolderFindings::default();
    let is_built = BUILT.iter().any(|built| root.ends_with(built));
    let bounds = if is_built { Bounds { depth: 0, ..bounds } } else { bounds };
    if root.ends_with(".git") {
        found.secrets.extend(git_secrets(root));
    }
    let mut files = Vec::new();
    let mut folders = VecDeque::from([(root.to_owned(), 0)]);
    let mut looked = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        looked += 1;
        if looked > bounds.folders {
            found.is_cut = true;
            break;
        }
        // The usual names are found in any case, however many entries there are.
        found.secrets.extend(
            SECRET_FILES.iter().map(|name| folder.join(name)).filter(|path| path.is_file()),
        );
        let repository = folder.join(".git");
        if repository.exists() {
            found.secrets.extend(git_folders(&repository).iter().flat_map(|at| git_secrets(at)));
            found.repositories.push(repository);
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.take(ENTRIES_MAX) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                let skipped = name == ".git" || BUILT.contains(&name.as_str());
                if depth < bounds.depth && !skipped {
                    folders.push_back((entry.path(), depth + 1));
                }
            } else if !is_secret_name(&name) {
                files.push(entry.path());
            } else if !SECRET_FILES.contains(&name.as_str()) {
                found.secrets.push(entry.path());
            }
        }
    }
    // What a link with such a name leads to is a secret by whatever name.
    let links: Vec<PathBuf> = found
        .secrets
        .iter()
        .filter(|path| path.is_symlink())
        .filter_map(|path| path.canonicalize().ok())
        .filter(|real| real.is_file())
        .collect();
    found.secrets.extend(links);
    let linked = linked(&found.secrets);
    found.secrets.extend(files.into_iter().filter(|file| is_one_of(file, &linked)));
    found
}

/// What tells a file from others, by whatever name.
type FileId = (u64, u64);

/// The files that have other names too.
#[cfg(unix)]
fn linked(files: &[PathBuf]) -> HashSet<FileId> {
    use std::os::unix::fs::MetadataExt;
    let metadata = files.iter().filter_map(|file| file.symlink_metadata().ok());
    let linked = metadata.filter(|file| file.is_file() && file.nlink() > 1);
    linked.map(|file| (file.dev(), file.ino())).collect()
}

#[cfg(unix)]
fn is_one_of(file: &Path, ids: &HashSet<FileId>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = || file.symlink_metadata().ok().map(|file| (file.dev(), file.ino()));
    !ids.is_empty() && id().is_some_and(|id| ids.contains(&id))
}

#[cfg(not(unix))]
fn linked(_: &[PathBuf]) -> HashSet<FileId> {
    HashSet::new()
}

#[cfg(not(unix))]
fn is_one_of(_: &Path, _: &HashSet<FileId>) -> bool {
    false
}

/// The folders of a repository: its own, or what a file in its place names, and what that has in
/// common with other worktrees.
fn git_folders(repository: &Path) -> Vec<PathBuf> {
    let named = |file: PathBuf, word: &str| {
        let text = std::fs::metadata(&file).ok().filter(|data| data.is_file() && data.len() < 4096);
        let text = text.and_then(|_| std::fs::read_to_string(&file).ok())?;
        let path = text.trim().strip_prefix(word)?.trim().to_owned();
        file.parent()?.join(path).canonicalize().ok()
    };
    let mut folders = vec![repository.to_owned()];
    if let Some(other) = named(repository.to_owned(), "gitdir:") {
        folders.extend(named(other.join("commondir"), ""));
        folders.push(other);
    }
    folders
}

/// Files of a repository that hold credentials.
fn git_secrets(repository: &Path) -> Vec<PathBuf> {
    let mut configurations = vec![repository.join("config"), repository.join("config.worktree")];
    let modules = std::fs::read_dir(repository.join("modules")).into_iter().flatten().flatten();
    configurations.extend(modules.take(ENTRIES_MAX).map(|module| module.path().join("config")));
    configurations.retain(|configuration| has_credentials(configuration));
    configurations.extend(Some(repository.join("credentials")).filter(|path| path.is_file()));
    configurations
}

/// Whether a configuration of git holds credentials: in an address, or as a header.
pub(crate) fn has_credentials(config: &Path) -> bool {
    use std::io::Read;
    let mut text = String::new();
    // To open a pipe would wait for whoever writes it.
    let Ok(file) = config.metadata().and_then(|data| match data.is_file() {
        true => std::fs::File::open(config),
        false => Err(std::io::Error::other("it is no ordinary file")),
    }) else {
        return false;
    };
    if file.take(GIT_CONFIG_BYTES_MAX).read_to_string(&mut text).is_err() {
        // What cannot be read as text is not shown.
        return true;
    }
    text.lines().any(|line| {
        let line = line.trim().to_ascii_lowercase();
        let in_address = line
            .split_once("://")
            .and_then(|(_, rest)| rest.split(['/', '"']).next()?.split_once('@'))
            .is_some_and(|(user, _)| user.contains(':') || user.len() > 20);
        in_address || line.contains("extraheader") || line.contains("password")
    })
}

/// Parts that a server is given of one folder.
const PARTS_MAX: usize = 4_000;

/// Whether a folder is a project's, or holds secrets: then a server is given its parts, and not all of
/// it.
#[must_use]
pub fn is_project(folder: &Path) -> bool {
    folder.join(".git").exists()
        || PROJECT_FILES.iter().any(|name| folder.join(name).is_file())
        || !survey(folder, Bounds { depth: 0, folders: 1 }).secrets.is_empty()
}

/// What a server is given of a project: the folders in it, but those in which a file holds secrets,
/// of which it is given parts too; and files, each by itself, as they are when it starts. Nothing is
/// given that is a secret place.
pub(crate) fn parts(project: &Path, places: &SecretPlaces) -> Vec<PathBuf> {
    let mut division = Division::new(places);
    division.learn(project);
    division.cut.clear();
    division.divide(project);
    // A link that was found later may lead to what was given before.
    while let Some(at) = division.parts.iter().position(|part| division.holds_secrets(part)) {
        let part = division.parts.remove(at);
        if part.is_dir() && !part.is_symlink() {
            division.divide(&part);
        }
    }
    let Division { parts, secrets, cut, .. } = division;
    // A link is given where it leads to what is given.
    let (links, mut parts): (Vec<PathBuf>, Vec<PathBuf>) =
        parts.into_iter().partition(|part| part.is_symlink());
    let leads_within = |link: &PathBuf| {
        link.canonicalize().is_ok_and(|real| {
            !secrets.contains(&real) && parts.iter().any(|part| real.starts_with(part))
        })
    };
    let links: Vec<PathBuf> = links.into_iter().filter(leads_within).collect();
    parts.extend(links);
    let cut = cut.iter().filter(|folder| parts.contains(folder));
    if let Some(folder) = cut.clone().next() {
        tracing::warn!(
            folder = %folder.display(),
            folders = cut.count(),
            "it has more folders than are looked through: a file with secrets deep in it may be given to a \
             server"
        );
    }
    if let Some(first) = parts.get(PARTS_MAX) {
        tracing::warn!(
            project = %project.display(),
            first = %first.display(),
            parts = parts.len(),
            "it has more than {PARTS_MAX} parts; a server is not given those from this one on"
        );
    }
    parts.truncate(PARTS_MAX);
    parts
}

/// The division of a project into parts.
struct Division<'p> {
    places: &'p SecretPlaces,
    secrets: HashSet<PathBuf>,
    parts: Vec<PathBuf>,
    /// Folders that were not looked through to their end.
    cut: HashSet<PathBuf>,
}

impl<'p> Division<'p> {
    fn new(places: &'p SecretPlaces) -> Self {
        Self { places, secrets: HashSet::new(), parts: Vec::new(), cut: HashSet::new() }
    }

    fn holds_secrets(&self, folder: &Path) -> bool {
        self.secrets.iter().any(|secret| secret.starts_with(folder))
    }

    /// Looks for what a folder holds.
    fn learn(&mut self, folder: &Path) {
        // The files of a repository are replaced all the time: it is given as a whole, and covered.
        let in_git = |path: &Path| path.components().any(|part| part.as_os_str() == ".git");
        let survey = survey(folder, OF_SERVERS);
        if survey.is_cut {
            self.cut.insert(folder.to_owned());
        }
        let places = self.places.within(folder).cloned();
        self.secrets.extend(survey.secrets.into_iter().chain(places).filter(|path| !in_git(path)));
    }

    /// Divides a folder, and the folders in it that must be, the nearest first.
    fn divide(&mut self, folder: &Path) {
        let mut folders = VecDeque::from([folder.to_owned()]);
        while let Some(folder) = folders.pop_front() {
            let linked = linked(&self.secrets.iter().cloned().collect::<Vec<_>>());
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            for entry in entries.take(ENTRIES_MAX) {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                let Ok(kind) = entry.file_type() else { continue };
                if self.secrets.contains(&path) || self.parts.len() > 2 * PARTS_MAX {
                    continue;
                }
                if kind.is_dir() {
                    if name != ".git" {
                        self.learn(&path);
                    }
                    if self.holds_secrets(&path) {
                        folders.push_back(path);
                    } else {
                        self.parts.push(path);
                    }
                } else if !is_secret_name(&name)
                    && (kind.is_symlink() || (kind.is_file() && !is_one_of(&path, &linked)))
                {
                    self.parts.push(path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
