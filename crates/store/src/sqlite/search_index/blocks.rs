//! Packs index entries into blocks: column by column, compressed.
//!
//! Doc: records.md#reading

use std::collections::HashMap;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use crate::digits::{push_uuid, uuid};

/// Entries per block.
pub(super) const BLOCK: usize = 4096;
/// The fastest zstd level that compresses the columns well.
const LEVEL: i32 = 3;

/// The columns of names that entries are searched by. A name is stored as its number, or 0 if it is
/// absent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    Tool,
    Agent,
    Caller,
    Code,
    Status,
}

/// The number of columns of names.
pub(super) const COLUMNS: usize = 5;

/// The id of a call or a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Id {
    Uuid([u8; 16]),
    Text(Box<str>),
}

impl Id {
    pub(super) fn of(text: &str) -> Self {
        uuid(text.as_bytes()).map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }
}

impl ToSql for Id {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Uuid(id) => ValueRef::Blob(id),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl FromSql for Id {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Blob(id) => Ok(Self::Uuid(id.try_into().map_err(FromSqlError::other)?)),
            value => Ok(Self::Text(value.as_str()?.into())),
        }
    }
}

/// One entry of the index: the indexed members of an event.
#[derive(Debug)]
pub(super) struct IndexEntry {
    pub(super) place: i64,
    pub(super) time: i64,
    pub(super) names: [u32; COLUMNS],
    /// 1 if the event has an agent log, else 0.
    pub(super) has_log: u8,
    pub(super) call: Option<Id>,
    pub(super) receipt: Option<Id>,
}

/// Consecutive entries, column by column.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) places: Vec<i64>,
    pub(super) times: Vec<i64>,
    pub(super) names: [Vec<u32>; COLUMNS],
    pub(super) logs: Vec<u8>,
    /// For each entry the number of its call's id in the block, from 1 on; 0 without a call.
    pub(super) calls: Vec<u16>,
    /// For each entry the number of its receipt's id in the block, from 1 on; 0 without a receipt.
    pub(super) receipts: Vec<u16>,
}

/// The ids of a block, each once: UUIDs first, then texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) uuids: Vec<[u8; 16]>,
    pub(super) texts: Vec<Box<str>>,
}

/// Assigns a number to each id of a block.
#[derive(Default)]
struct Numbers {
    uuids: HashMap<[u8; 16], u16>,
    texts: HashMap<Box<str>, u16>,
    ids: Ids,
}

impl Numbers {
    fn of_uuid(&mut self, id: [u8; 16]) -> u16 {
        *self.uuids.entry(id).or_insert_with(|| {
            self.ids.uuids.push(id);
            u16::try_from(self.ids.uuids.len()).unwrap_or_default()
        })
    }

    /// Texts are numbered separately until the number of UUIDs is known.
    fn of_text(&mut self, id: &str) -> u16 {
        if let Some(number) = self.texts.get(id) {
            return *number;
        }
        self.ids.texts.push(id.into());
        let number = u16::try_from(self.ids.texts.len()).unwrap_or_default();
        self.texts.insert(id.into(), number);
        number
    }
}

