//! Encodes an agent log without the part that its receipt has.
//!
//! Doc: records.md#stores

use toolbooth_audit::LedgerError;

use crate::result_reference::Part;
use crate::{Unreadable, packing};

/// First byte of an agent log that is stored without its shared part. The part's offset in the log,
/// its offset in the receipt and its length follow, then the encoded rest of the log.
const SHARED: u8 = 3;

/// Encodes an agent log without the part that it shares with the receipt of its call; `None` if
/// they share no part.
pub(super) fn pack(log: &str, receipt: &str) -> Result<Option<Vec<u8>>, LedgerError> {
    let Some(part) = Part::of(log, receipt) else { return Ok(None) };
    let Some(rest) = part.taken_from(log) else { return Ok(None) };
    let mut out = vec![SHARED];
    [part.own, part.given, part.len].into_iter().for_each(|number| push_number(number, &mut out));
    out.extend(packing::pack(&rest)?);
    Ok(Some(out))
}

/// Returns the text of the agent log that is stored at `place`. `receipt` returns the text of a
/// receipt by its id.
pub(super) fn unpack(
    stored: &[u8],
    place: i64,
    receipt: impl FnOnce(&str) -> Result<Option<String>, LedgerError>,
) -> Result<String, LedgerError> {
    let at = |unreadable: Unreadable| unreadable.at("agent_logs", place);
    let Some((&SHARED, mut rest)) = stored.split_first() else {
        return packing::unpack(stored).map_err(at);
    };
    let damaged = |what: &str| at(Unreadable::of(what));
    let mut number = || take_number(&mut rest).ok_or_else(|| damaged("it is cut off"));
    let part = Part { own: number()?, given: number()?, len: number()? };
    let log = packing::unpack(rest).map_err(at)?;
    let id = receipt_id(&log).ok_or_else(|| damaged("it names no receipt"))?;
    let receipt = receipt(id)?.ok_or_else(|| damaged("its receipt is not there"))?;
    part.given_to(log, &receipt).ok_or_else(|| damaged("its receipt is another one"))
}

/// Whether a stored log omits a part that its receipt has.
pub(super) fn is_shared(stored: &[u8]) -> bool {
    stored.first() == Some(&SHARED)
}

/// Returns the id of the receipt that a log names. The first match is the member itself: quotation
/// marks in strings are escaped, and nested objects follow later.
fn receipt_id(log: &str) -> Option<&str> {
    let (_, after) = log.split_once("\"receiptId\":\"")?;
    after.split_once('"').map(|(id, _)| id)
}

/// Writes a number in LEB128: seven bits a byte, lowest first; the highest bit means that more
/// follow.
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
            // `ü` and `û` begin with the same byte in UTF-8.
            (r#"{"type":"text","text":"grûße und mehr"}"#, true),
            (r#"{"type":"image"}"#, false),
            (r#"5"#, false),
        ] {
            let receipt = receipt(result);
            let stored = pack(LOG, &receipt).unwrap();
            assert_eq!(stored.is_some(), is_shared, "{result}");
            let Some(stored) = stored else { continue };
            assert!(super::is_shared(&stored));
            let back = unpack(&stored, 0, |id| {
                assert_eq!(id, "r");
                Ok(Some(receipt.clone()))
            });
            assert_eq!(back.unwrap(), LOG);
            assert!(unpack(&stored, 0, |_| Ok(None)).is_err());
            assert!(unpack(&stored, 0, |_| Ok(Some("{}".to_owned()))).is_err());
            for cut in 0..stored.len() {
                let _ = unpack(&stored[..cut], 0, |_| Ok(Some(receipt.clone())));
                let mut other = stored.clone();
                other[cut] ^= 0x41;
                let _ = unpack(&other, 0, |_| Ok(Some(receipt.clone())));
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
