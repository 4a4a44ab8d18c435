//! Stores the result of a call once: in the receipt, not again in the agent log.
//!
//! The `output` of a log and the `result` of its receipt often begin with the same bytes. The
//! stored log omits these bytes and refers to the receipt. The restored text is identical, byte for
//! byte. Before a settled receipt is changed or removed, the bytes are written back into its log.
//! Therefore each record can be retained without the other.
//!
//! Doc: records.md#stores

use memchr::memmem;
use toolbooth_audit::backend::working::{Batch, WrittenLog};
use toolbooth_contracts::receipt::ClaimState;

/// Minimum bytes of a shared part; a reference to a shorter one would not save space.
const PART_MIN: usize = 24;

/// The part that an agent log and its receipt have in common, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its offset in the log.
    pub(crate) own: usize,
    /// Its offset in the receipt.
    pub(crate) given: usize,
    /// Its length.
    pub(crate) len: usize,
}

/// Returns the text of the receipt that `log` may share a part with. `None` unless the batch
/// settles that receipt with the event at `seq`, because the log is later found only by that event.
pub(crate) fn giver<'b>(batch: &'b Batch, log: &WrittenLog, seq: u64) -> Option<&'b str> {
    let id = log.log.receipt_id.as_ref()?;
    let put = batch.receipts.get(id)?.after.as_ref()?;
    let event = batch.events.first()?;
    let at = put.receipt.audit_seq.as_ref()?;
    let is_settled = put.receipt.pruned_at.is_none()
        && matches!(put.receipt.state, ClaimState::Succeeded | ClaimState::Failed);
    let is_here = at.writer == event.event.writer && at.seq == seq;
    (is_settled && is_here).then_some(put.text.as_str())
}

impl Part {
    /// Returns the common beginning of the log's output and the receipt's result. `None` if it is
    /// missing or shorter than `PART_MIN`.
    pub(crate) fn of(log: &str, receipt: &str) -> Option<Self> {
        let begin = |text: &str, member: &str| {
            let at = memmem::find(text.as_bytes(), member.as_bytes())?;
            Some(at + member.len())
        };
        let (own, given) = (begin(log, "\"output\":")?, begin(receipt, "\"result\":")?);
        let tails = log.bytes().skip(own).zip(receipt.bytes().skip(given));
        let same = tails.take_while(|(own, given)| own == given).count();
        // The part must end at a character boundary, since both texts are cut there.
        let len = (0..=same).rev().find(|len| log.is_char_boundary(own + len))?;
        (len >= PART_MIN).then_some(Self { own, given, len })
    }

    /// Returns the log without the part; `None` if the offsets do not fit it.
    pub(crate) fn taken_from(self, log: &str) -> Option<String> {
        let (before, after) = (log.get(..self.own)?, log.get(self.own + self.len..)?);
        Some([before, after].concat())
    }

    /// Returns the log with the part, taken from the receipt; `None` if the offsets do not fit the
    /// texts.
    pub(crate) fn given_to(self, mut log: String, receipt: &str) -> Option<String> {
        let part = receipt.get(self.given..self.given.checked_add(self.len)?)?;
        let fits = log.is_char_boundary(self.own);
        fits.then(|| log.insert_str(self.own, part))?;
        Some(log)
    }
}
