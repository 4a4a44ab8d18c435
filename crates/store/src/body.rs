//! Reads the bodies of records from the columns `body` and `zbody`, in the formats of all versions.
//!
//! Doc: records.md#stores

use crate::{Unreadable, packing};

/// Maximum bytes of an unpacked record; no written record is that large.
const UNPACKED_MAX: usize = 256 << 20;
/// The first byte of a zstd frame (RFC 8878, 3.1.1). No other format of a record begins with it.
const ZSTD: u8 = 0x28;

/// Returns the text of a record from its columns `body` and `zbody`.
pub(crate) fn unpack(text: String, packed: Option<Vec<u8>>) -> Result<String, Unreadable> {
    match packed {
        None => Ok(text),
        Some(_) if !text.is_empty() => Err(Unreadable::of("it is stored in two forms")),
        Some(packed) if packed.first() == Some(&ZSTD) => decompress(&packed),
        Some(packed) => packing::unpack(&packed),
    }
}

fn decompress(packed: &[u8]) -> Result<String, Unreadable> {
    let size = zstd::bulk::Decompressor::upper_bound(packed).unwrap_or(UNPACKED_MAX);
    if size > UNPACKED_MAX {
        return Err(Unreadable::of("it says that it is larger than any record"));
    }
    let bytes = zstd::bulk::decompress(packed, size).map_err(Unreadable::of)?;
    String::from_utf8(bytes).map_err(Unreadable::of)
}

/// Unpacks and parses a record.
#[cfg(feature = "postgres")]
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    text: String,
    packed: Option<Vec<u8>>,
) -> Result<T, Unreadable> {
    serde_json::from_str(&unpack(text, packed)?).map_err(Unreadable::of)
}
