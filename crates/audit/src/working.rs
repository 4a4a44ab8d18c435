//! The records that a batch of steps works on: loaded before, changed in memory, written after.
//!
//! A step says what it needs to look at, and decides from that alone. What it decides is a list of
//! changes; they are applied whole or not at all.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use crate::chain::{Head, Placed};
use crate::digest::{Digester, of_record, record_text, sha256_hex};
use crate::ledger::{LedgerError, Moment};
use crate::pruning::Removal;
use crate::queue::{QueueState, QueuedCall, RawCall};
use crate::reads::{DamagedRow, PrunedLog, WriterHead};
use crate::room::{Dropped, Room};
use crate::watch::Watch;

/// A tool and a caller, as rates are counted.
pub type RateName = (String, String);
/// A caller and the id of its call.
pub type CallName = (String, String);

/// What an approval is bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApprovalName {
    /// The tool.
    pub tool: String,
    /// Who calls.
    pub caller: String,
    /// Digest of the arguments.
    pub args_digest: String,
    /// Digest of the contract.
    pub contract_digest: String,
}

/// What steps have to look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Keys, with the receipts that hold them.
    pub keys: BTreeSet<String>,
    /// Receipts, with the approvals that they have spent.
    pub receipts: BTreeSet<String>,
    /// Arrival times of tools and callers.
    pub rates: BTreeSet<RateName>,
    /// Tools, of which the calls that run count.
    pub running: BTreeSet<String>,
    /// Approvals for exactly these calls that are not spent.
    pub approvals: BTreeSet<ApprovalName>,
    /// Asynchronous calls.
    pub calls: BTreeSet<CallName>,
    /// How many asynchronous calls wait.
    pub waiting: bool,
    /// A look at the whole store; such a step has a batch of its own.
    pub survey: Option<Survey>,
}

/// A look at the whole store, within the transaction of its step. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survey {
    /// Running claims whose writers are lost.
    Lost,
    /// The ends of other writers' logs that no checkpoint has named for good, oldest first.
    UnnamedHeads,
    /// What earlier versions left to be taken over; where asked for, the ends of all other writers'
    /// logs.
    Beginning {
        /// Whether the ends are asked for.
        heads: bool,
    },
    /// Settled receipts from before a time that are whole, at most so many.
    PrunableReceipts(String, usize),
    /// Agent logs from before a time, at most so many.
    PrunableLogs(String, usize),
    /// Agent logs that go where room runs short: of calls without a receipt as long as there are
    /// such, then the oldest; at most so many.
    DroppableLogs(usize),
    /// Events from before a time that account for nothing any more, of the next block of a log, as
    /// far as a checkpoint covers it; or a log is looked through up to there.
    PrunableEvents(String),
    /// The oldest asynchronous call whose worker is lost, else the oldest that waits. The names are
    /// those of the calls that this process has.
    NextCall(BTreeSet<CallName>),
    /// Asynchronous calls that got their result before a time, at most so many.
    PrunableCalls(String, usize),
}

/// What a [`Survey`] has found.
#[derive(Debug, Default)]
pub struct Surveyed {
    /// Of [`Survey::Lost`].
    pub lost: Vec<Stored>,
    /// Of [`Survey::UnnamedHeads`] and [`Survey::Beginning`].
    pub heads: Vec<OtherHead>,
    /// Of [`Survey::Beginning`], in a store that an earlier version has written.
    pub earlier: Option<Earlier>,
    /// Of [`Survey::PrunableReceipts`], and whether each holds a key.
    pub prunable: Vec<(Stored, bool)>,
    /// Other records that may go.
    pub removal: Removal,
    /// Of [`Survey::DroppableLogs`]: up to where they go.
    pub dropped: Option<Dropped>,
    /// Whether there is more to look at.
    pub more: bool,
    /// Of [`Survey::NextCall`].
    pub call: Option<RawCall>,
}

/// What an earlier version has written without what accounts for it now.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Asynchronous calls.
    pub calls: Vec<QueuedCall>,
    /// Logs whose beginnings it has removed, by writer.
    pub logs: Vec<(String, PrunedLog)>,
}

/// The end of another writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHead {
    /// Where it ends.
    pub head: WriterHead,
    /// Whether the writer has ended or is lost, so that it grows no more.
    pub ended: bool,
}

