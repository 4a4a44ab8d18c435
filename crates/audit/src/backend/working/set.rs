//! The records that a batch works on, as loaded from the store and changed by the steps so far.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::order::{Order, OrderName};
use toolbooth_contracts::receipt::ClaimState;

use super::{ApprovalName, CallName, Needs, PendingName, RateName, StoreFindings, Stored};
#[cfg(doc)]
use crate::approvals::PENDING_MAX;
use crate::approvals::has_accounting_event;
use crate::backend::chain::Head;
use crate::backend::disk_space::DiskSpace;
use crate::backend::writer_status::WriterStatus;
use crate::charges::BudgetRow;
use crate::digest::Digester;
use crate::history::{WindowName, WindowTotals};
use crate::ledger::LedgerError;
use crate::orders::RawOrder;
use crate::queue::QueuedCall;
use crate::reads::DamagedRow;

/// Unspent approvals that are loaded for one call and rule, the newest. There is more than one that has
/// not expired only where a spent one was given back.
pub const APPROVALS_LOADED: usize = 20;

/// Windows that are kept for later batches.
const WINDOWS_KEPT_MAX: usize = 1_000;

/// A window as it was loaded, with the changes since.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadedWindow {
    pub(super) totals: WindowTotals,
    /// Whether its last calls are known: one of them may have been given back.
    pub(super) is_exact: bool,
    /// Whether it was loaded for this batch. Otherwise it ends at an earlier time, and another process may
    /// have changed it.
    pub(super) is_current: bool,
}

/// The records that a batch works on. Reading a record that was not loaded is an error, because its
/// absence is not known.
#[derive(Debug)]
pub struct WorkingSet {
    pub(super) digester: Digester,
    pub(crate) head: Head,
    pub(super) receipts: HashMap<String, Option<Stored>>,
    pub(super) keys: HashMap<String, Option<String>>,
    pub(super) rates: HashMap<RateName, Option<i64>>,
    pub(super) budgets: HashMap<String, Option<BudgetRow>>,
    pub(super) running: HashMap<String, u64>,
    pub(super) approvals: BTreeMap<String, Approval>,
    asked: HashSet<ApprovalName>,
    pub(super) pending: HashMap<PendingName, u64>,
    pub(super) windows: HashMap<WindowName, LoadedWindow>,
    pub(super) calls: HashMap<CallName, Option<QueuedCall>>,
    /// All orders; `None` in the place of one that no event accounts for.
    pub(super) orders: Option<BTreeMap<OrderName, Option<Order>>>,
    pub(super) waiting: Option<BTreeMap<String, u64>>,
    /// Whether the ids of the store's digest keys were loaded.
    has_key_ids: bool,
    /// The results of the batch's store query.
    pub surveyed: StoreFindings,
    /// The store's clock, in milliseconds since 1970, if it has its own.
    pub clock_ms: Option<i64>,
    status: Arc<WriterStatus>,
}

fn unread(what: &str) -> LedgerError {
    LedgerError::Defect(format!("{what} was not loaded"))
}

fn known<'s, T>(found: Option<&'s Option<T>>, what: &str) -> Result<Option<&'s T>, LedgerError> {
    found.map(Option::as_ref).ok_or_else(|| unread(what))
}

impl WorkingSet {
    /// Returns the set of a writer with a log that ends at `head`, in a store with the keys of
    /// `digester`.
    #[must_use]
    pub fn new(head: Head, digester: Digester, status: Arc<WriterStatus>) -> Self {
        Self {
            digester,
            head,
            receipts: HashMap::new(),
            keys: HashMap::new(),
            rates: HashMap::new(),
            budgets: HashMap::new(),
            running: HashMap::new(),
            approvals: BTreeMap::new(),
            asked: HashSet::new(),
            pending: HashMap::new(),
            windows: HashMap::new(),
            calls: HashMap::new(),
            orders: None,
            waiting: None,
            has_key_ids: false,
            surveyed: StoreFindings::default(),
            clock_ms: None,
            status,
        }
    }

