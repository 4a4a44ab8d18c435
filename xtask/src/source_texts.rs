//! Reads the sources of the crates, and the texts beside them.

use std::path::Path;

use anyhow::{Context, Result};

use crate::run::{files, repository, rust_files};

/// Folders outside the crates whose texts are checked for words, with the file extensions to read.
const FOLDERS: [(&str, &[&str]); 3] =
    [("docs", &["md"]), ("examples", &["md", "toml"]), ("tests", &["rs"])];

/// A source file, or a text of one of [`FOLDERS`].
#[derive(Debug, Clone)]
pub struct Source {
    /// The crate or the folder that it belongs to.
    pub krate: String,
    pub path: String,
    pub text: String,
}

impl Source {
    /// Whether it is a source file of a crate.
    pub fn is_code(&self) -> bool {
        FOLDERS.iter().all(|(name, _)| self.krate != *name)
    }

    /// Returns the part of a file before its unit tests; empty for a file of tests.
    pub fn without_tests(&self) -> &str {
        if self.path.ends_with("/tests.rs") {
            return "";
        }
        self.text.split("#[cfg(test)]\nmod tests").next().unwrap_or(&self.text)
    }
}

/// Reads the sources of the crates, and the texts of [`FOLDERS`].
pub fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut add = |owner: &str, path: &Path| -> Result<()> {
        let text = std::fs::read_to_string(path)?;
        let path = path.strip_prefix(repository())?.display().to_string();
        sources.push(Source { krate: owner.to_owned(), path, text });
        Ok(())
    };
    for entry in std::fs::read_dir(repository().join("crates"))? {
        let folder = entry?.path();
        let manifest: toml::Table =
            toml::from_str(&std::fs::read_to_string(folder.join("Cargo.toml"))?)?;
        let name = manifest["package"]["name"].as_str().context("a package has a name")?.to_owned();
        for path in rust_files(&folder.join("src"))? {
            add(&name, &path)?;
        }
        for tests in ["tests", "benches"].map(|tests| folder.join(tests)) {
            if tests.is_dir() {
                rust_files(&tests)?.iter().try_for_each(|path| add("tests", path))?;
            }
        }
    }
    for (folder, extensions) in FOLDERS {
        for path in files(&repository().join(folder), extensions)? {
            add(folder, &path)?;
        }
    }
    Ok(sources)
}
