//! The type of settings that can be secrets.
//!
//! Doc: configuration.md

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use toolbooth_contracts::secret_location::SecretLocation;

/// A value that can be a secret.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Setting {
    /// A literal value.
    Text(String),
    /// A reference that is resolved when the value is needed.
    Kept(KeptSetting),
}

/// Implemented by hand so that an error names the wrong field of a table.
impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Setting;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a table such as { secret_ref = \"env:NAME\" }")
            }
            fn visit_str<E>(self, text: &str) -> Result<Setting, E> {
                Ok(Setting::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Setting, A::Error> {
                let kept = KeptSetting::deserialize(MapAccessDeserializer::new(members));
                kept.map(Setting::Kept).map_err(|error| match error.to_string() {
                    // The library represents a date as a private table.
                    told if told.contains("__toml_private") => {
                        A::Error::invalid_type(Unexpected::Other("date"), &self)
                    }
                    _ => error,
                })
            }
        }
        from.deserialize_any(Visit)
    }
}

/// A value that is stored elsewhere.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KeptSetting {
    /// `env:NAME`, `file:PATH` or `keyring:SERVICE/USER`.
    #[serde(alias = "secret_ref")]
    pub(crate) secret_ref: SecretLocation,
    /// Whether it is hidden in responses, records and logs like a secret; `false` for a harmless value.
    #[serde(default = "is_masked")]
    pub(crate) mask: bool,
}

fn is_masked() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn what_is_wrong_within_a_value_is_named() {
        let wrong = |value: &str| {
            let text = format!("[servers.s]\ncommand = \"x\"\nenv = {{ A = {value} }}\n");
            parse::parse(&text, "toolbooth.toml", Vec::new()).err().map(|failure| failure.message)
        };
        assert_eq!(wrong("\"text\""), None);
        assert_eq!(wrong("{ secret_ref = \"env:A\", mask = false }"), None);
        let told = wrong("{ secret_ref = \"env:A\", masked = false }").unwrap();
        assert!(told.contains("masked"), "{told}");
        let told = wrong("2026-01-01").unwrap();
        assert!(told.contains("a text, or a table") && !told.contains("private"), "{told}");
        let told = wrong("7").unwrap();
        assert!(told.contains("a text, or a table"), "{told}");
    }
}
