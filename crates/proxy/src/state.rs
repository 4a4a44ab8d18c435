//! The parts of a proxy, and the state that all of its calls share.
//!
//! Doc: call-path.md#one-call

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::{Ledger, LedgerError, LedgerReads};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::secret::SecretShapes;

use crate::catalogue::Catalogue;
use crate::claim_health::ClaimHealth;
use crate::executors::Executors;
use crate::kept_documents::KeptDocuments;
use crate::limits::Limits;
use crate::orders::Orders;
use crate::payload_retention::PayloadRetention;
use crate::port::{ApprovalNotifier, Clock, IdSource, SystemClock, SystemIds};
use crate::refusal_limits::{RefusalKind, RefusalLimits};
use crate::requests::subscription_table::Subscriptions;
use crate::requests::updates::Updates;
use crate::requests::upstreams::Upstreams;
use crate::stops::Stops;
use crate::worlds::Worlds;

/// The parts of a proxy, all supplied from outside.
pub struct ProxyParts {
    /// The published world.
    pub worlds: Arc<Worlds>,
    /// The catalogue that refreshes the world, if sources may have to be listed before a call.
    pub catalogue: Option<Arc<Catalogue>>,
    /// The ledger that stores the records.
    pub ledger: Arc<dyn Ledger>,
    /// The reader of the records for operators; `None` = the records cannot be read.
    pub reads: Option<Arc<dyn LedgerReads>>,
    /// The executors of tools.
    pub executors: Executors,
    /// The servers that answer requests other than tool calls.
    pub upstreams: Upstreams,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of ids.
    pub ids: Arc<dyn IdSource>,
    /// The shapes by which secrets are recognized in payloads.
    pub shapes: SecretShapes,
    /// The limits.
    pub limits: Limits,
    /// Which payloads are stored.
    pub retention: PayloadRetention,
    /// Reports requested approvals to those who decide.
    pub notifier: Option<Arc<dyn ApprovalNotifier>>,
}

impl ProxyParts {
    /// Parts with the system's clock and ids, the neutral secret shapes and the default limits. No
    /// catalogue refreshes the world, operators cannot read the records, and no server is asked for prompts
    /// or resources.
    #[must_use]
    pub fn new(worlds: Arc<Worlds>, ledger: Arc<dyn Ledger>, executors: Executors) -> Self {
        Self {
            worlds,
            catalogue: None,
            ledger,
            reads: None,
            executors,
            upstreams: Upstreams::default(),
            clock: Arc::new(SystemClock::default()),
            ids: Arc::new(SystemIds),
            shapes: SecretShapes::builtin(),
            limits: Limits::default(),
            retention: PayloadRetention::default(),
            notifier: None,
        }
    }
}

/// A request that was not authenticated.
#[derive(Debug, Clone, Copy)]
pub struct DeniedAuthentication<'d> {
    /// The reason, a fixed word.
    pub reason: &'static str,
    /// The name of the key, if it was valid once.
    pub key: Option<&'d str>,
    /// The name of the caller, if it is proven.
    pub caller: Option<&'d str>,
    /// The client's address.
    pub peer: IpAddr,
}

/// The state that all calls and requests of one proxy share.
pub(crate) struct ProxyState {
    pub(crate) parts: ProxyParts,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) ending: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Queued calls of this process, until their ends are in the queue.
    pub(crate) queued: TaskTracker,
    /// Records that could not be written, until an event states their number.
    gap: AtomicU64,
    /// Refusals that are too frequent to be recorded one by one.
    refusal_limits: RefusalLimits,
    /// The documents that the store has.
    pub(crate) kept_documents: KeptDocuments,
    /// The orders of operators that are in force.
    pub(crate) orders: Orders,
    /// One reading of the orders is applied at a time: who has read no change must not go on before it holds.
    applying_orders: tokio::sync::Mutex<()>,
    /// Whether the last claims could be recorded.
    pub(crate) claim_health: ClaimHealth,
    /// Stops of running calls.
    pub(crate) stops: Stops,
    /// Counts the decisions on approvals in this process, for calls that wait for one.
    pub(crate) decisions: watch::Sender<u64>,
    /// The places of calls that wait for their approval.
    pub(crate) waiting: Semaphore,
    /// The subscriptions of callers.
    pub(crate) subscriptions: Subscriptions,
    pub(crate) updates: Updates,
}