/// A receipt with what only the store knows of it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// The fence of the claim.
    pub fence: u64,
    /// Whether the writer that owns it is lost.
    pub owner_lost: bool,
}

impl Stored {
    fn runs(&self) -> bool {
        self.receipt.state == ClaimState::InFlight
    }
}

impl Needs {
    /// What a receipt's step needs.
    #[must_use]
    pub fn of_receipt(receipt_id: &str) -> Self {
        Self { receipts: BTreeSet::from([receipt_id.to_owned()]), ..Self::default() }
    }

    /// What a step on a call needs.
    #[must_use]
    pub fn of_call(caller: &str, call_id: &str) -> Self {
        let name = (caller.to_owned(), call_id.to_owned());
        Self { calls: BTreeSet::from([name]), ..Self::default() }
    }

    /// A survey.
    #[must_use]
    pub fn of(survey: Survey) -> Self {
        Self { survey: Some(survey), ..Self::default() }
    }

    /// What this and another step need.
    pub fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.receipts.extend(other.receipts);
        self.rates.extend(other.rates);
        self.running.extend(other.running);
        self.approvals.extend(other.approvals);
        self.calls.extend(other.calls);
        self.waiting |= other.waiting;
        self.survey = self.survey.take().or(other.survey);
    }

    /// Whether nothing has to be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A record as it is stored: the JSON that is digested, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText {
    /// The JSON.
    pub text: String,
    /// Its SHA-256 in hex: how events name the record.
    pub digest: String,
}

impl RecordText {
    /// A record, written once.
    #[must_use]
    pub fn of(record: &impl serde::Serialize) -> Self {
        let text = record_text(record);
        let digest = sha256_hex(text.as_bytes());
        Self { text, digest }
    }
}

/// An agent log as it is stored.
#[derive(Debug)]
pub struct WrittenLog {
    /// The log.
    pub log: Arc<AgentLog>,
    /// Its JSON and the digest of that.
    pub record: RecordText,
}

/// A receipt that a step writes.
#[derive(Debug, Clone)]
pub struct Put {
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// The fence of its claim.
    pub fence: u64,
    /// Its JSON.
    pub text: String,
}

/// An event that a step writes, and the agent log that it accounts for.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The event.
    pub body: EventBody,
    /// The log.
    pub log: Option<Arc<WrittenLog>>,
}

/// What a step changes: applied whole or not at all.
#[derive(Debug, Default)]
pub struct Changes {
    /// Receipts, new or changed.
    pub receipts: Vec<Put>,
    /// Receipts that are removed.
    pub removed: Vec<Arc<Receipt>>,
    /// Receipts whose keys are freed, before others are held.
    pub freed: Vec<String>,
    /// Keys, and the receipts that hold them.
    pub held: Vec<(String, String)>,
    /// Arrival times.
    pub rates: Vec<(RateName, i64)>,
    /// Approvals, new or changed.
    pub approvals: Vec<Approval>,
    /// Events, in order.
    pub events: Vec<Entry>,
    /// Asynchronous calls, new or changed.
    pub calls: Vec<QueuedCall>,
    /// Claims that were dispatched: their fences, and when.
    pub begun: Vec<(String, u64, Moment)>,
    /// A checkpoint was asked for at this time, in milliseconds.
    pub looked_ms: Option<i64>,
    /// A checkpoint covers everything up to now.
    pub checkpoint: Option<Named>,
    /// The writer's lease is renewed.
    pub renewed: Option<Moment>,
    /// Records that go, beside receipts.
    pub pruned: Option<Removal>,
    /// Beginnings of logs that an earlier version has removed are taken over.
    pub adopted: Vec<(String, PrunedLog)>,
    /// The writer's log ends.
    pub stopped: bool,
}

/// What a checkpoint leaves behind beside its event.
#[derive(Debug, Clone, Default)]
pub struct Named {
    /// The note.
    pub note: String,
    /// Writers whose logs grow no more, with the sizes that the checkpoint names.
    pub ended: Vec<(String, u64)>,
}

/// A receipt that a batch has moved.
#[derive(Debug, Clone)]
pub struct Moved {
    /// Where it stood before the batch: state and fence; `None` where it is new.
    pub before: Option<(ClaimState, u64)>,
    /// As it is now; `None` where it is removed.
    pub after: Option<Put>,
    /// Where it is removed: the event that accounted for it.
    pub accounted: Option<AuditPlace>,
}

