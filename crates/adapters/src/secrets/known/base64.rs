//! Computes the base64 characters that a secret determines at any offset in the encoded data (RFC
//! 4648).
//!
//! Doc: execution.md#secrets

use data_encoding::Encoding;

/// Returns the base64 characters that only the text determines, if `before` bytes precede it. Also
/// returns whether the characters before and after contain bits of it.
pub(super) fn in_base64(text: &str, before: usize, alphabet: &Encoding) -> (String, (bool, bool)) {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(text.as_bytes());
    let whole = alphabet.encode(&bytes);
    let (from, to) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
    let form = whole.get(from..to).unwrap_or_default().to_owned();
    (form, (before > 0, !(bytes.len() * 8).is_multiple_of(6)))
}

pub(super) fn in_alphabet(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// Whether a text contains `length` base64 characters in a row.
pub(super) fn has_run(text: &[u8], length: usize) -> bool {
    let mut run = 0;
    text.len() >= length
        && text.iter().any(|byte| {
            run = if in_alphabet(*byte) { run + 1 } else { 0 };
            run >= length
        })
}
