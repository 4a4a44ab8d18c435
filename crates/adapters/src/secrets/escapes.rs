//! Finds a text some characters of which are escaped: percent-encoded (RFC 3986), as a form's `+`,
//! or by the escapes of JSON (RFC 8259), also twice.
//!
//! Doc: execution.md#known-secrets

use std::ops::Range;

/// Backslashes before one escaped character: escapes of escapes of escapes.
const BACKSLASHES_MAX: usize = 8;
/// Rounds of percent-encoding, `%2525XX`.
const ROUNDS_MAX: usize = 3;
/// Steps of one attempt, for each byte of what is looked for.
const STEPS: usize = 4;

/// Whether a text has characters that encoders escape.
pub(super) fn may_be_escaped(text: &str) -> bool {
    !text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Where `wanted` stands in `text` with at least one character escaped; in order.
pub(super) fn find_all(text: &str, wanted: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let Some(first) = wanted.bytes().next() else { return Vec::new() };
    let mut found = Vec::new();
    let mut attempt = Vec::new();
    let mut end = 0;
    // Where it may begin: by itself, by an escape, or by the `+` of a form.
    let own = if first == b' ' { b'+' } else { first };
    for at in memchr::memchr3_iter(own, b'%', b'\\', bytes) {
        if at < end {
            continue;
        }
        if let Some(own_end) = end_of(bytes, at, wanted, &mut attempt)
            && text.is_char_boundary(at)
            && text.is_char_boundary(own_end)
        {
            end = own_end;
            found.push(at..end);
        }
    }
    found
}

/// The end of `wanted` in `text` from `at` on. `attempt` is empty memory.
fn end_of(
    text: &[u8],
    at: usize,
    wanted: &str,
    attempt: &mut Vec<(usize, usize)>,
) -> Option<usize> {
    attempt.clear();
    attempt.push((at, 0));
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

/// Gives the lengths of what stands for a character at the beginning of a text.
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

/// The length of bytes that were percent-encoded, and whose percent signs were so often again.
fn percent(text: &[u8], bytes: &[u8], rounds: usize) -> Option<usize> {
    let mut rest = text;
    for byte in bytes {
        rest = rest.strip_prefix(b"%")?;
        for _ in 0..rounds {
            rest = rest.strip_prefix(b"25")?;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let [high, low] = [digits.first(), digits.last()]
            .map(|digit| digit.and_then(|digit| char::from(*digit).to_digit(16)));
        if high? * 16 + low? != u32::from(*byte) {
            return None;
        }
        rest = after;
    }
    Some(text.len() - rest.len())
}

/// The lengths of an escaped character, behind one backslash or several.
fn escapes(text: &[u8], character: char, mut give: impl FnMut(usize)) {
    let slashes = text.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count();
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
    for unit in character.encode_utf16(&mut units) {
        let own = text.get(at..).unwrap_or_default();
        let slashes = own.iter().take(BACKSLASHES_MAX).take_while(|byte| **byte == b'\\').count();
        let digits = own.get(slashes + 1..slashes + 5).and_then(|it| std::str::from_utf8(it).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let told = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        if slashes == 0 || own.get(slashes) != Some(&b'u') || told != Some(*unit) {
            return;
        }
        at += slashes + 5;
    }
    give(at);
}
