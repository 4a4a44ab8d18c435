//! Finds texts with escaped characters: percent-encoded (RFC 3986), as `+` of a form, or by JSON
//! escapes (RFC 8259), also nested.
//!
//! Every escape in a text is examined once. The candidates follow from the character that it
//! encodes, so the cost grows only with the length of the text.
//!
//! Doc: execution.md#known-secrets

use std::collections::HashMap;
use std::ops::Range;

/// Maximum backslashes before one escaped character: three nested levels.
const BACKSLASHES_MAX: usize = 8;
/// Maximum rounds of percent-encoding, as in `%2525XX`.
const ROUNDS_MAX: usize = 3;
/// Maximum steps of one attempt, for each byte of the wanted text.
const STEPS: usize = 4;
/// Longer texts are not searched behind escapes.
const WANTED_BYTES_MAX: usize = 8 << 10;

/// The positions of characters that may be escaped, by their first byte: the number of the text, and
/// the offset in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Escapable(HashMap<u8, Vec<(usize, usize)>>);

impl Escapable {
    /// Adds a text. With `all`, any of its characters may be escaped, otherwise only those that are
    /// not letters or digits.
    pub(super) fn add(&mut self, number: usize, text: &str, all: bool) {
        if text.len() > WANTED_BYTES_MAX {
            return;
        }
        for (at, character) in text.char_indices() {
            if let (true, Some(byte)) =
                (all || !character.is_ascii_alphanumeric(), text.as_bytes().get(at))
            {
                self.0.entry(*byte).or_default().push((number, at));
            }
        }
    }

    /// Finds texts with at least one escaped character; `wanted` returns a text by its number.
    pub(super) fn find_all<'w>(
        &self,
        text: &str,
        wanted: impl Fn(usize) -> &'w str,
    ) -> Vec<(Range<usize>, usize)> {
        let bytes = text.as_bytes();
        let (mut found, mut attempt) = (Vec::new(), Vec::new());
        // `+` matters only if one of the texts contains a blank.
        let third = if self.0.contains_key(&b' ') { b'+' } else { b'%' };
        for at in memchr::memchr3_iter(b'%', b'\\', third, bytes) {
            let rest = bytes.get(at..).unwrap_or_default();
            first_bytes(rest, |byte| {
                for (number, index) in self.0.get(&byte).into_iter().flatten() {
                    let wanted = wanted(*number);
                    let Some(start) = at.checked_sub(*index) else { continue };
                    let before = wanted.as_bytes().get(..*index).unwrap_or_default();
                    if bytes.get(start..at) != Some(before) {
                        continue;
                    }
                    if let Some(end) = end_of(bytes, at, wanted, *index, &mut attempt)
                        && text.is_char_boundary(start)
                        && text.is_char_boundary(end)
                    {
                        found.push((start..end, *number));
                    }
                }
            });
        }
        found
    }
}

/// Calls `give` with the first byte of each character that an escape at the start of a text may
/// encode.
fn first_bytes(text: &[u8], mut give: impl FnMut(u8)) {
    match text.first() {
        Some(b'+') => give(b' '),
        Some(b'%') => {
            let mut rest = text.get(1..).unwrap_or_default();
            let mut given = [None; ROUNDS_MAX + 1];
            for round in &mut given {
                let Some(byte) = hex(rest) else { break };
                *round = Some(byte);
                let Some(inner) = rest.strip_prefix(b"25") else { break };
                rest = inner;
            }
            for (at, byte) in given.iter().enumerate() {
                if let Some(byte) = byte.filter(|_| !given.iter().take(at).any(|one| one == byte)) {
                    give(byte);
                }
            }
        }
        Some(b'\\') => {
            let slashes = slashes(text);
            if slashes > 1 {
                give(b'\\');
            }
            let after = text.get(slashes..).unwrap_or_default();
            match after.first() {
                Some(b'n') => give(b'\n'),
                Some(b'r') => give(b'\r'),
                Some(b't') => give(b'\t'),
                Some(b'b') => give(8),
                Some(b'f') => give(12),
                Some(own @ (b'"' | b'/' | b'\'')) => give(*own),
                Some(b'u') => {
                    if let Some(unit) = unit(after) {
                        let mut buffer = [0; 4];
                        // A high surrogate begins a character of four bytes: 0xF0 to 0xF4.
                        match char::from_u32(u32::from(unit)) {
                            Some(own) => {
                                let own = own.encode_utf8(&mut buffer).as_bytes();
                                own.first().into_iter().for_each(|byte| give(*byte));
                            }
                            None => (0xF0..=0xF4).for_each(give),
                        }
                    }
                }
                _ => (),
            }
        }
        _ => (),
    }
}