/// What a batch of steps writes.
#[derive(Debug, Default)]
pub struct Batch {
    /// Receipts by their ids.
    pub receipts: BTreeMap<String, Moved>,
    /// Receipts whose keys are freed, before others are held.
    pub freed: BTreeSet<String>,
    /// Keys, and the receipts that hold them.
    pub held: BTreeMap<String, String>,
    /// Arrival times.
    pub rates: BTreeMap<RateName, i64>,
    /// Approvals by their ids.
    pub approvals: BTreeMap<String, Approval>,
    /// Events in their places.
    pub events: Vec<Placed>,
    /// Agent logs, each with the place of the event that accounts for it.
    pub logs: Vec<(Arc<WrittenLog>, u64)>,
    /// Asynchronous calls.
    pub calls: BTreeMap<CallName, QueuedCall>,
    /// A checkpoint.
    pub checkpoint: Option<Named>,
    /// The writer's lease is renewed.
    pub renewed: Option<Moment>,
    /// Records that go, beside receipts.
    pub pruned: Option<Removal>,
    /// Beginnings of logs that an earlier version has removed are taken over.
    pub adopted: Vec<(String, PrunedLog)>,
    /// The writer's log ends.
    pub stopped: bool,
    /// Claims that were dispatched: their fences, and when.
    pub(crate) begun: Vec<(String, u64, Moment)>,
    /// Claims that run no more.
    pub(crate) ended: Vec<String>,
}

impl Batch {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receipts.is_empty()
            && self.freed.is_empty()
            && self.held.is_empty()
            && self.rates.is_empty()
            && self.approvals.is_empty()
            && self.events.is_empty()
            && self.calls.is_empty()
            && self.checkpoint.is_none()
            && self.renewed.is_none()
            && self.pruned.is_none()
            && self.adopted.is_empty()
            && !self.stopped
    }
}

/// The records that a batch works on. What was not loaded is not known to be absent: to look at it
/// is an error.
#[derive(Debug)]
pub struct WorkingSet {
    digester: Digester,
    pub(crate) head: Head,
    pub(crate) receipts: HashMap<String, Option<Stored>>,
    keys: HashMap<String, Option<String>>,
    rates: HashMap<RateName, Option<i64>>,
    running: HashMap<String, u64>,
    pub(crate) approvals: BTreeMap<String, Approval>,
    asked: HashSet<ApprovalName>,
    pub(crate) calls: HashMap<CallName, Option<QueuedCall>>,
    waiting: Option<u64>,
    /// What the batch's survey has found.
    pub surveyed: Surveyed,
    /// The store's clock, in milliseconds since 1970, where it has one of its own.
    pub clock_ms: Option<i64>,
    watch: Arc<Watch>,
    /// Whether it has every record there is.
    whole: bool,
}

/// Whether an event accounts for an approval; who only asks needs none.
#[must_use]
pub fn is_vouched(approval: &Approval, event: Option<&str>) -> bool {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        approval_digest: Option<String>,
    }
    let fields = event.and_then(|event| serde_json::from_str::<Fields>(event).ok());
    match fields.and_then(|fields| fields.approval_digest) {
        Some(digest) => digest == of_record(approval),
        // Earlier versions wrote no event.
        None => {
            approval.audit_seq.is_none()
                && matches!(approval.state, ApprovalState::Pending | ApprovalState::Spent)
        }
    }
}

fn unread(what: &str) -> LedgerError {
    LedgerError::Unavailable(format!("{what} was not loaded"))
}

impl WorkingSet {
    /// The set of a writer whose log ends at `head`, in a store with the keys of `digester`.
    #[must_use]
    pub fn new(head: Head, digester: Digester, watch: Arc<Watch>) -> Self {
        Self {
            digester,
            head,
            receipts: HashMap::new(),
            keys: HashMap::new(),
            rates: HashMap::new(),
            running: HashMap::new(),
            approvals: BTreeMap::new(),
            asked: HashSet::new(),
            calls: HashMap::new(),
            waiting: None,
            surveyed: Surveyed::default(),
            clock_ms: None,
            watch,
            whole: false,
        }
    }

