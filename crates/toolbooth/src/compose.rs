//! Selects the concrete components and composes the gateway.
//!
//! Doc: configuration.md

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolbooth_adapters::declarations;
use toolbooth_audit::LedgerReads;
use toolbooth_contracts::ToolId;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_proxy::{AsyncCalls, Clock, IdSource, ProxyParts, SystemClock, SystemIds, ToolProxy};
use toolbooth_registry::Source;
use toolbooth_registry::lock::{Lock, UnrecordedPin};
use toolbooth_server::Gateway;
use toolbooth_store::sqlite::StartCheck;

use crate::config::LockUse;
use crate::door;
use crate::failure::Failure;
use crate::notify::{self, Notifier};
use crate::offline::{OfflineGateway, remember_names};
use crate::operator_socket::OperatorSocket;
use crate::settings::{limits, retention};
use crate::{records, secret_shapes};

/// Time for notifications that are not delivered when the gateway ends.
const NOTIFY_GRACE: Duration = Duration::from_secs(5);

/// The number of pins that one commit records.
const PINS_AT_ONCE: usize = 200;

/// A composed gateway.
pub(crate) struct Runtime {
    pub(crate) offline: OfflineGateway,
    pub(crate) proxy: ToolProxy,
    pub(crate) reads: Arc<dyn LedgerReads>,
    pub(crate) calls: AsyncCalls,
    /// The id of the log that this process writes.
    writer: String,
    clock: Arc<dyn Clock>,
    notifier: Option<Arc<Notifier>>,
    /// Held while pins are recorded, so that two tasks do not record the same pins.
    recording_pins: tokio::sync::Mutex<()>,
}

impl Runtime {
    /// Builds the gateway from its offline part and begins a log in the store, for one command.
    pub(crate) async fn build(offline: OfflineGateway) -> Result<Self, Failure> {
        // A command is short, and many can follow each other.
        Self::build_checked(offline, StartCheck::IfDue).await
    }

