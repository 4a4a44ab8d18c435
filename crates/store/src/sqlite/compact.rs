//! Ids and digests as columns: UUIDs in 16 bytes, SHA-256 in 32, anything else as its text.
//!
//! Doc: records.md#stores

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};

/// The bytes of a UUID as this house writes it: lower case, with hyphens.
pub(super) fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let mut digits = [0u8; 32];
    if text.len() != 36 {
        return None;
    }
    let mut at = 0;
    for (place, byte) in text.iter().enumerate() {
        let is_hyphen = matches!(place, 8 | 13 | 18 | 23);
        match (is_hyphen, byte) {
            (true, b'-') => (),
            (false, _) => {
                *digits.get_mut(at)? = *byte;
                at += 1;
            }
            (true, _) => return None,
        }
    }
    bytes(&digits)
}

/// What is no digit.
const NONE: u8 = 16;

fn digit(byte: u8) -> u8 {
    match (byte.wrapping_sub(b'0'), byte.wrapping_sub(b'a')) {
        (number @ 0..10, _) => number,
        (_, letter @ 0..6) => letter + 10,
        _ => NONE,
    }
}

/// The bytes of lower-case hex digits.
pub(super) fn bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != N * 2 {
        return None;
    }
    let mut out = [0u8; N];
    let mut all = 0;
    for (out, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let (high, low) = (digit(*high), digit(*low));
        all |= high | low;
        *out = high << 4 | low;
    }
    (all < NONE).then_some(out)
}

/// Writes bytes as lower-case hex digits.
pub(super) fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// Writes the bytes of a UUID as its text.
pub(super) fn push_uuid(bytes: &[u8], out: &mut Vec<u8>) {
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        push_hex(&[*byte], out);
    }
}

/// An id or a digest, as a column takes it.
#[derive(Debug)]
pub(super) enum Compact<'t> {
    Id([u8; 16]),
    Digest([u8; 32]),
    Text(&'t str),
}

impl<'t> Compact<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        match (uuid(text.as_bytes()), bytes::<32>(text.as_bytes())) {
            (Some(id), _) => Self::Id(id),
            (None, Some(digest)) => Self::Digest(digest),
            (None, None) => Self::Text(text),
        }
    }
}

impl ToSql for Compact<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Id(id) => ValueRef::Blob(id),
            Self::Digest(digest) => ValueRef::Blob(digest),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// The text of an id or a digest in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) String);

impl FromSql for Name {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let mut out = Vec::new();
        match value {
            ValueRef::Text(text) => out.extend_from_slice(text),
            ValueRef::Blob(id) if id.len() == 16 => push_uuid(id, &mut out),
            ValueRef::Blob(digest) if digest.len() == 32 => push_hex(digest, &mut out),
            _ => return Err(FromSqlError::InvalidType),
        }
        String::from_utf8(out).map(Self).map_err(FromSqlError::other)
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn ids_and_digests_come_back_as_they_were() {
        let connection = Connection::open_in_memory().unwrap();
        let uuid = "01985b6e-7c1a-7e2b-9f00-0123456789ab";
        let digest = "00ff".repeat(16);
        for (text, kind) in [
            (uuid, "blob"),
            (digest.as_str(), "blob"),
            ("receipt-a", "text"),
            ("", "text"),
            (&uuid.to_uppercase(), "text"),
            (&digest.to_uppercase(), "text"),
            ("01985b6e-7c1a-7e2b-9f00-0123456789a", "text"),
            ("01985b6e07c1a-7e2b-9f00-0123456789ab", "text"),
        ] {
            let (found, of): (Name, String) = connection
                .query_row("SELECT ?1, typeof(?1)", [Compact::of(text)], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .unwrap();
            assert_eq!((found.0.as_str(), of.as_str()), (text, kind));
        }
    }
}
