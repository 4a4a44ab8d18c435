//! The setting of the lock: the path of a file, or a mode and a path.
//!
//! Doc: registry.md#the-lock

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

/// The approved tools with which discovered tools are compared.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Lock {
    /// The lock file; short for a section with only `file`.
    File(PathBuf),
    /// A mode and the lock file.
    Section(LockSection),
}

/// A mode and the lock file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LockSection {
    /// Absent = `first-use`; `file` if `file` is set.
    pub(crate) mode: Option<LockMode>,
    /// The lock file; absent = `tools.lock.json` next to the configuration.
    pub(crate) file: Option<PathBuf>,
}

/// Which tools are approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LockMode {
    /// Those of the lock file if it exists; else those of each source's first listing.
    FirstUse,
    /// Those of the lock file; without the file, none.
    File,
    /// All.
    Off,
}

impl Default for Lock {
    fn default() -> Self {
        Self::Section(LockSection::default())
    }
}

impl Lock {
    /// Returns the mode, if it is set.
    pub(crate) fn mode(&self) -> Option<LockMode> {
        match self {
            Self::File(_) => None,
            Self::Section(section) => section.mode,
        }
    }

    /// Returns the lock file, if it is named.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Section(section) => section.file.as_deref(),
        }
    }
}

// Implemented by hand so that an error names the wrong field instead of "no variant matched".
impl<'de> Deserialize<'de> for Lock {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Lock;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the path of a lock file, or a section with `mode` and `file`")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Lock, E> {
                Ok(Lock::File(path.into()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Lock, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                LockSection::deserialize(map).map(Lock::Section)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::failure::Failure;

    fn lock(text: &str) -> Result<Lock, Failure> {
        parse(text, "t.toml", Vec::new()).map(|config| config.lock)
    }

    #[test]
    fn a_path_is_short_for_a_section() {
        let path = lock("lock = \"a.json\"\n").unwrap();
        assert_eq!((path.mode(), path.file()), (None, Some(Path::new("a.json"))));
        let section = lock("[lock]\nmode = \"first-use\"\nfile = \"a.json\"\n").unwrap();
        assert_eq!(section.mode(), Some(LockMode::FirstUse));
        assert_eq!(section.file(), path.file());
        let absent = lock("").unwrap();
        assert_eq!((absent.mode(), absent.file()), (None, None));
        let variable = vec![("LOCK__MODE".to_owned(), "off".to_owned())];
        let set = parse("[lock]\nmode = \"file\"\n", "t.toml", variable).unwrap();
        assert_eq!(set.lock.mode(), Some(LockMode::Off));
    }

    #[test]
    fn a_wrong_field_is_named() {
        let error = lock("[lock]\nmod = \"file\"\n").unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean `mode`?"), "{error:?}");
        assert_eq!(error.path.as_deref(), Some("t.toml:2:1"), "{error:?}");
        let error = lock("[lock]\nmode = \"firstuse\"\n").unwrap_err();
        assert!(error.message.contains("`first-use`"), "{error:?}");
        let error = lock("lock = 3\n").unwrap_err();
        assert!(error.message.contains("path of a lock file"), "{error:?}");
    }
}
