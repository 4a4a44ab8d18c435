//! Reads a struct from an object only. The derived readers also accept a list of the values of its members, of
//! which the meaning would change with each new member.
//!
//! Doc: call-path.md#the-request

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A reader of a struct that accepts an object, and no list.
struct ObjectOnly<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectOnly<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Reads a struct from an object.
///
/// # Errors
/// As of the reader, and for a list.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(reader: D) -> Result<T, D::Error> {
    T::deserialize(ObjectOnly(reader))
}

/// Reads a list of structs, each from an object; `null` is none.
///
/// # Errors
/// As [`object`].
pub(crate) fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<Vec<T>>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct Item<T>(#[serde(deserialize_with = "object")] T);
    let items = Option::<Vec<Item<T>>>::deserialize(reader)?;
    Ok(items.map(|items| items.into_iter().map(|Item(item)| item).collect()))
}