    /// As [`Runtime::build`]; `check` says when the database is checked.
    pub(crate) async fn build_checked(
        offline: OfflineGateway,
        check: StartCheck,
    ) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let ids = Arc::new(SystemIds);
        let config = &offline.loaded.config;
        let notifier = notify::notifier(&offline.loaded, &offline.launcher)?;
        let writer = ids.next();
        let opened =
            records::open(&offline.loaded, writer.clone(), clock.now(), false, check).await?;
        let proxy = ToolProxy::new(ProxyParts {
            worlds: Arc::clone(&offline.worlds),
            catalogue: Some(Arc::clone(&offline.catalogue)),
            ledger: opened.ledger,
            reads: Some(Arc::clone(&opened.reads)),
            executors: offline.executors.clone(),
            upstreams: offline.upstreams.clone(),
            clock: Arc::clone(&clock),
            ids,
            shapes: secret_shapes::of_records(),
            limits: limits(config)?,
            retention: retention(config),
            notifier: notifier.clone().map(|notifier| notifier as _),
        });
        let calls = AsyncCalls::new(proxy.clone(), opened.queue, Arc::clone(&opened.reads));
        let runtime = Self {
            offline,
            proxy,
            reads: opened.reads,
            calls,
            writer,
            clock,
            notifier,
            recording_pins: tokio::sync::Mutex::new(()),
        };
        runtime.maintain().await?;
        // No call runs before the pauses are known.
        let read = runtime.proxy.refresh_orders().await;
        read.map_err(|error| Failure::store(with_causes(&error)))?;
        Ok(runtime)
    }

    /// Checks that requested approvals can be reported, before calls are accepted.
    pub(crate) async fn check_notifier(&self) -> Result<(), Failure> {
        let Some(notifier) = &self.notifier else { return Ok(()) };
        if let Some(warning) = notifier.check().await?.warning() {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// Makes the socket at which commands ask this process to decide on approvals. Without it they decide
    /// through the store.
    pub(crate) async fn operator_socket(&self) -> Option<OperatorSocket> {
        let folder = &self.offline.loaded.data;
        match OperatorSocket::bind(folder, &self.writer).await {
            Ok(socket) => Some(socket),
            Err(error) => {
                let folder = folder.display();
                tracing::warn!(%error, %folder, "commands cannot ask this gateway to decide on approvals");
                None
            }
        }
    }

    /// Renews the lease, finds lost writers, and publishes a new checkpoint.
    pub(crate) async fn maintain(&self) -> Result<(), Failure> {
        self.record_refusals().await;
        let loaded = &self.offline.loaded;
        let note = self
            .proxy
            .maintain(records::due(&loaded.config))
            .await
            .map_err(|error| Failure::store(with_causes(&error)))?;
        records::hand_outside(loaded, note.as_deref());
        Ok(())
    }

    /// Signs a checkpoint if one is due, and publishes it.
    pub(crate) async fn checkpoint(&self) -> Result<(), Failure> {
        let loaded = &self.offline.loaded;
        let note = self
            .proxy
            .checkpoint(records::due(&loaded.config))
            .await
            .map_err(|error| Failure::store(with_causes(&error)))?;
        records::hand_outside(loaded, note.as_deref());
        Ok(())
    }

    pub(crate) fn gateway(&self) -> Gateway {
        let listing = self.offline.loaded.config.mcp.listing;
        let catalogue = Arc::clone(&self.offline.catalogue);
        let strict_dialect = declarations::STRICT_DIALECT;
        let calls = self.calls.clone();
        let message_bytes_max = door::message_bytes_max(&self.offline.loaded.config);
        let proxy = self.proxy.clone();
        Gateway { proxy, calls, catalogue, listing, message_bytes_max, strict_dialect }
    }

    /// Records that a registry was loaded or rejected, and which tools it replaced.
    pub(crate) async fn record_event(&self, kind: AuditEventKind, facts: serde_json::Value) {
        self.record_all([(kind, facts)]).await;
    }

    /// As [`Runtime::record_event`], for several events in one step.
    pub(crate) async fn record_all(
        &self,
        events: impl IntoIterator<Item = (AuditEventKind, serde_json::Value)>,
    ) {
        let events = events.into_iter().map(|(kind, facts)| self.event(kind, &facts)).collect();
        if let Err(error) = self.proxy.record_events(events).await {
            tracing::error!(%error, "an event is not recorded");
        }
    }

    fn event(&self, kind: AuditEventKind, facts: &serde_json::Value) -> EventBody {
        let mut event = EventBody::new(kind, self.clock.now().text);
        event.facts = facts.as_object().cloned();
        event
    }

    /// As [`Runtime::record_event`], for actions that require a record.
    pub(crate) async fn record(
        &self,
        kind: AuditEventKind,
        facts: serde_json::Value,
    ) -> Result<(), Failure> {
        self.proxy
            .record_events(vec![self.event(kind, &facts)])
            .await
            .map_err(|error| Failure::store(with_causes(&error)))
    }

    /// Records the tools that the registry file has replaced.
    pub(crate) async fn record_replaced(&self, replaced: &[(ToolId, Source)]) {
        for (id, source) in replaced {
            let facts = json!({ "tool": id, "was": source.to_string(), "now": "file" });
            self.record_event(AuditEventKind::ToolReplaced, facts).await;
        }
    }

    /// Records the tools that were pinned at first use, and the quarantined tools with their reasons.
    pub(crate) async fn record_discovered(&self) {
        self.record_first_uses().await;
        for quarantined in self.offline.catalogue.take_quarantined() {
            let facts = json!({
                "tool": quarantined.tool_id,
                "source": quarantined.source.to_string(),
                "reason": quarantined.reason,
            });
            self.record_event(AuditEventKind::ToolQuarantined, facts).await;
        }
    }

    /// Records the tools and items that are pinned but not recorded yet. These include pins of this process
    /// and pins that it found in the file.
    async fn record_first_uses(&self) {
        let _held = self.recording_pins.lock().await;
        let firsts = self.offline.catalogue.take_first_uses();
        let is_found = match &self.offline.worlds.now().approvals().lock {
            Lock::FirstUse(pins) => !pins.unrecorded().is_empty(),
            _ => false,
        };
        if self.offline.loaded.lock_use != LockUse::Pin || (firsts.is_empty() && !is_found) {
            return;
        }
        let own: BTreeSet<&str> = firsts
            .iter()
            .flat_map(|first| first.tools.iter().map(|tool| tool.tool_id.as_str()))
            .collect();
        if let Err(failure) = self.record_pins(&own).await {
            let reason = failure.message;
            tracing::error!(reason, "first-use pins are not recorded; the next start does it");
        }
    }

    async fn record_pins(&self, own: &BTreeSet<&str>) -> Result<(), Failure> {
        let file = self.offline.loaded.pins();
        let pins = file.read()?.map(|pins| pins.unrecorded()).unwrap_or_default();
        let found: Vec<&str> =
            pins.iter().map(|pin| pin.id.as_str()).filter(|id| !own.contains(id)).collect();
        if !found.is_empty() {
            tracing::warn!(
                pins = found.len(),
                first = found.first(),
                file = %file.path().display(),
                "pins that were not on record are, from now on"
            );
        }
        for some in pins.chunks(PINS_AT_ONCE) {
            let event = |pin: &UnrecordedPin| {
                let change = if own.contains(pin.id.as_str()) { "first-use" } else { "found" };
                let facts = json!({
                    "tool": pin.id,
                    "source": pin.source,
                    "change": change,
                    "sourceDigest": pin.source_digest,
                });
                let mut event = EventBody::new(AuditEventKind::ToolApproved, self.clock.now().text);
                event.facts = facts.as_object().cloned();
                event
            };
            let recorded = self.proxy.record_events(some.iter().map(event).collect()).await;
            recorded.map_err(|error| Failure::store(with_causes(&error)))?;
        }
        file.change(true, |kept| kept.mark_recorded(&pins)).map(drop)
    }

    /// Records the connections that were refused to processes that do not belong to a single call.
    async fn record_refusals(&self) {
        for (source, execution_log) in &self.offline.refusals {
            for refusal in execution_log.take().egress {
                let mut facts = serde_json::to_value(refusal).unwrap_or_default();
                if let Some(facts) = facts.as_object_mut() {
                    facts.insert("source".to_owned(), json!(source));
                }
                self.record_event(AuditEventKind::EgressDenied, facts).await;
            }
        }
    }

    /// Settles the running calls and closes the store.
    pub(crate) async fn shut_down(&self) -> Result<(), Failure> {
        self.record_refusals().await;
        self.record_first_uses().await;
        remember_names(&self.offline);
        let grace = self.offline.loaded.config.proxy.shutdown_grace_ms.unwrap_or(10_000);
        let ended = self.proxy.shut_down(Duration::from_millis(grace)).await;
        if let Some(notifier) = &self.notifier {
            notifier.finish(NOTIFY_GRACE).await;
        }
        let note = ended.map_err(|error| Failure::store(with_causes(&error)))?;
        records::hand_outside(&self.offline.loaded, note.as_deref());
        Ok(())
    }
}
