//! The errors of the registry.

use toolbooth_contracts::json::JsonFault;

/// Why a prompt, a resource or a template of a source is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// Its name, URI or URI template is empty or too long.
    #[error("its key has no or more than {bytes_max} bytes")]
    Key {
        /// The longest key, in bytes.
        bytes_max: usize,
    },
    /// Its document contains another key than its source listed.
    #[error("its `{member}` is not its key")]
    OtherKey {
        /// The member of the document.
        member: &'static str,
    },
    /// Its document does not pass the gate.
    #[error("{}: {}", .0.pointer(), .0.message)]
    Json(JsonFault),
    /// Its document has too many levels.
    #[error("it is nested deeper than {levels_max} levels")]
    Deep {
        /// The most levels.
        levels_max: usize,
    },
    /// Its document is too large.
    #[error("it has {bytes} bytes, at most {bytes_max} are taken")]
    Large {
        /// Its size in canonical form, in bytes.
        bytes: usize,
        /// The largest document, in bytes.
        bytes_max: usize,
    },
    /// Its URI template cannot be read.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Why a URI template cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It has too many expressions.
    #[error("it has more than {expressions_max} expressions")]
    Expressions {
        /// The most expressions.
        expressions_max: usize,
    },
}

/// Why a lock file is invalid. An invalid file approves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLock {
    /// The error as a sentence.
    pub message: String,
    /// Line and column, from 1, if they are known.
    pub location: Option<(usize, usize)>,
}

impl std::fmt::Display for InvalidLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidLock {}