    /// Returns the writer.
    #[must_use]
    pub fn writer(&self) -> &str {
        self.head.writer()
    }

    /// Returns the digester with the store's keys.
    #[must_use]
    pub fn digester(&self) -> &Digester {
        &self.digester
    }

    /// Returns the space state of the store.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        self.status.disk_space()
    }

    /// Sets the space state of the store.
    pub fn set_disk_space(&self, disk_space: DiskSpace) {
        self.status.set_disk_space(disk_space);
    }

    /// Returns the end of the writer's log.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the receipt that holds a key.
    ///
    /// # Errors
    /// [`LedgerError::Defect`] if it was not loaded; the same for all lookups.
    pub fn held(&self, key: &str) -> Result<Option<&Stored>, LedgerError> {
        match known(self.keys.get(key), "a key")? {
            Some(id) => self.receipt(id),
            None => Ok(None),
        }
    }

    /// Returns a receipt.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn receipt(&self, id: &str) -> Result<Option<&Stored>, LedgerError> {
        known(self.receipts.get(id), "a receipt")
    }

    /// Returns a receipt that must exist.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`]; as [`WorkingSet::held`].
    pub fn require(&self, id: &str) -> Result<&Stored, LedgerError> {
        self.receipt(id)?.ok_or_else(|| LedgerError::NotFound(id.to_owned()))
    }

    /// Returns the stored arrival time of a tool and caller, in milliseconds.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn rate(&self, name: &RateName) -> Result<Option<i64>, LedgerError> {
        Ok(known(self.rates.get(name), "a rate")?.copied())
    }

    /// Returns the use of a budget.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn budget(&self, key: &str) -> Result<Option<&BudgetRow>, LedgerError> {
        known(self.budgets.get(key), "a budget")
    }

    /// Returns the number of calls of a tool that live writers run.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn running(&self, tool: &str) -> Result<u64, LedgerError> {
        self.running.get(tool).copied().ok_or_else(|| unread("how many calls run"))
    }

    /// Returns the unspent approvals for exactly this call and rule, newest first: the
    /// [`APPROVALS_LOADED`] newest.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn approvals<'s, 'n>(
        &'s self,
        name: &'n ApprovalName,
    ) -> Result<impl Iterator<Item = &'s Approval> + use<'s, 'n>, LedgerError> {
        if !self.asked.contains(name) {
            return Err(unread("an approval"));
        }
        Ok(self.approvals.values().rev().filter(|approval| name.fits(approval)))
    }

    /// Returns the number of undecided approvals of a caller, at most [`PENDING_MAX`].
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn pending(&self, name: &PendingName) -> Result<u64, LedgerError> {
        self.pending.get(name).copied().ok_or_else(|| unread("how many approvals are pending"))
    }

    /// Returns the calls in a window.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if its last calls are not known in this batch; as [`WorkingSet::held`].
    pub fn window(&self, name: &WindowName) -> Result<WindowTotals, LedgerError> {
        let window = self.windows.get(name).filter(|window| window.is_current);
        let window = window.ok_or_else(|| unread("a window"))?;
        match window.is_exact {
            true => Ok(window.totals),
            false => {
                Err(LedgerError::unavailable("the last calls of the window are not known yet"))
            }
        }
    }

    /// Returns the calls in a window as an earlier batch left them. They are right if no other process has
    /// written since.
    #[must_use]
    pub fn earlier_window(&self, name: &WindowName) -> Option<WindowTotals> {
        self.windows.get(name).map(|window| window.totals)
    }

    /// Returns an approval that a receipt has spent.
    #[must_use]
    pub fn spent(&self, approval_id: &str) -> Option<&Approval> {
        self.approvals.get(approval_id)
    }

    /// Returns an asynchronous call.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] if its row was changed; as [`WorkingSet::held`].
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

    /// Returns an asynchronous call without checking its MAC.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn call_as_stored(
        &self,
        caller: &str,
        call_id: &str,
    ) -> Result<Option<&QueuedCall>, LedgerError> {
        known(self.calls.get(&(caller.to_owned(), call_id.to_owned())), "a call")
    }

    /// Returns the current order on a subject.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] if no event accounts for it; as [`WorkingSet::held`].
    pub fn order(&self, name: &OrderName) -> Result<Option<&Order>, LedgerError> {
        let orders = self.orders.as_ref().ok_or_else(|| unread("an order"))?;
        match orders.get(name) {
            Some(None) => Err(LedgerError::Damaged(DamagedRow {
                table: "orders".to_owned(),
                row: name.to_string(),
                reason: "no event accounts for it".to_owned(),
            })),
            found => Ok(found.and_then(Option::as_ref)),
        }
    }

    /// Returns the number of stored orders of a kind.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn order_count(&self, kind: &str) -> Result<usize, LedgerError> {
        let orders = self.orders.as_ref().ok_or_else(|| unread("how many orders there are"))?;
        Ok(orders.keys().filter(|name| name.kind == kind).count())
    }

    /// Returns the number of waiting asynchronous calls of each caller.
    ///
    /// # Errors
    /// As [`WorkingSet::held`].
    pub fn waiting(&self) -> Result<&BTreeMap<String, u64>, LedgerError> {
        self.waiting.as_ref().ok_or_else(|| unread("how many calls wait"))
    }

    /// Returns a channel that closes when a claim of this process is settled; `None` for claims of
    /// others.
    #[must_use]
    pub fn wait_for(&self, stored: &Stored) -> Option<async_channel::Receiver<Infallible>> {
        let own = stored.receipt.writer == self.head.writer();
        own.then(|| self.status.of(&stored.receipt.receipt_id))
    }

    /// Returns the needs that are not loaded yet.
    #[must_use]
    pub fn missing(&self, needs: &Needs) -> Needs {
        fn those<T: Ord + Clone>(all: &BTreeSet<T>, known: impl Fn(&T) -> bool) -> BTreeSet<T> {
            all.iter().filter(|one| !known(one)).cloned().collect()
        }
        Needs {
            keys: those(&needs.keys, |key| self.keys.contains_key(key)),
            receipts: those(&needs.receipts, |id| self.receipts.contains_key(id)),
            rates: those(&needs.rates, |name| self.rates.contains_key(name)),
            budgets: those(&needs.budgets, |key| self.budgets.contains_key(key)),
            running: those(&needs.running, |tool| self.running.contains_key(tool)),
            approvals: those(&needs.approvals, |name| self.asked.contains(name)),
            pending: those(&needs.pending, |name| self.pending.contains_key(name)),
            windows: needs
                .windows
                .iter()
                .filter(|(name, _)| !self.windows.get(name).is_some_and(|own| own.is_current))
                .map(|(name, at_ms)| (name.clone(), *at_ms))
                .collect(),
            counting: needs.counting.clone(),
            clock: needs.clock && self.clock_ms.is_none(),
            is_alone: false,
            calls: those(&needs.calls, |name| self.calls.contains_key(name)),
            orders: needs.orders && self.orders.is_none(),
            waiting: needs.waiting && self.waiting.is_none(),
            digest_keys: needs.digest_keys && !self.has_key_ids,
            survey: needs.survey.clone(),
        }
    }

    /// Loads the holder of a key from the store.
    pub fn load_key(&mut self, key: String, receipt_id: Option<String>) {
        self.keys.insert(key, receipt_id);
    }

    /// Loads a receipt from the store; a receipt that is already in the set is newer and remains.
    pub fn load_receipt(&mut self, id: String, stored: Option<Stored>) {
        self.receipts.entry(id).or_insert(stored);
    }

    /// Loads an arrival time from the store.
    pub fn load_rate(&mut self, name: RateName, tat_ms: Option<i64>) {
        self.rates.insert(name, tat_ms);
    }

    /// Loads the use of a budget from the store.
    pub fn load_budget(&mut self, key: String, row: Option<BudgetRow>) {
        self.budgets.insert(key, row);
    }

    /// Loads the number of running calls of a tool from the store.
    pub fn load_running(&mut self, tool: String, running: u64) {
        self.running.insert(tool, running);
    }

    /// Loads an approval from the store, with the event that it names as its accounting event. A
    /// decision is trusted because of its event, not because of its row.
    pub fn load_approval(&mut self, approval: Approval, event: Option<&str>) {
        if has_accounting_event(&approval, event) {
            self.approvals.entry(approval.approval_id.clone()).or_insert(approval);
        } else {
            let id = &approval.approval_id;
            tracing::error!(approval.id = %id, "an approval was changed; it is not believed");
        }
    }

    /// Records that approvals for this call were loaded.
    pub fn load_asked(&mut self, name: ApprovalName) {
        self.asked.insert(name);
    }

    /// Loads the number of undecided approvals of a caller.
    pub fn load_pending(&mut self, name: PendingName, pending: u64) {
        self.pending.insert(name, pending);
    }

    /// Loads the calls in a window from the store.
    pub fn load_window(&mut self, name: WindowName, totals: WindowTotals) {
        self.windows.insert(name, LoadedWindow { totals, is_exact: true, is_current: true });
    }

    /// Loads a call from the store.
    pub fn load_call(&mut self, name: CallName, call: Option<QueuedCall>) {
        self.calls.insert(name, call);
    }

    /// Loads all orders from the store.
    pub fn load_orders(&mut self, orders: &[RawOrder]) {
        let order = |raw: &RawOrder| {
            let order = raw.accounted();
            if order.is_none() {
                let name = raw.order_name();
                tracing::error!(order = %name, "an order was changed; it is not believed");
            }
            (raw.order_name(), order)
        };
        self.orders = Some(orders.iter().map(order).collect());
    }

    /// Loads the number of waiting calls of each caller from the store.
    pub fn load_waiting(&mut self, waiting: impl IntoIterator<Item = (String, u64)>) {
        self.waiting = Some(waiting.into_iter().collect());
    }

    /// Loads the ids of the store's digest keys.
    pub fn load_key_ids(&mut self, ids: &[String]) {
        self.has_key_ids = true;
        let is_unknown = |id: &&String| self.digester.all().all(|own| own.key_id() != *id);
        if let Some(id) = ids.iter().find(is_unknown) {
            self.status.set_unknown_key(id);
        }
    }

    /// Checks that this writer has all digest keys of the store. Another gateway may have added one since the
    /// start: then claims, approvals and queued calls cannot be compared, and equal calls would seem different.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if a key is unknown, [`LedgerError::Defect`] if the ids were not loaded.
    pub fn check_key_ids(&self) -> Result<(), LedgerError> {
        if !self.has_key_ids {
            return Err(unread("the ids of the digest keys"));
        }
        self.status.check_keys()
    }

    /// Loads a running claim of a lost writer.
    pub fn load_lost(&mut self, stored: Stored) {
        self.load_receipt(stored.receipt.receipt_id.clone(), Some(stored.clone()));
        self.surveyed.lost.push(stored);
    }

    /// Loads a settled receipt that can be pruned, and whether it holds a key.
    pub fn load_prunable(&mut self, stored: Stored, holds: bool) {
        self.load_receipt(stored.receipt.receipt_id.clone(), Some(stored.clone()));
        self.surveyed.prunable.push((stored, holds));
    }

    /// Clears all loaded records, for example because another process has written. Everything must
    /// be loaded again.
    pub fn forget(&mut self) {
        self.receipts.clear();
        self.windows.clear();
        self.trim();
    }

    /// Retains only the records that settlements need, this writer's running claims, and windows. They are
    /// valid as long as no other process writes.
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
        self.budgets.clear();
        self.running.clear();
        self.asked.clear();
        self.pending.clear();
        self.windows.retain(|_, window| window.is_exact);
        if self.windows.len() > WINDOWS_KEPT_MAX {
            self.windows.clear();
        }
        self.windows.values_mut().for_each(|window| window.is_current = false);
        self.calls.clear();
        self.orders = None;
        self.waiting = None;
        self.has_key_ids = false;
        self.surveyed = StoreFindings::default();
        self.clock_ms = None;
    }
}