impl ProxyState {
    pub(crate) fn new(parts: ProxyParts) -> Self {
        let in_flight = parts.limits.in_flight_max.min(Semaphore::MAX_PERMITS);
        let slots = Arc::new(Semaphore::new(in_flight));
        let waiting = in_flight;
        Self {
            parts,
            slots,
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
            queued: TaskTracker::new(),
            gap: AtomicU64::new(0),
            refusal_limits: RefusalLimits::default(),
            kept_documents: KeptDocuments::default(),
            orders: Orders::default(),
            applying_orders: tokio::sync::Mutex::default(),
            claim_health: ClaimHealth::default(),
            stops: Stops::default(),
            decisions: watch::Sender::default(),
            waiting: Semaphore::new(waiting),
            subscriptions: Subscriptions::default(),
            updates: Updates::default(),
        }
    }

    /// Counts a record that could not be written.
    pub(crate) fn count_gap(&self, error: &LedgerError) {
        // Only the first failure is logged: one line for each could fill a disk that is already full.
        if self.gap.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(%error, "an event could not be recorded; further ones are counted");
        }
    }

    /// Whether a refusal is recorded by itself; otherwise it is counted with others.
    pub(crate) fn is_single(&self, name: &str, kind: RefusalKind, at: &Moment) -> bool {
        self.refusal_limits.is_single(name, kind, self.parts.clock.monotonic(), at)
    }

    /// Records that a request was not authenticated, unless too many were for the same reason.
    pub(crate) async fn record_denied_authentication(&self, denied: DeniedAuthentication<'_>) {
        let at = self.parts.clock.now();
        if !self.is_single(denied.reason, RefusalKind::Authentication, &at) {
            return;
        }
        let mut event = EventBody::new(AuditEventKind::AuthDenied, at.text);
        let mut facts = serde_json::Map::new();
        facts.insert("reason".to_owned(), denied.reason.into());
        facts.insert("peer".to_owned(), denied.peer.to_string().into());
        for (name, value) in [("key", denied.key), ("caller", denied.caller)] {
            facts.extend(value.map(|value| (name.to_owned(), value.into())));
        }
        event.facts = Some(facts);
        if let Err(error) = self.parts.ledger.record_events(vec![event]).await {
            self.count_gap(&error);
        }
    }

    /// Records how many refusals were counted instead of recorded: of all minutes if `all`, otherwise
    /// of those that are over.
    pub(crate) async fn record_counted_refusals(&self, all: bool) {
        let clock = &self.parts.clock;
        let events = self.refusal_limits.take(clock.monotonic(), &clock.now(), all);
        if events.is_empty() {
            return;
        }
        let folded = |event: &EventBody| event.facts.as_ref()?.get("folded")?.as_u64();
        let missed: u64 = events.iter().filter_map(folded).sum();
        if let Err(error) = self.parts.ledger.record_events(events).await {
            tracing::error!(%error, missed, "refusals that were counted could not be recorded");
            self.gap.fetch_add(missed, Ordering::Relaxed);
        }
    }

    /// Reads the orders of operators again, and applies them.
    ///
    /// # Errors
    /// If the store does not answer; the orders that were read last stay in force.
    pub(crate) async fn refresh_orders(&self) -> Result<(), LedgerError> {
        let parts = &self.parts;
        let Some(reads) = &parts.reads else { return Ok(()) };
        let _applying = self.applying_orders.lock().await;
        let changed = self.orders.read(&**reads, &*parts.clock).await?;
        if let Some(pauses) = changed.pauses {
            match &parts.catalogue {
                Some(catalogue) => {
                    parts.worlds.remember(pauses.clone());
                    catalogue.edit(|world| world.order_pauses(&pauses)).await;
                }
                None => parts.worlds.order(pauses),
            }
        }
        // Running calls are stopped after further ones are refused.
        changed.stops.into_iter().for_each(|target| self.stops.stop(target));
        Ok(())
    }

    /// Stores when keys were used last.
    pub(crate) async fn record_key_uses(&self) {
        let uses = self.orders.take_uses();
        if uses.is_empty() {
            return;
        }
        if let Err(error) = self.parts.ledger.record_uses(uses).await {
            tracing::debug!(%error, "the last uses of keys are not stored");
        }
    }

    /// Whether records could not be written and no event states their number yet.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap.load(Ordering::Relaxed) > 0
    }

    /// Records how many records could not be written, once the store is available again.
    pub(crate) async fn record_gap(&self) {
        let missed = self.gap.swap(0, Ordering::Relaxed);
        if missed == 0 {
            return;
        }
        let mut event = EventBody::new(AuditEventKind::AuditGap, self.parts.clock.now().text);
        let mut facts = serde_json::Map::new();
        facts.insert("missed".to_owned(), missed.into());
        event.facts = Some(facts);
        if self.parts.ledger.record_events(vec![event]).await.is_err() {
            self.gap.fetch_add(missed, Ordering::Relaxed);
        }
    }
}
