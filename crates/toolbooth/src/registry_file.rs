//! Reads the registry file of a configuration.
//!
//! Doc: registry.md

use toolbooth_registry::file;

use crate::config::Loaded;
use crate::failure::Failure;

/// Reads the registry file; `None` if it does not exist.
pub(crate) fn read(loaded: &Loaded) -> Result<Option<(String, Vec<u8>)>, Failure> {
    let (path, named) = loaded.registry();
    let shown = path.display().to_string();
    match crate::files::read(&path) {
        Ok(text) => Ok(Some((shown, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => Ok(None),
        Err(error) => {
            Err(Failure::configuration(format!("the registry file cannot be read: {error}"))
                .at(shown))
        }
    }
}

/// Returns the failure for a rejected registry file.
pub(crate) fn rejected(rejected: &file::Rejected) -> Failure {
    let location = rejected
        .findings
        .first()
        .map(|finding| format!("{}:{}:{}", finding.file, finding.line, finding.column));
    let failure = Failure::new(crate::failure::USAGE, "invalid-registry", rejected.to_string())
        .hint("`toolbooth check` lists all errors");
    match location {
        Some(location) => failure.at(location),
        None => failure,
    }
}
