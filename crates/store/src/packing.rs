//! Encodes the text of a record in fewer bytes: digests and ids in binary, member names as numbers.
//!
//! The encoding is reversible byte for byte, so that digests of the text stay valid. Compact JSON
//! has no bytes below 0x20, so that these bytes can serve as tags of substitutions. Large records
//! are compressed as well.
//!
//! Doc: records.md#stores

use std::cell::RefCell;
use std::sync::LazyLock;

use toolbooth_audit::LedgerError;
use zstd::bulk::Compressor;

use crate::digits::{bytes, push_hex, push_uuid, uuid};
use crate::{Unreadable, unwritable};

/// First byte: the record follows unchanged.
const PLAIN: u8 = 0;
/// First byte: the encoded record follows.
const ENCODED: u8 = 1;
/// First byte: the encoded record follows, compressed with zstd.
const PACKED: u8 = 2;

/// Tag: 32 bytes follow, for a string of 64 hex digits.
const DIGEST: u8 = 1;
/// Tag: 16 bytes follow, for a string that is a UUID.
const ID: u8 = 2;
/// Tag: a number follows, for a comma, a member name and its colon.
const NEXT: u8 = 3;
/// Tag: a number follows, for a member name and its colon.
const NAME: u8 = 4;
/// Tag: a number follows, for a string of `WORDS`.
const WORD: u8 = 5;

/// Minimum encoded bytes of a compressed record; smaller records gain nothing.
const LARGE: usize = 4 << 10;
/// The fastest zstd level that compresses JSON well.
const LEVEL: i32 = 3;
/// Maximum encoded bytes of a record that is compressed by the compressor of its thread. Making one costs as much as
/// compressing such a record; for larger ones it would keep megabytes.
const KEPT_MAX: usize = 64 << 10;
/// Maximum bytes of a decoded record; no written record is that large.
const TEXT_MAX: usize = 256 << 20;

/// Member names by their numbers; append-only, since stored records refer to the numbers.
const NAMES: [&str; 86] = [
    "writer",
    "seq",
    "prev",
    "event",
    "time",
    "toolName",
    "agentId",
    "turnIndex",
    "caller",
    "callId",
    "receiptId",
    "status",
    "errorCode",
    "error",
    "effect",
    "durationMs",
    "decision",
    "policyVersion",
    "argsDigest",
    "resultDigest",
    "receiptDigest",
    "logDigest",
    "facts",
    "rule",
    "reason",
    "toolId",
    "contractDigest",
    "idempotency",
    "mode",
    "keyDigest",
    "keyId",
    "state",
    "fields",
    "result",
    "attempt",
    "startedAt",
    "settledAt",
    "sandboxDigest",
    "sandboxMissing",
    "egress",
    "approvalId",
    "auditSeq",
    "prunedAt",
    "content",
    "structuredContent",
    "meta",
    "warnings",
    "type",
    "text",
    "id",
    "phaseId",
    "epicId",
    "input",
    "output",
    "isError",
    "decisionInputs",
    "timestamp",
    "internal",
    "note",
    "heads",
    "size",
    "root",
    "omitted",
    "bytes",
    "begins",
    "digest",
    "code",
    "message",
    "details",
    "by",
    "before",
    "lastLeaf",
    "records",
    "folded",
    "since",
    "holdsKeys",
    "auditCount",
    "left",
    "from",
    "to",
    "countedUntilMs",
    "history",
    "key",
    "atMs",
    "amount",
    "untilMs",
];

/// Strings by their numbers; append-only for the same reason.
const WORDS: [&str; 20] = [
    "succeeded",
    "failed",
    "denied",
    "not_configured",
    "completed",
    "unknown",
    "not_started",
    "in_flight",
    "in_doubt",
    "none",
    "keyed",
    "on-key",
    "safe-retry",
    "local",
    "TOOL_DISPATCHED",
    "TOOL_EXECUTED",
    "TOOL_FAILED",
    "CHECKPOINT",
    "text",
    "permitted",
];

/// The numbers of a list's texts, in a hash table over length, first, middle and last byte.
struct Numbers {
    list: &'static [&'static str],
    buckets: [Vec<u8>; 256],
}

impl Numbers {
    fn of(list: &'static [&'static str]) -> Self {
        let mut buckets = [const { Vec::new() }; 256];
        for (text, number) in list.iter().zip(0..) {
            if let Some(bucket) = buckets.get_mut(Self::bucket(text.as_bytes())) {
                bucket.push(number);
            }
        }
        Self { list, buckets }
    }

    fn bucket(text: &[u8]) -> usize {
        let end = |byte: Option<&u8>| byte.map_or(0, |byte| usize::from(*byte));
        let (first, last) = (end(text.first()), end(text.last()));
        (text.len() * 29 + first * 7 + last * 3 + end(text.get(text.len() / 2))) % 256
    }

    fn get(&self, text: &[u8]) -> Option<u8> {
        let bucket = self.buckets.get(Self::bucket(text))?;
        let is = |number: &&u8| {
            self.list.get(usize::from(**number)).is_some_and(|own| own.as_bytes() == text)
        };
        bucket.iter().find(is).copied()
    }
}

