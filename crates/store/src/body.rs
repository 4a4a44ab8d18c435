//! How records are kept: as the canonical JSON that is digested, compressed where it is large.
//!
//! Doc: records.md#stores

use toolbooth_audit::LedgerError;

/// From so many bytes on a record is compressed; smaller ones gain nothing.
#[cfg(feature = "postgres")]
const LARGE: usize = 4 << 10;
/// The fastest level that is worth its while for JSON.
#[cfg(feature = "postgres")]
const LEVEL: i32 = 3;
/// Most bytes that a record may have when it is unpacked: larger than any that was written.
const UNPACKED_MAX: usize = 256 << 20;

/// A record as it is stored: its text, or nothing and its compressed form.
#[cfg(feature = "postgres")]
pub(crate) fn pack(text: &str) -> Result<(&str, Option<Vec<u8>>), LedgerError> {
    if text.len() < LARGE {
        return Ok((text, None));
    }
    let packed = zstd::bulk::compress(text.as_bytes(), LEVEL)
        .map_err(|error| crate::corrupt("a record that is written", &error))?;
    Ok(("", Some(packed)))
}

/// The text of a stored record.
pub(crate) fn unpack(text: String, packed: Option<Vec<u8>>) -> Result<String, LedgerError> {
    let Some(packed) = packed else { return Ok(text) };
    let size = zstd::bulk::Decompressor::upper_bound(&packed).unwrap_or(UNPACKED_MAX);
    if size > UNPACKED_MAX {
        return Err(crate::corrupt("a record", &"it says that it is larger than any record"));
    }
    let bytes = zstd::bulk::decompress(&packed, size)
        .map_err(|error| crate::corrupt("a record", &error))?;
    String::from_utf8(bytes).map_err(|error| crate::corrupt("a record", &error))
}

/// A record, read.
#[cfg(feature = "postgres")]
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    what: &str,
    text: String,
    packed: Option<Vec<u8>>,
) -> Result<T, LedgerError> {
    let text = unpack(text, packed)?;
    serde_json::from_str(&text).map_err(|error| crate::corrupt(what, &error))
}
