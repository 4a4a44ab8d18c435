//! The rows that one batch works on: loaded before, written after, worked on in memory between.
//!
//! The steps of a ledger are the same for all stores; here they run over what was loaded, so that
//! a batch of many calls costs two trips to the server.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::{BTreeMap, BTreeSet, HashMap};

use toolbooth_audit::LedgerError;
use toolbooth_audit::chain::{Head, Placed};
use toolbooth_audit::ledger::{ClaimRequest, Moment};
use toolbooth_audit::reads::WriterHead;
use toolbooth_audit::steps::{OtherHead, Records, Stored};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::clean;
use crate::watch::{Changes, Watch};

/// What a job has to look at.
#[derive(Debug, Clone, Default)]
pub(super) struct Needs {
    pub(super) keys: Vec<String>,
    pub(super) receipts: Vec<String>,
    pub(super) rates: Vec<(String, String)>,
    pub(super) running: Vec<String>,
    /// Tool, caller, digest of the arguments, digest of the contract.
    pub(super) approvals: Vec<[String; 4]>,
    /// What only jobs that run alone look at.
    pub(super) alone: Option<Alone>,
}

/// What a job that runs alone looks at.
#[derive(Debug, Clone)]
pub(super) enum Alone {
    /// Running claims of lost writers.
    Lost,
    /// The writer's lease is renewed.
    Renew,
    /// The ends of other logs that no checkpoint has named for good.
    Heads,
    /// The ends of all other logs.
    AllHeads,
    /// Settled receipts from before a time.
    Prunable(String),
    /// Agent logs from before a time are removed.
    Logs(String),
    /// Events up to a checkpoint from before a time are removed.
    Events(String),
}

impl Needs {
    pub(super) fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.receipts.extend(other.receipts);
        self.rates.extend(other.rates);
        self.running.extend(other.running);
        self.approvals.extend(other.approvals);
        self.alone = self.alone.take().or(other.alone);
    }

    /// What is locked before anything is read, in one order for all replicas: rows that are not
    /// there yet have names too.
    pub(super) fn locks(&self) -> Vec<i64> {
        let keys = self.keys.iter().map(|key| lock(&["key", key]));
        let rates = self.rates.iter().map(|(tool, caller)| lock(&["rate", tool, caller]));
        let running = self.running.iter().map(|tool| lock(&["running", tool]));
        let approvals = self
            .approvals
            .iter()
            .map(|[tool, caller, args, _]| lock(&["approval", tool, caller, args]));
        let all: BTreeSet<i64> = keys.chain(rates).chain(running).chain(approvals).collect();
        all.into_iter().collect()
    }
}

/// The number of an advisory lock. Two names that share one only wait for each other.
fn lock(parts: &[&str]) -> i64 {
    let digest = toolbooth_audit::digest::sha256_hex(parts.join("\u{1f}").as_bytes());
    let head = digest.get(..16).unwrap_or_default();
    u64::from_str_radix(head, 16).unwrap_or_default().cast_signed()
}

/// What was loaded, and what is to be written.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) keys: HashMap<String, String>,
    pub(super) receipts: HashMap<String, Stored>,
    pub(super) rates: HashMap<(String, String), i64>,
    pub(super) running: HashMap<String, i64>,
    pub(super) approvals: BTreeMap<String, Approval>,
    pub(super) lost: Vec<String>,
    pub(super) heads: Vec<OtherHead>,
    pub(super) prunable: Vec<(Stored, bool)>,
    pub(super) removed_logs: u64,
    pub(super) removed_events: Option<(String, u64)>,
    /// What is to be written.
    pub(super) written: Written,
}

/// What a batch writes.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) receipts: BTreeSet<String>,
    pub(super) removed: Vec<String>,
    pub(super) held: BTreeSet<String>,
    pub(super) freed: BTreeSet<String>,
    pub(super) rates: BTreeSet<(String, String)>,
    pub(super) approvals: BTreeSet<String>,
    pub(super) events: Vec<Placed>,
    pub(super) logs: Vec<(AgentLog, u64)>,
    pub(super) named: Vec<String>,
    pub(super) checkpoint: Option<String>,
    pub(super) stopped: bool,
}

impl Written {
    /// Grows with everything that is written.
    pub(super) fn count(&self) -> usize {
        self.receipts.len()
            + self.removed.len()
            + self.held.len()
            + self.freed.len()
            + self.rates.len()
            + self.approvals.len()
            + self.events.len()
            + self.logs.len()
            + self.named.len()
    }
}

/// The records of one batch.
pub(super) struct Working<'w> {
    pub(super) key_id: &'w str,
    pub(super) head: &'w mut Head,
    pub(super) rows: &'w mut Rows,
    pub(super) changes: &'w mut Changes,
    pub(super) watch: &'w Watch,
}

impl Working<'_> {
    /// The writer's log ends.
    pub(super) fn stop(&mut self) {
        self.rows.written.stopped = true;
    }
}

fn runs(receipt: &Receipt) -> bool {
    receipt.state == ClaimState::InFlight
}