impl Block {
    /// Builds a block of at most [`BLOCK`] entries, and its ids.
    pub(super) fn of(entries: &[IndexEntry]) -> (Self, Ids) {
        let (mut block, mut numbers) = (Self::default(), Numbers::default());
        let id = |entry: &Option<Id>, numbers: &mut Numbers| match entry {
            Some(Id::Uuid(id)) => (numbers.of_uuid(*id), false),
            Some(Id::Text(text)) => (numbers.of_text(text), true),
            None => (0, false),
        };
        let (mut calls, mut receipts) = (Vec::new(), Vec::new());
        for entry in entries {
            block.places.push(entry.place);
            block.times.push(entry.time);
            for (column, name) in block.names.iter_mut().zip(entry.names) {
                column.push(name);
            }
            block.logs.push(entry.has_log);
            calls.push(id(&entry.call, &mut numbers));
            receipts.push(id(&entry.receipt, &mut numbers));
        }
        let uuids = u16::try_from(numbers.ids.uuids.len()).unwrap_or_default();
        let number = |(number, is_text): (u16, bool)| number + if is_text { uuids } else { 0 };
        block.calls = calls.into_iter().map(number).collect();
        block.receipts = receipts.into_iter().map(number).collect();
        (block, numbers.ids)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn column(&self, column: Column) -> &[u32] {
        self.names.get(column as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the time and the place of the entry at an index.
    pub(super) fn at(&self, index: usize) -> Option<(i64, i64)> {
        Some((*self.times.get(index)?, *self.places.get(index)?))
    }

    /// Returns the greatest id of a receipt in the block.
    pub(super) fn last_receipt(&self, ids: &Ids) -> Option<String> {
        self.receipts.iter().filter_map(|number| ids.text(*number)).max()
    }

    /// Returns the numbers of all names in the block, sorted.
    pub(super) fn all_names(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.names.iter().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub(super) fn pack(&self) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(self.len() * 48);
        for column in [&self.places, &self.times] {
            let mut before = 0i64;
            for value in column {
                out.extend_from_slice(&value.wrapping_sub(before).to_le_bytes());
                before = *value;
            }
        }
        for column in &self.names {
            column.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        for column in [&self.calls, &self.receipts] {
            column.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        out.extend_from_slice(&self.logs);
        zstd::bulk::compress(&out, LEVEL)
    }

    /// Unpacks a block; `None` if the bytes are damaged.
    pub(super) fn unpack(packed: &[u8]) -> Option<Self> {
        const EACH: usize = 2 * 8 + COLUMNS * 4 + 2 * 2 + 1;
        let bytes = zstd::bulk::decompress(packed, BLOCK * EACH).ok()?;
        let len = bytes.len() / EACH;
        if len * EACH != bytes.len() {
            return None;
        }
        let mut rest = bytes.as_slice();
        let mut block = Self::default();
        for column in [&mut block.places, &mut block.times] {
            let mut before = 0i64;
            *column = values::<8>(&mut rest, len)?
                .map(|value| {
                    before = before.wrapping_add(i64::from_le_bytes(value));
                    before
                })
                .collect();
        }
        for column in &mut block.names {
            *column = values(&mut rest, len)?.map(u32::from_le_bytes).collect();
        }
        for column in [&mut block.calls, &mut block.receipts] {
            *column = values(&mut rest, len)?.map(u16::from_le_bytes).collect();
        }
        block.logs = rest.to_vec();
        Some(block)
    }
}

/// Reads the next values of a column.
fn values<'b, const N: usize>(
    rest: &mut &'b [u8],
    len: usize,
) -> Option<impl Iterator<Item = [u8; N]> + use<'b, N>> {
    let (column, after) = rest.split_at_checked(len * N)?;
    *rest = after;
    Some(column.as_chunks::<N>().0.iter().copied())
}

impl Ids {
    /// Returns the number of an id.
    pub(super) fn number(&self, id: &Id) -> Option<u16> {
        let at = match id {
            Id::Uuid(id) => self.uuids.iter().position(|own| own == id)?,
            Id::Text(text) => self.uuids.len() + self.texts.iter().position(|own| own == text)?,
        };
        u16::try_from(at + 1).ok()
    }

    /// Returns the text of an id by its number.
    pub(super) fn text(&self, number: u16) -> Option<String> {
        let at = usize::from(number).checked_sub(1)?;
        match self.uuids.get(at) {
            Some(id) => Some(text_of(id)),
            None => self.texts.get(at - self.uuids.len()).map(ToString::to_string),
        }
    }

    pub(super) fn pack(&self) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4 + self.uuids.len() * 16);
        out.extend_from_slice(&length(self.uuids.len()));
        self.uuids.iter().for_each(|id| out.extend_from_slice(id));
        if !self.texts.is_empty() {
            let mut texts = Vec::new();
            for text in &self.texts {
                texts.extend_from_slice(&length(text.len()));
                texts.extend_from_slice(text.as_bytes());
            }
            out.extend_from_slice(&length(texts.len()));
            out.extend_from_slice(&zstd::bulk::compress(&texts, LEVEL)?);
        }
        Ok(out)
    }

    /// Unpacks ids; `None` if the bytes are damaged.
    pub(super) fn unpack(packed: &[u8]) -> Option<Self> {
        /// Maximum bytes of the texts: a damaged file may claim any size.
        const TEXTS_MAX: usize = 256 << 20;
        let mut rest = packed;
        let count = take_length(&mut rest)?;
        let uuids = values(&mut rest, count)?.collect();
        let mut texts = Vec::new();
        if !rest.is_empty() {
            let size = take_length(&mut rest).filter(|size| *size <= TEXTS_MAX)?;
            let bytes = zstd::bulk::decompress(rest, size).ok()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let len = take_length(&mut rest)?;
                let (text, after) = rest.split_at_checked(len)?;
                texts.push(std::str::from_utf8(text).ok()?.into());
                rest = after;
            }
        }
        Some(Self { uuids, texts })
    }
}

pub(super) fn text_of(id: &[u8; 16]) -> String {
    let mut out = Vec::with_capacity(36);
    push_uuid(id, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<IndexEntry> {
        let id = |n: usize| match n % 3 {
            0 => None,
            1 => Some(Id::of(&format!("01985b6e-7c1a-7e2b-9f00-0123456789{:02x}", n % 256))),
            _ => Some(Id::of(&format!("call-{n}"))),
        };
        (0..count)
            .map(|n| IndexEntry {
                place: (n as i64) << 20,
                time: 20_261_123_120_000_000 + n as i64,
                names: [n as u32 % 7, 0, 1, n as u32, u32::MAX],
                has_log: u8::from(n % 2 == 0),
                call: id(n),
                receipt: id(n / 2),
            })
            .collect()
    }

    #[test]
    fn blocks_come_back_as_they_were() {
        for count in [0, 1, 5, BLOCK] {
            let entries = entries(count);
            let (block, ids) = Block::of(&entries);
            assert_eq!(Block::unpack(&block.pack().unwrap()), Some(block));
            assert_eq!(Ids::unpack(&ids.pack().unwrap()).as_ref(), Some(&ids));
            let (block, _) = Block::of(&entries);
            for (n, entry) in entries.iter().enumerate() {
                let number = entry.call.as_ref().and_then(|id| ids.number(id));
                assert_eq!(number.unwrap_or_default(), block.calls[n]);
                let receipt = ids.text(block.receipts[n]).map(|text| Id::of(&text));
                assert_eq!(receipt, entry.receipt);
            }
        }
    }

    #[test]
    fn damaged_blocks_are_told_and_never_panic() {
        let (block, ids) = Block::of(&entries(20));
        let (block, ids) = (block.pack().unwrap(), ids.pack().unwrap());
        for packed in [block, ids] {
            for cut in 0..packed.len() {
                let _ = (Block::unpack(&packed[..cut]), Ids::unpack(&packed[..cut]));
                for flipped in [1u8, 0x10, 0x80] {
                    let mut other = packed.clone();
                    other[cut] ^= flipped;
                    let _ = (Block::unpack(&other), Ids::unpack(&other));
                }
            }
        }
    }
}
