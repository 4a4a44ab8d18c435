//! Converts hex digits and UUIDs to bytes and back.
//!
//! Doc: records.md#stores

/// Returns the bytes of a UUID in the form that Toolbooth writes: lower case, with hyphens. `None`
/// for any other text.
pub(crate) fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; 36] = text.try_into().ok()?;
    if [text[8], text[13], text[18], text[23]] != [b'-'; 4] {
        return None;
    }
    let mut digits = [0u8; 32];
    let (mut to, mut from) = (&mut digits[..], &text[..]);
    for len in [8, 4, 4, 4, 12] {
        let (part, after) = from.split_at_checked(len)?;
        let (own, left) = to.split_at_mut_checked(len)?;
        own.copy_from_slice(part);
        (to, from) = (left, after.get(1..).unwrap_or_default());
    }
    bytes(&digits)
}

/// The value of a byte that is not a hex digit.
const NONE: u8 = 16;

/// Decodes lower-case hex digits into exactly `N` bytes, at most 32; `None` for any other text.
pub(crate) fn bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    const { assert!(N <= 32) };
    if text.len() != N * 2 {
        return None;
    }
    // No branches and arrays of fixed size, so that the compiler can vectorize the loop.
    let mut halves = [0u8; 64];
    let mut all = 0;
    for (half, byte) in halves.iter_mut().zip(text) {
        let (number, letter) = (byte.wrapping_sub(b'0'), byte.wrapping_sub(b'a'));
        let letter = if letter < 6 { letter + 10 } else { NONE };
        *half = if number < 10 { number } else { letter };
        all |= *half;
    }
    let mut out = [0u8; N];
    for (out, pair) in out.iter_mut().zip(halves.as_chunks::<2>().0) {
        *out = pair[0] << 4 | pair[1];
    }
    (all < NONE).then_some(out)
}

/// Writes bytes as lower-case hex digits.
pub(crate) fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// Writes the bytes of a UUID as its text.
pub(crate) fn push_uuid(bytes: &[u8], out: &mut Vec<u8>) {
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        push_hex(&[*byte], out);
    }
}

/// Returns the creation time of a UUIDv7, in milliseconds since 1970 (RFC 9562, 5.7); `None` for
/// other ids.
pub(crate) fn made_ms(id: &str) -> Option<i64> {
    let id = uuid(id.as_bytes())?;
    let (time, rest) = id.split_at(6);
    let is_timed = rest.first().is_some_and(|byte| byte >> 4 == 7);
    is_timed.then(|| time.iter().fold(0i64, |ms, byte| (ms << 8) | i64::from(*byte)))
}