impl Records for Working<'_> {
    fn writer(&self) -> &str {
        self.head.writer()
    }

    fn key_id(&self) -> &str {
        self.key_id
    }

    fn held(&mut self, key: &str) -> Result<Option<Stored>, LedgerError> {
        let id = self.rows.keys.get(key);
        Ok(id.and_then(|id| self.rows.receipts.get(id)).cloned())
    }

    fn stored(&mut self, receipt_id: &str) -> Result<Option<Stored>, LedgerError> {
        Ok(self.rows.receipts.get(receipt_id).cloned())
    }

    fn begun(&mut self, receipt_id: &str, fence: u64, at: &Moment) {
        self.watch.expect(receipt_id);
        self.changes.begun.push((receipt_id.to_owned(), fence, at.clone()));
    }

    fn put(&mut self, receipt: &Receipt, fence: u64, _at: &Moment) -> Result<(), LedgerError> {
        let id = receipt.receipt_id.clone();
        let stored = Stored { receipt: receipt.clone(), fence, owner_lost: false };
        let before = self.rows.receipts.insert(id.clone(), stored);
        let ran = before.is_some_and(|before| runs(&before.receipt) && !before.owner_lost);
        if let Some(running) = self.rows.running.get_mut(&clean(&receipt.tool_id)) {
            *running += i64::from(runs(receipt)) - i64::from(ran);
        }
        self.rows.written.receipts.insert(id);
        self.changes.note(receipt);
        Ok(())
    }

    fn hold(&mut self, key: &str, receipt_id: &str) -> Result<(), LedgerError> {
        self.rows.keys.insert(key.to_owned(), receipt_id.to_owned());
        self.rows.written.held.insert(key.to_owned());
        Ok(())
    }

    fn free(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.rows.keys.retain(|_, holder| holder != receipt_id);
        self.rows.written.freed.insert(receipt_id.to_owned());
        Ok(())
    }

    fn rate(&mut self, tool: &str, caller: &str) -> Result<Option<i64>, LedgerError> {
        Ok(self.rows.rates.get(&(clean(tool), clean(caller))).copied())
    }

    fn set_rate(&mut self, tool: &str, caller: &str, tat_ms: i64) -> Result<(), LedgerError> {
        let name = (clean(tool), clean(caller));
        self.rows.rates.insert(name.clone(), tat_ms);
        self.rows.written.rates.insert(name);
        Ok(())
    }

    fn running(&mut self, tool: &str) -> Result<u64, LedgerError> {
        let running = self.rows.running.get(&clean(tool)).copied().unwrap_or_default();
        Ok(u64::try_from(running).unwrap_or_default())
    }

    fn approval(&mut self, request: &ClaimRequest) -> Result<Option<Approval>, LedgerError> {
        let is = |approval: &&Approval| {
            approval.state != ApprovalState::Spent
                && approval.tool_id == request.tool_id
                && approval.caller == request.caller
                && approval.args_digest == request.args_digest
                && approval.contract_digest == request.contract_digest
        };
        Ok(self.rows.approvals.values().rev().find(is).cloned())
    }

    fn approval_by_id(&mut self, id: &str) -> Result<Option<Approval>, LedgerError> {
        Ok(self.rows.approvals.get(id).cloned())
    }

    fn put_approval(&mut self, approval: &Approval) -> Result<(), LedgerError> {
        self.rows.approvals.insert(approval.approval_id.clone(), approval.clone());
        self.rows.written.approvals.insert(approval.approval_id.clone());
        Ok(())
    }

    fn head(&mut self) -> &mut Head {
        self.head
    }

    fn put_event(&mut self, placed: &Placed) -> Result<(), LedgerError> {
        self.rows.written.events.push(placed.clone());
        Ok(())
    }

    fn put_log(&mut self, log: &AgentLog, seq: u64) -> Result<(), LedgerError> {
        self.rows.written.logs.push((log.clone(), seq));
        Ok(())
    }

    fn lost(&mut self) -> Result<Vec<Stored>, LedgerError> {
        Ok(self.rows.lost.iter().filter_map(|id| self.rows.receipts.get(id)).cloned().collect())
    }

    fn unnamed(&mut self, limit: usize) -> Result<Vec<OtherHead>, LedgerError> {
        Ok(self.rows.heads.iter().take(limit).cloned().collect())
    }

    fn all_heads(&mut self) -> Result<Vec<WriterHead>, LedgerError> {
        Ok(self.rows.heads.iter().map(|other| other.head.clone()).collect())
    }

    fn named(&mut self, writers: &[String], note: &str) -> Result<(), LedgerError> {
        self.rows.written.named.extend(writers.iter().cloned());
        self.rows.written.checkpoint = Some(note.to_owned());
        Ok(())
    }

    fn prunable(
        &mut self,
        _before: &str,
        limit: usize,
    ) -> Result<Vec<(Stored, bool)>, LedgerError> {
        Ok(self.rows.prunable.iter().take(limit).cloned().collect())
    }

    fn remove(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.rows.receipts.remove(receipt_id);
        self.rows.written.removed.push(receipt_id.to_owned());
        Ok(())
    }

    fn remove_logs(&mut self, _before: &str, _limit: usize) -> Result<u64, LedgerError> {
        Ok(self.rows.removed_logs)
    }

    fn remove_events(&mut self, _before: &str) -> Result<Option<(String, u64)>, LedgerError> {
        Ok(self.rows.removed_events.clone())
    }
}