static NAME_NUMBERS: LazyLock<Numbers> = LazyLock::new(|| Numbers::of(&NAMES));
static WORD_NUMBERS: LazyLock<Numbers> = LazyLock::new(|| Numbers::of(&WORDS));

/// Encodes the text of a record for storage.
pub(crate) fn pack(text: &str) -> Result<Vec<u8>, LedgerError> {
    let Some(encoded) = encode(text.as_bytes()) else {
        return Ok([&[PLAIN], text.as_bytes()].concat());
    };
    if encoded.len() < LARGE {
        return Ok(encoded);
    }
    let body = encoded.get(1..).unwrap_or_default();
    let packed = compress(body).map_err(unwritable)?;
    Ok([&[PACKED], packed.as_slice()].concat())
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    thread_local! {
        static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    }
    if body.len() > KEPT_MAX {
        return zstd::bulk::compress(body, LEVEL);
    }
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(Compressor::new(LEVEL)?),
        };
        compressor.compress(body)
    })
}

/// Encodes a text. `None` if it has bytes below 0x20, which would be read as tags.
fn encode(text: &[u8]) -> Option<Vec<u8>> {
    if text.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
        return None;
    }
    let (names, words) = (&*NAME_NUMBERS, &*WORD_NUMBERS);
    let mut out = Vec::with_capacity(text.len() + 1);
    out.push(ENCODED);
    let mut rest = text;
    // Reads the text between two quotation marks. Escaped marks need no special treatment, since
    // every substitution is reversed exactly.
    while let Some((plain, string)) = split_at_quote(rest) {
        let Some((inner, after)) = split_at_end(string) else { break };
        match plain {
            [one] => out.push(*one),
            _ => out.extend_from_slice(plain),
        }
        rest = after;
        if let Some(digest) = bytes::<32>(inner) {
            out.push(DIGEST);
            out.extend_from_slice(&digest);
        } else if let Some(id) = uuid(inner) {
            out.push(ID);
            out.extend_from_slice(&id);
        } else if let (Some((b':', value)), Some(name)) = (after.split_first(), names.get(inner)) {
            let comma = plain.last() == Some(&b',');
            if comma {
                out.pop();
            }
            out.extend_from_slice(&[if comma { NEXT } else { NAME }, name]);
            rest = value;
        } else if let Some(word) = words.get(inner) {
            out.extend_from_slice(&[WORD, word]);
        } else {
            out.push(b'"');
            out.extend_from_slice(inner);
            out.push(b'"');
        }
    }
    out.extend_from_slice(rest);
    Some(out)
}

/// Splits at the next quotation mark: the bytes before it, and the bytes after it.
fn split_at_quote(text: &[u8]) -> Option<(&[u8], &[u8])> {
    match text {
        // The mark is usually one of the next two bytes.
        [b'"', rest @ ..] => Some((&[], rest)),
        [_, b'"', rest @ ..] => Some((text.get(..1)?, rest)),
        _ => split_at(memchr::memchr(b'"', text)?, text),
    }
}

/// Splits at the end of a string in the same way. Examines eight bytes at once first, since member
/// names are short.
fn split_at_end(string: &[u8]) -> Option<(&[u8], &[u8])> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let near = string.first_chunk::<8>().map_or(u64::MAX, |first| u64::from_le_bytes(*first));
    let other = near ^ (ONES * u64::from(b'"'));
    // Sets a bit for each zero byte. Bits above the lowest one may be false, the lowest is exact.
    let zero = other.wrapping_sub(ONES) & !other & (ONES << 7);
    match zero {
        0 => split_at(memchr::memchr(b'"', string)?, string),
        _ => split_at(usize::try_from(zero.trailing_zeros() / 8).ok()?, string),
    }
}

fn split_at(at: usize, text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, quoted) = text.split_at_checked(at)?;
    Some((before, quoted.get(1..)?))
}

/// Returns the text of a stored record, byte for byte.
pub(crate) fn unpack(stored: &[u8]) -> Result<String, Unreadable> {
    let damaged = |what: &str| Unreadable::of(what);
    let bytes = match stored.split_first() {
        Some((&PLAIN, text)) => text.to_vec(),
        Some((&ENCODED, encoded)) => decode(encoded).ok_or_else(|| damaged("it is cut off"))?,
        Some((&PACKED, packed)) => {
            let size = zstd::bulk::Decompressor::upper_bound(packed).unwrap_or(TEXT_MAX);
            if size > TEXT_MAX {
                return Err(damaged("it says that it is larger than any record"));
            }
            let encoded = zstd::bulk::decompress(packed, size).map_err(Unreadable::of)?;
            decode(&encoded).ok_or_else(|| damaged("it is cut off"))?
        }
        _ => return Err(damaged("it is in no form that is known")),
    };
    String::from_utf8(bytes).map_err(Unreadable::of)
}

