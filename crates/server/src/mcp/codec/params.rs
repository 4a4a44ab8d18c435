//! The parameters of a message, which stay raw JSON until they are read.
//!
//! Path: 1. Doc: front-doors.md#messages

use std::borrow::Cow;
use std::collections::HashMap;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::mcp::rpc_error::RpcError;

/// Maximum bytes of the known members of `_meta`.
const META_BYTES_MAX: usize = 64 << 10;

/// The parameters of a message, each member as raw JSON.
#[derive(Debug, Clone)]
pub(in crate::mcp) enum Params {
    /// The members of an object, each name once.
    Members(Vec<(String, Box<RawValue>)>),
    /// Other parameters: not an object, or with more members than `MEMBERS_MAX`.
    Whole(Box<RawValue>),
}

impl Default for Params {
    fn default() -> Self {
        Self::Members(Vec::new())
    }
}

impl Params {
    /// Reads all members as `T`; unknown members are ignored. [`Params::member`] reads one member
    /// and does not parse the others.
    ///
    /// # Errors
    /// `-32602`, with the reason.
    pub(in crate::mcp) fn read<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let read = match self {
            Self::Whole(raw) => serde_json::from_str(raw.get()),
            Self::Members(members) => {
                let members = members.iter().map(|(name, raw)| (name.as_str(), raw.as_ref()));
                T::deserialize(MapDeserializer::new(members))
            }
        };
        read.map_err(|error| malformed(&error))
    }

    /// Reads one member; `None` if it is absent.
    ///
    /// # Errors
    /// As [`Params::read`].
    pub(in crate::mcp) fn member<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, RpcError> {
        let read = match self {
            Self::Members(members) => {
                let own = members.iter().find(|(own, _)| own == name);
                own.map(|(_, raw)| serde_json::from_str(raw.get())).transpose()
            }
            Self::Whole(raw) => {
                let members: Result<HashMap<String, Box<RawValue>>, _> =
                    serde_json::from_str(raw.get());
                members.and_then(|mut members| {
                    members.remove(name).map(|raw| serde_json::from_str(raw.get())).transpose()
                })
            }
        };
        read.map_err(|error| malformed(&error))
    }

    /// Removes a member and returns it as raw JSON; `None` if it is absent.
    pub(in crate::mcp) fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        match self {
            Self::Members(members) => {
                let at = members.iter().position(|(own, _)| own == name)?;
                Some(members.swap_remove(at).1)
            }
            Self::Whole(_) => self.member(name).ok().flatten(),
        }
    }

    /// Returns the members of `_meta` that the gateway knows; all others are skipped.
    ///
    /// # Errors
    /// `-32602` if `_meta` is not an object, or its known members are too large.
    pub(in crate::mcp) fn meta(&self) -> Result<Map<String, Value>, RpcError> {
        #[derive(Deserialize)]
        struct Meta {
            #[serde(default, rename = "_meta")]
            meta: Option<MetaMembers>,
        }
        let known = match self {
            Self::Members(_) => self.member::<Option<MetaMembers>>("_meta")?.flatten(),
            Self::Whole(_) => self.read::<Meta>()?.meta,
        };
        Ok(known.map(|known| known.0).unwrap_or_default())
    }
}

fn malformed(error: &serde_json::Error) -> RpcError {
    // Line and column count from the start of the parameters, which would mislead the client.
    let text = error.to_string();
    let sentence = text.split(" at line ").next().unwrap_or_default();
    RpcError::invalid_params(format!("the parameters are malformed: {sentence}"))
}

/// The members of `_meta` that the gateway knows.
struct MetaMembers(Map<String, Value>);

impl<'de> Deserialize<'de> for MetaMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = MetaMembers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object as `_meta`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<MetaMembers, A::Error> {
                let (mut known, mut bytes) = (Map::new(), 0);
                while let Some(key) = members.next_key::<Cow<'de, str>>()? {
                    let is_known = key == "progressToken"
                        || key.starts_with("toolbooth/")
                        || key.starts_with("io.modelcontextprotocol/");
                    if !is_known {
                        members.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let raw = members.next_value::<Box<RawValue>>()?;
                    bytes += key.len() + raw.get().len();
                    if bytes > META_BYTES_MAX {
                        let sentence = "what is known of `_meta` has more than 65536 bytes";
                        return Err(A::Error::custom(sentence));
                    }
                    let value = serde_json::from_str(raw.get()).map_err(A::Error::custom)?;
                    let twice = format!("`_meta` has the member `{}` twice", key.escape_debug());
                    if known.insert(key.into_owned(), value).is_some() {
                        return Err(A::Error::custom(twice));
                    }
                }
                Ok(MetaMembers(known))
            }
        }
        from.deserialize_map(Visitor)
    }
}
