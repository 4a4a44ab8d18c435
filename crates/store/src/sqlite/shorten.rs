//! The text of a record in fewer bytes: digests and ids in binary, names of members as numbers.
//!
//! A substitution that is undone byte for byte: what was hashed is what is read. JSON has no bytes
//! below 0x20 where no white space stands between its tokens, so that these are free to say what
//! follows. Large records are compressed as well.
//!
//! Doc: records.md#stores

use std::sync::LazyLock;

use toolbooth_audit::LedgerError;

use super::compact::{bytes, push_hex, push_uuid, uuid};
use crate::corrupt;

/// The record follows as it is.
const PLAIN: u8 = 0;
/// The record follows, shortened.
const SHORT: u8 = 1;
/// The same, compressed with zstd.
const PACKED: u8 = 2;

/// 32 bytes follow: a string of 64 hex digits.
const DIGEST: u8 = 1;
/// 16 bytes follow: a string that is a UUID.
const ID: u8 = 2;
/// A number follows: the name of a member, with its colon, after a comma.
const NEXT: u8 = 3;
/// A number follows: the name of a member, with its colon.
const NAME: u8 = 4;
/// A number follows: a string.
const WORD: u8 = 5;

/// From so many bytes on a record is compressed; smaller ones gain nothing.
const LARGE: usize = 4 << 10;
/// The fastest level that is worth its while for JSON.
const LEVEL: i32 = 3;
/// Most bytes that a record may have when it is read: larger than any that was written.
const TEXT_MAX: usize = 256 << 20;

/// Names of members, by their numbers; append-only, since records are written with them.
const NAMES: [&str; 80] = [
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
];

/// Strings, by their numbers; append-only.
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

/// The numbers of a list's texts, by length and ends of a text: few texts share those.
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

/// The text of a record as it is stored.
pub(super) fn pack(text: &str) -> Result<Vec<u8>, LedgerError> {
    let Some(short) = shorten(text.as_bytes()) else {
        return Ok([&[PLAIN], text.as_bytes()].concat());
    };
    if short.len() < LARGE {
        return Ok(short);
    }
    let body = short.get(1..).unwrap_or_default();
    let packed = zstd::bulk::compress(body, LEVEL)
        .map_err(|error| corrupt("a record that is written", &error))?;
    Ok([&[PACKED], packed.as_slice()].concat())
}

/// `None` where the text has bytes of its own that would say something else.
fn shorten(text: &[u8]) -> Option<Vec<u8>> {
    if text.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
        return None;
    }
    let (names, words) = (&*NAME_NUMBERS, &*WORD_NUMBERS);
    let mut out = Vec::with_capacity(text.len());
    out.push(SHORT);
    let mut rest = text;
    // What is between two quotation marks; whether one of them is escaped makes no difference.
    while let Some((plain, string)) = split_at_quote(rest)
        && let Some((inner, after)) = split_at_quote(string)
    {
        out.extend_from_slice(plain);
        rest = after;
        if let Some(digest) = bytes::<32>(inner) {
            out.push(DIGEST);
            out.extend(digest);
        } else if let Some(id) = uuid(inner) {
            out.push(ID);
            out.extend(id);
        } else if let (Some(b':'), Some(name)) = (after.first(), names.get(inner)) {
            let comma = plain.last() == Some(&b',');
            if comma {
                out.pop();
            }
            out.extend([if comma { NEXT } else { NAME }, name]);
            rest = after.get(1..).unwrap_or_default();
        } else if let Some(word) = words.get(inner) {
            out.extend([WORD, word]);
        } else {
            out.push(b'"');
            out.extend_from_slice(inner);
            out.push(b'"');
        }
    }
    out.extend_from_slice(rest);
    Some(out)
}

/// What comes before the next quotation mark, and after it.
fn split_at_quote(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b'"', text)?;
    let (before, quoted) = text.split_at(at);
    Some((before, quoted.get(1..)?))
}

/// The text of a stored record, byte for byte.
pub(super) fn unpack(stored: &[u8]) -> Result<String, LedgerError> {
    let damaged = |what: &str| corrupt("a record", &what);
    let bytes = match stored.split_first() {
        Some((&PLAIN, text)) => text.to_vec(),
        Some((&SHORT, short)) => lengthen(short).ok_or_else(|| damaged("it is cut off"))?,
        Some((&PACKED, packed)) => {
            let size = zstd::bulk::Decompressor::upper_bound(packed).unwrap_or(TEXT_MAX);
            if size > TEXT_MAX {
                return Err(damaged("it says that it is larger than any record"));
            }
            let short = zstd::bulk::decompress(packed, size)
                .map_err(|error| corrupt("a record", &error))?;
            lengthen(&short).ok_or_else(|| damaged("it is cut off"))?
        }
        _ => return Err(damaged("it is in no form that is known")),
    };
    String::from_utf8(bytes).map_err(|error| corrupt("a record", &error))
}

/// A record, read.
pub(super) fn read<T: serde::de::DeserializeOwned>(
    what: &str,
    stored: &[u8],
) -> Result<T, LedgerError> {
    serde_json::from_str(&unpack(stored)?).map_err(|error| corrupt(what, &error))
}

fn lengthen(short: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(short.len().min(TEXT_MAX) * 2);
    let mut rest = short;
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
    fn records_are_shorter_and_come_back_byte_for_byte() {
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