    /// The same, of which all records there are will be in the set.
    #[cfg(feature = "memory")]
    #[must_use]
    pub(crate) fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// The writer.
    #[must_use]
    pub fn writer(&self) -> &str {
        self.head.writer()
    }

    /// Makes digests with the store's keys.
    #[must_use]
    pub fn digester(&self) -> &Digester {
        &self.digester
    }

    /// How much room the store has left.
    #[must_use]
    pub fn room(&self) -> Room {
        self.watch.room()
    }

    /// The store was looked at.
    pub fn set_room(&self, room: Room) {
        self.watch.set_room(room);
    }

    /// Where the writer's log ends.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    fn known<'s, T>(
        &self,
        found: Option<&'s Option<T>>,
        what: &str,
    ) -> Result<Option<&'s T>, LedgerError> {
        match found {
            Some(known) => Ok(known.as_ref()),
            None if self.whole => Ok(None),
            None => Err(unread(what)),
        }
    }

    /// The receipt that holds a key.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] where it was not loaded; the same for all that look.
    pub fn held(&self, key: &str) -> Result<Option<&Stored>, LedgerError> {
        match self.known(self.keys.get(key), "a key")? {
            Some(id) => self.receipt(id),
            None => Ok(None),
        }
    }

    /// A receipt.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn receipt(&self, id: &str) -> Result<Option<&Stored>, LedgerError> {
        self.known(self.receipts.get(id), "a receipt")
    }

    /// The keys of the set that a receipt holds.
    #[cfg(feature = "memory")]
    pub(crate) fn keys_of(&self, receipt_id: &str) -> Vec<String> {
        let held = self.keys.iter().filter(|(_, holder)| holder.as_deref() == Some(receipt_id));
        held.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a receipt holds any of the keys that are in the set.
    #[cfg(feature = "memory")]
    pub(crate) fn holds(&self, receipt_id: &str) -> bool {
        self.keys.values().flatten().any(|holder| holder == receipt_id)
    }

    /// A receipt that must be there.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`]; as [`WorkingSet::held`].
    pub fn require(&self, id: &str) -> Result<&Stored, LedgerError> {
        self.receipt(id)?.ok_or_else(|| LedgerError::NotFound(id.to_owned()))
    }

    /// The arrival time kept for a tool and caller, in milliseconds.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn rate(&self, name: &RateName) -> Result<Option<i64>, LedgerError> {
        Ok(self.known(self.rates.get(name), "a rate")?.copied())
    }

    /// How many calls of a tool run, by live writers.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn running(&self, tool: &str) -> Result<u64, LedgerError> {
        match self.running.get(tool) {
            Some(running) => Ok(*running),
            None if self.whole => {
                let own = self.receipts.values().flatten();
                let of = own.filter(|stored| stored.runs() && stored.receipt.tool_id == tool);
                Ok(of.count() as u64)
            }
            None => Err(unread("how many calls run")),
        }
    }

    /// The newest approval for exactly this call that is not spent.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn approval(&self, name: &ApprovalName) -> Result<Option<&Approval>, LedgerError> {
        if !self.whole && !self.asked.contains(name) {
            return Err(unread("an approval"));
        }
        let is = |approval: &&Approval| {
            approval.state != ApprovalState::Spent
                && approval.tool_id == name.tool
                && approval.caller == name.caller
                && approval.args_digest == name.args_digest
                && approval.contract_digest == name.contract_digest
        };
        Ok(self.approvals.values().rev().find(is))
    }

    /// An approval that a receipt has spent.
    #[must_use]
    pub fn spent(&self, approval_id: &str) -> Option<&Approval> {
        self.approvals.get(approval_id)
    }

    /// An asynchronous call.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] where its row was changed; as [`WorkingSet::held`].
    pub fn call(&self, caller: &str, call_id: &str) -> Result<Option<&QueuedCall>, LedgerError> {
        let found = self.call_as_stored(caller, call_id)?;
        match found {
            Some(call) if !call.is_whole(&self.digester) => Err(LedgerError::Damaged(DamagedRow {
                table: "queue".to_owned(),
                row: format!("{caller} {call_id}"),
                reason: "its MAC does not fit".to_owned(),
            })),
            found => Ok(found),
        }
    }

    /// An asynchronous call, whatever was done to its row.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn call_as_stored(
        &self,
        caller: &str,
        call_id: &str,
    ) -> Result<Option<&QueuedCall>, LedgerError> {
        self.known(self.calls.get(&(caller.to_owned(), call_id.to_owned())), "a call")
    }

    /// How many asynchronous calls wait.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn waiting(&self) -> Result<u64, LedgerError> {
        match self.waiting {
            Some(waiting) => Ok(waiting),
            None if self.whole => {
                let waits = |call: &&QueuedCall| call.state == QueueState::Queued;
                Ok(self.calls.values().flatten().filter(waits).count() as u64)
            }
            None => Err(unread("how many calls wait")),
        }
    }

    /// Closes when a claim of this process is settled; `None` for claims of others.
    #[must_use]
    pub fn watch(&self, stored: &Stored) -> Option<async_channel::Receiver<Infallible>> {
        let own = stored.receipt.writer == self.head.writer();
        own.then(|| self.watch.of(&stored.receipt.receipt_id))
    }

    /// What of this has to be loaded.
    #[must_use]
    pub fn missing(&self, needs: &Needs) -> Needs {
        fn those<T: Ord + Clone>(all: &BTreeSet<T>, known: impl Fn(&T) -> bool) -> BTreeSet<T> {
            all.iter().filter(|one| !known(one)).cloned().collect()
        }
        let survey = needs.survey.clone();
        if self.whole {
            return Needs { survey, ..Needs::default() };
        }
        Needs {
            keys: those(&needs.keys, |key| self.keys.contains_key(key)),
            receipts: those(&needs.receipts, |id| self.receipts.contains_key(id)),
            rates: those(&needs.rates, |name| self.rates.contains_key(name)),
            running: those(&needs.running, |tool| self.running.contains_key(tool)),
            approvals: those(&needs.approvals, |name| self.asked.contains(name)),
            calls: those(&needs.calls, |name| self.calls.contains_key(name)),
            waiting: needs.waiting && self.waiting.is_none(),
            survey,
        }
    }

    /// Who holds a key, as the store has it.
    pub fn load_key(&mut self, key: String, receipt_id: Option<String>) {
        self.keys.insert(key, receipt_id);
    }

    /// A receipt, as the store has it; what is known already is newer.
    pub fn load_receipt(&mut self, id: String, stored: Option<Stored>) {
        self.receipts.entry(id).or_insert(stored);
    }

    /// An arrival time, as the store has it.
    pub fn load_rate(&mut self, name: RateName, tat_ms: Option<i64>) {
        self.rates.insert(name, tat_ms);
    }

    /// How many calls of a tool run, as the store has it.
    pub fn load_running(&mut self, tool: String, running: u64) {
        self.running.insert(tool, running);
    }

    /// An approval, as the store has it, and the event that it says accounts for it. What somebody
    /// has decided is believed by its event, not by its row.
    pub fn load_approval(&mut self, approval: Approval, event: Option<&str>) {
        if is_vouched(&approval, event) {
            self.approvals.entry(approval.approval_id.clone()).or_insert(approval);
        } else {
            let id = &approval.approval_id;
            tracing::error!(approval.id = %id, "an approval was changed; it is not believed");
        }
    }

    /// Approvals for this call were looked up.
    pub fn load_asked(&mut self, name: ApprovalName) {
        self.asked.insert(name);
    }

    /// A call, as the store has it.
    pub fn load_call(&mut self, name: CallName, call: Option<QueuedCall>) {
        self.calls.insert(name, call);
    }

    /// How many calls wait, as the store has it.
    pub fn load_waiting(&mut self, waiting: u64) {
        self.waiting = Some(waiting);
    }

    /// A running claim whose writer is lost.
    pub fn load_lost(&mut self, stored: Stored) {
        self.load_receipt(stored.receipt.receipt_id.clone(), Some(stored.clone()));
        self.surveyed.lost.push(stored);
    }

    /// A settled receipt that may be pruned, and whether it holds a key.
    pub fn load_prunable(&mut self, stored: Stored, holds: bool) {
        self.load_receipt(stored.receipt.receipt_id.clone(), Some(stored.clone()));
        self.surveyed.prunable.push((stored, holds));
    }

    /// Another process has written: everything has to be loaded again.
    pub fn forget(&mut self) {
        self.receipts.clear();
        self.trim();
    }

    /// Keeps what a settlement will need: own claims that run, as long as nobody else writes.
    pub(crate) fn trim(&mut self) {
        let Self { receipts, head, approvals, .. } = self;
        receipts.retain(|_, stored| {
            stored.as_ref().is_some_and(|stored| {
                matches!(stored.receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput)
                    && stored.receipt.writer == head.writer()
            })
        });
        if !approvals.is_empty() {
            let spent: HashSet<&String> = receipts
                .values()
                .flatten()
                .filter_map(|stored| stored.receipt.approval_id.as_ref())
                .collect();
            approvals.retain(|id, _| spent.contains(id));
        }
        self.keys.clear();
        self.rates.clear();
        self.running.clear();
        self.asked.clear();
        self.calls.clear();
        self.waiting = None;
        self.surveyed = Surveyed::default();
        self.clock_ms = None;
    }

    /// Applies what a step has decided.
    pub(crate) fn apply(&mut self, changes: Changes, batch: &mut Batch) {
        for id in changes.freed {
            for holder in self.keys.values_mut().filter(|holder| holder.as_ref() == Some(&id)) {
                *holder = None;
            }
            batch.held.retain(|_, holder| *holder != id);
            batch.freed.insert(id);
        }
        for put in changes.receipts {
            let id = put.receipt.receipt_id.clone();
            let runs = put.receipt.state == ClaimState::InFlight;
            if !matches!(put.receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput) {
                batch.ended.push(id.clone());
            }
            let stored =
                Stored { receipt: Arc::clone(&put.receipt), fence: put.fence, owner_lost: false };
            let before = self.receipts.insert(id.clone(), Some(stored)).flatten();
            if let Some(running) = self.running.get_mut(&put.receipt.tool_id) {
                let ran = before.as_ref().is_some_and(|own| own.runs() && !own.owner_lost);
                *running = (*running + u64::from(runs)).saturating_sub(u64::from(ran));
            }
            let moved = batch.receipts.entry(id).or_insert_with(|| Moved {
                before: before.map(|before| (before.receipt.state, before.fence)),
                after: None,
                accounted: None,
            });
            moved.after = Some(put);
        }
        for receipt in changes.removed {
            let id = receipt.receipt_id.clone();
            let before = self.receipts.insert(id.clone(), None).flatten();
            let moved = batch.receipts.entry(id).or_insert_with(|| Moved {
                before: before.map(|before| (before.receipt.state, before.fence)),
                after: None,
                accounted: None,
            });
            (moved.after, moved.accounted) = (None, receipt.audit_seq.clone());
        }
        for (key, id) in changes.held {
            self.keys.insert(key.clone(), Some(id.clone()));
            batch.held.insert(key, id);
        }
        for (name, tat_ms) in changes.rates {
            self.rates.insert(name.clone(), Some(tat_ms));
            batch.rates.insert(name, tat_ms);
        }
        for approval in changes.approvals {
            self.approvals.insert(approval.approval_id.clone(), approval.clone());
            batch.approvals.insert(approval.approval_id.clone(), approval);
        }
        for Entry { body, log } in changes.events {
            let placed = self.head.append(body);
            if let Some(log) = log {
                batch.logs.push((log, placed.event.seq));
            }
            batch.events.push(placed);
        }
        for mut call in changes.calls {
            call.mac = Some(call.mac_of(&self.digester));
            let name = (call.caller.clone(), call.call_id.clone());
            let waits = u64::from(call.state == QueueState::Queued);
            let before = self.calls.insert(name.clone(), Some(call.clone())).flatten();
            let waited = before.is_some_and(|before| before.state == QueueState::Queued);
            if let Some(waiting) = &mut self.waiting {
                *waiting = (*waiting + waits).saturating_sub(u64::from(waited));
            }
            batch.calls.insert(name, call);
        }
        if let Some(now_ms) = changes.looked_ms {
            self.head.look(now_ms);
        }
        if let Some(named) = changes.checkpoint {
            self.head.cover();
            batch.checkpoint = Some(named);
        }
        batch.begun.extend(changes.begun);
        batch.renewed = changes.renewed.or(batch.renewed.take());
        batch.pruned = changes.pruned.or(batch.pruned.take());
        batch.adopted.extend(changes.adopted);
        batch.stopped |= changes.stopped;
    }
}