/// Decodes and parses a stored record.
pub(crate) fn read<T: serde::de::DeserializeOwned>(stored: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_str(&unpack(stored)?).map_err(Unreadable::of)
}

fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(encoded.len().min(TEXT_MAX) * 2);
    let mut rest = encoded;
    while let Some(at) = rest.iter().position(|byte| *byte < 0x20) {
        let (plain, coded) = rest.split_at(at);
        out.extend_from_slice(plain);
        let (code, given) = coded.split_first()?;
        let taken = match *code {
            DIGEST => 32,
            ID => 16,
            _ => 1,
        };
        let (given, after) = given.split_at_checked(taken)?;
        let listed = |list: &[&'static str]| list.get(usize::from(*given.first()?)).copied();
        match *code {
            NEXT => out.extend_from_slice(b",\""),
            DIGEST | ID | NAME | WORD => out.push(b'"'),
            _ => return None,
        }
        match *code {
            DIGEST => push_hex(given, &mut out),
            ID => push_uuid(given, &mut out),
            WORD => out.extend_from_slice(listed(&WORDS)?.as_bytes()),
            _ => out.extend_from_slice(listed(&NAMES)?.as_bytes()),
        }
        out.extend_from_slice(if matches!(*code, NEXT | NAME) { b"\":" } else { b"\"" });
        if out.len() > TEXT_MAX {
            return None;
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(text: &str) -> usize {
        let packed = pack(text).unwrap();
        assert_eq!(unpack(&packed).unwrap(), text);
        packed.len()
    }

    #[test]
    fn packed_records_are_smaller_and_come_back_byte_for_byte() {
        let digest = "00ff".repeat(16);
        let id = "01985b6e-7c1a-7e2b-9f00-0123456789ab";
        let event = format!(
            r#"{{"argsDigest":"{digest}","callId":"{id}","caller":"local","event":"TOOL_EXECUTED","prev":"{digest}","seq":7,"writer":"{id}"}}"#
        );
        assert!(back(&event) * 2 < event.len(), "{}", back(&event));
        for text in [
            "",
            "{}",
            r#"{"a":"\"caller\":","b":"\\"}"#,
            r#"{"caller":"local","x":["caller","local",{"caller":1}]}"#,
            "{\"pretty\": 1,\n\t\"caller\":\u{1} 2}",
            "\u{1}\u{2}\u{3}",
            "\"",
            "\"local",
            "no json, \"local\" and \"caller\":",
            "\"\u{1}\"",
            "a\"b\nc\"d",
            &format!("\"{}\"", "00FF".repeat(16)),
            &format!(r#"{{"text":"{}"}}"#, "x,\"".repeat(5_000)),
        ] {
            back(text);
        }
        assert!(NAMES.len() < 256 && WORDS.len() < 256);
        for (list, numbers) in [(&NAMES[..], &*NAME_NUMBERS), (&WORDS[..], &*WORD_NUMBERS)] {
            for (text, number) in list.iter().zip(0..) {
                assert_eq!(numbers.get(text.as_bytes()), Some(number), "{text}");
            }
        }
    }

    #[test]
    fn a_compressor_that_is_used_again_gives_what_a_new_one_gives() {
        // Numbers of a linear congruential generator: varied text, which each level compresses differently.
        let numbers = (0..).scan(1_u32, |last, _: u32| {
            *last = last.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(*last >> 20)
        });
        let text: String = numbers.take(KEPT_MAX).map(|number| format!("{number:x} ")).collect();
        for size in [100, 5_000, KEPT_MAX, 200, KEPT_MAX + 1, 3_000] {
            let body = &text.as_bytes()[..size];
            let own = zstd::bulk::compress(body, LEVEL).unwrap();
            assert_eq!(compress(body).unwrap(), own, "{size}");
        }
    }

    #[test]
    fn damaged_records_are_told_and_never_panic() {
        let whole = pack(&format!(r#"{{"caller":"{}"}}"#, "00ff".repeat(16))).unwrap();
        let large = pack(&format!(r#"{{"text":"{}"}}"#, "ab".repeat(5_000))).unwrap();
        for stored in [whole, large] {
            for cut in 0..stored.len() {
                let _ = unpack(&stored[..cut]);
                for flipped in [1u8, 0x10, 0x80] {
                    let mut other = stored.clone();
                    other[cut] ^= flipped;
                    let _ = unpack(&other);
                }
            }
        }
        for wrong in [&b""[..], b"\x09", b"\x01\x06x", b"\x01\x05\xff", b"\x02\x00", b"\x00\xff"] {
            assert!(unpack(wrong).is_err(), "{wrong:?}");
        }
    }
}
