//! A ledger and identifiers that record the calls of their ports, and the recordings' golden files.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use toolbooth_audit::Digester;
use toolbooth_audit::approvals::{ApprovalVerdict, Decided};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, LedgerError, Moment, Prune, Pruned, Refusal, Resolution,
    Settlement, Swept,
};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::{OrderRequest, Ordered};
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::Receipt;
use toolbooth_proxy::{Clock, IdSource, SystemClock, SystemIds};

/// The calls of ports, in their order.
#[derive(Clone, Default)]
pub(crate) struct Tape(Arc<Mutex<Vec<String>>>);

impl Tape {
    pub(crate) fn say(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    /// Takes what was recorded, in lines.
    pub(crate) fn recorded(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(|line| line + "\n").collect()
    }
}

/// Compares a recording with a golden file, which `UPDATE_GOLDEN` writes.
pub(crate) fn is_golden(recorded: &str, name: &str) {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, recorded).unwrap();
    }
    assert_eq!(recorded, std::fs::read_to_string(golden).unwrap());
}

pub(crate) struct TapedIds(pub Tape);

impl IdSource for TapedIds {
    fn next(&self) -> String {
        self.0.say("ids.next");
        SystemIds.next()
    }
}

/// A ledger in memory that can be unavailable.
pub(crate) struct TapedLedger {
    pub(crate) kept: MemoryLedger,
    pub(crate) away: AtomicBool,
    tape: Tape,
}

impl TapedLedger {
    pub(crate) fn new(tape: &Tape) -> Self {
        let kept = MemoryLedger::new("writer", &[3; 32], &SystemClock::default().now());
        Self { kept, away: AtomicBool::new(false), tape: tape.clone() }
    }

    fn there(&self) -> Result<(), LedgerError> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(LedgerError::unavailable("away")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Ledger for TapedLedger {
    fn writer(&self) -> &str {
        self.kept.writer()
    }
    fn digester(&self) -> &Digester {
        self.tape.say("ledger.digester");
        Ledger::digester(&self.kept)
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        self.tape.say("ledger.claim");
        self.kept.claim(request).await
    }
    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError> {
        self.tape.say("ledger.settle");
        self.kept.settle(settlement).await
    }
    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        self.tape.say("ledger.refuse");
        self.there()?;
        self.kept.refuse(refusal).await
    }
    async fn record_events(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.tape.say("ledger.record_events");
        self.there()?;
        self.kept.record_events(events).await
    }
    async fn record_uses(&self, uses: Vec<(String, String)>) -> Result<(), LedgerError> {
        self.kept.record_uses(uses).await
    }
    async fn decide_approval(&self, verdict: ApprovalVerdict) -> Result<Decided, LedgerError> {
        self.kept.decide_approval(verdict).await
    }
    async fn order(&self, order: OrderRequest) -> Result<Ordered, LedgerError> {
        self.kept.order(order).await
    }
    async fn renew(&self, at: Moment) -> Result<(), LedgerError> {
        self.kept.renew(at).await
    }
    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        self.kept.sweep(at).await
    }
    async fn suspend(&self, id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        self.tape.say("ledger.suspend");
        self.kept.suspend(id, fence, at).await
    }
    async fn resume(&self, id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        self.tape.say("ledger.resume");
        self.kept.resume(id, fence, at).await
    }
    async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError> {
        self.kept.resolve(resolution).await
    }
    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError> {
        self.kept.prune(prune).await
    }
    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError> {
        self.kept.checkpoint(due, at).await
    }
    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError> {
        self.kept.close(at).await
    }
}