/// Returns the value of two hexadecimal digits.
fn hex(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// Returns the unit of `uXXXX`.
fn unit(text: &[u8]) -> Option<u16> {
    let (high, low) = (hex(text.get(1..)?)?, hex(text.get(3..)?)?);
    (text.first() == Some(&b'u')).then(|| u16::from_be_bytes([high, low]))
}

fn slashes(text: &[u8]) -> usize {
    text.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count()
}

/// Returns the end of `wanted` in `text`. The part before `index` is already found, and it ends at
/// `at`. `attempt` is reused memory.
fn end_of(
    text: &[u8],
    at: usize,
    wanted: &str,
    index: usize,
    attempt: &mut Vec<(usize, usize)>,
) -> Option<usize> {
    attempt.clear();
    attempt.push((at, index));
    let mut steps = (wanted.len() + 1) * STEPS;
    while let Some((from, index)) = attempt.pop() {
        let Some(character) = wanted.get(index..).and_then(|rest| rest.chars().next()) else {
            return Some(from);
        };
        steps = steps.checked_sub(1)?;
        let rest = text.get(from..).unwrap_or_default();
        forms(rest, character, |length| {
            attempt.push((from + length, index + character.len_utf8()));
        });
    }
    None
}

/// Calls `give` with the length of each form of a character at the start of a text.
fn forms(text: &[u8], character: char, mut give: impl FnMut(usize)) {
    let mut buffer = [0; 4];
    let own = character.encode_utf8(&mut buffer).as_bytes();
    if text.starts_with(own) {
        give(own.len());
    }
    match text.first() {
        Some(b'%') => {
            (0..=ROUNDS_MAX).filter_map(|rounds| percent(text, own, rounds)).for_each(give);
        }
        Some(b'+') if character == ' ' => give(1),
        Some(b'\\') => escapes(text, character, give),
        _ => (),
    }
}

/// Returns the length of percent-encoded bytes with percent signs that were encoded `rounds` more
/// times.
fn percent(text: &[u8], bytes: &[u8], rounds: usize) -> Option<usize> {
    let mut rest = text;
    for byte in bytes {
        rest = rest.strip_prefix(b"%")?;
        for _ in 0..rounds {
            rest = rest.strip_prefix(b"25")?;
        }
        if hex(rest)? != *byte {
            return None;
        }
        rest = rest.get(2..)?;
    }
    Some(text.len() - rest.len())
}

/// Calls `give` with the lengths of an escaped character after one or more backslashes.
fn escapes(text: &[u8], character: char, mut give: impl FnMut(usize)) {
    let slashes = slashes(text);
    if character == '\\' {
        [2, 4, 8].into_iter().filter(|length| *length <= slashes).for_each(&mut give);
    }
    let after = text.get(slashes..).unwrap_or_default();
    let letter = match character {
        '\n' => Some(b'n'),
        '\r' => Some(b'r'),
        '\t' => Some(b't'),
        '\u{8}' => Some(b'b'),
        '\u{c}' => Some(b'f'),
        '"' | '/' | '\'' => u8::try_from(character).ok(),
        _ => None,
    };
    if letter.is_some() && after.first().copied() == letter {
        give(slashes + 1);
    }
    // `\u00e9`, or the two units of a character beyond 16 bits.
    let mut units = [0; 2];
    let mut at = 0;
    for own in character.encode_utf16(&mut units) {
        let rest = text.get(at..).unwrap_or_default();
        let slashes = self::slashes(rest);
        if slashes == 0 || rest.get(slashes..).and_then(unit) != Some(*own) {
            return;
        }
        at += slashes + 5;
    }
    give(at);
}
