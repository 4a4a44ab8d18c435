//! What the agent was given is stored once: in the receipt. An agent log in which no rule changed it
//! has a reference in its place.
//!
//! The text of the log is the same as ever, byte for byte. Before a receipt that has ended is changed
//! or removed, its log gets the text back, so that either can be kept without the other.
//!
//! Doc: records.md#stores

use memchr::memmem;
use toolbooth_audit::LedgerError;

use super::shorten;
use crate::corrupt;

/// What a stored log begins with that lacks a part: where in the log and in the receipt that part
/// begins, how long it is, and the rest of the log as any record is stored.
const SHARED: u8 = 3;
/// A shorter part is not worth its reference.
const PART_MIN: usize = 24;

/// An agent log as it is stored beside the receipt of its call; `None` where they share nothing.
pub(super) fn pack(log: &str, receipt: &str) -> Result<Option<Vec<u8>>, LedgerError> {
    let begin = |text: &str, member: &str| {
        let at = memmem::find(text.as_bytes(), member.as_bytes())?;
        Some(at + member.len())
    };
    let (Some(own), Some(given)) = (begin(log, "\"output\":"), begin(receipt, "\"result\":"))
    else {
        return Ok(None);
    };
    let tails = log.bytes().skip(own).zip(receipt.bytes().skip(given));
    let same = tails.take_while(|(own, given)| own == given).count();
    // A part ends between characters.
    let len = (0..=same).rev().find(|len| log.is_char_boundary(own + len)).unwrap_or_default();
    if len < PART_MIN {
        return Ok(None);
    }
    let (Some(before), Some(after)) = (log.get(..own), log.get(own + len..)) else {
        return Ok(None);
    };
    let mut out = vec![SHARED];
    [own, given, len].into_iter().for_each(|number| push_number(number, &mut out));
    out.extend(shorten::pack(&[before, after].concat())?);
    Ok(Some(out))
}

/// The text of a stored agent log; `receipt` gives that of a receipt by its id.
pub(super) fn unpack(
    stored: &[u8],
    receipt: impl FnOnce(&str) -> Result<Option<String>, LedgerError>,
) -> Result<String, LedgerError> {
    let Some((&SHARED, mut rest)) = stored.split_first() else { return shorten::unpack(stored) };
    let damaged = |what: &str| corrupt("an agent log", &what);
    let mut number = || take_number(&mut rest).ok_or_else(|| damaged("it is cut off"));
    let (own, given, len) = (number()?, number()?, number()?);
    let mut log = shorten::unpack(rest)?;
    let id = receipt_id(&log).ok_or_else(|| damaged("it names no receipt"))?;
    let receipt = receipt(id)?.ok_or_else(|| damaged("its receipt is not there"))?;
    let end = given.checked_add(len);
    let part = end.and_then(|end| receipt.get(given..end));
    let part = part.filter(|_| log.is_char_boundary(own));
    log.insert_str(own, part.ok_or_else(|| damaged("its receipt is another one"))?);
    Ok(log)
}

/// Whether a stored log lacks what its receipt has.
pub(super) fn is_shared(stored: &[u8]) -> bool {
    stored.first() == Some(&SHARED)
}

/// The receipt that a log names. Within a text of JSON, quotation marks are escaped, and whatever
/// has members of its own comes later.
fn receipt_id(log: &str) -> Option<&str> {
    let (_, after) = log.split_once("\"receiptId\":\"")?;
    after.split_once('"').map(|(id, _)| id)
}

/// Seven bits a byte, lowest first; the highest bit says that more follow.
fn push_number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

fn take_number(rest: &mut &[u8]) -> Option<usize> {
    let mut number = 0usize;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"{"id":"l","agentId":"\"receiptId\":\"x\"","receiptId":"r","input":{"receiptId":"y"},"output":{"content":[{"type":"text","text":"grüße und mehr"}]},"isError":false}"#;

    fn receipt(result: &str) -> String {
        format!(r#"{{"receiptId":"r","result":{{"content":[{result}],"meta":{{}}}},"attempt":1}}"#)
    }

    #[test]
    fn logs_share_what_is_the_same_and_come_back() {
        for (result, is_shared) in [
            (r#"{"type":"text","text":"grüße und mehr"}"#, true),
            // The first bytes of two characters are the same.
            (r#"{"type":"text","text":"grûße und mehr"}"#, true),
            (r#"{"type":"image"}"#, false),
            (r#"5"#, false),
        ] {
            let receipt = receipt(result);
            let stored = pack(LOG, &receipt).unwrap();
            assert_eq!(stored.is_some(), is_shared, "{result}");
            let Some(stored) = stored else { continue };
            assert!(super::is_shared(&stored));
            let back = unpack(&stored, |id| {
                assert_eq!(id, "r");
                Ok(Some(receipt.clone()))
            });
            assert_eq!(back.unwrap(), LOG);
            assert!(unpack(&stored, |_| Ok(None)).is_err());
            assert!(unpack(&stored, |_| Ok(Some("{}".to_owned()))).is_err());
            for cut in 0..stored.len() {
                let _ = unpack(&stored[..cut], |_| Ok(Some(receipt.clone())));
                let mut other = stored.clone();
                other[cut] ^= 0x41;
                let _ = unpack(&other, |_| Ok(Some(receipt.clone())));
            }
        }
        assert!(pack("{}", "{}").unwrap().is_none());
        for number in [0, 1, 127, 128, 300, 1 << 20, usize::MAX] {
            let mut out = Vec::new();
            push_number(number, &mut out);
            assert_eq!(take_number(&mut out.as_slice()), Some(number));
        }
        assert_eq!(take_number(&mut [0xff; 20].as_slice()), None);
    }
}
