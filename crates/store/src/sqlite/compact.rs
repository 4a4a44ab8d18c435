//! Stores ids and digests in columns: UUIDs in 16 bytes, SHA-256 in 32, other texts unchanged.
//!
//! Doc: records.md#stores

use data_encoding::HEXLOWER;
use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};

use crate::digits::{bytes, push_hex, push_uuid, uuid};

/// An id or a digest, as a column stores it.
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

impl Compact<'_> {
    /// Returns the id or digest as text.
    pub(super) fn text(&self) -> String {
        let mut out = Vec::new();
        match self {
            Self::Id(id) => push_uuid(id, &mut out),
            Self::Digest(digest) => push_hex(digest, &mut out),
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        String::from_utf8_lossy(&out).into_owned()
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

/// Any value of a column as text, for reports. A value that no writer stores must be reported too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shown(pub(super) String);

impl FromSql for Shown {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(match (Name::column_result(value), value) {
            (Ok(name), _) => name.0,
            (_, ValueRef::Null) => String::new(),
            (_, ValueRef::Integer(number)) => number.to_string(),
            (_, ValueRef::Real(number)) => number.to_string(),
            (_, ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            (_, ValueRef::Blob(bytes)) => format!("x'{}'", HEXLOWER.encode(bytes)),
        }))
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
