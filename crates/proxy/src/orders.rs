//! The orders of operators that are in force: a copy of the stored ones, read again every
//! [`ORDERS_EVERY`].
//!
//! Path: 1, 3. Doc: records.md#orders

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::stored_orders::StoredOrders;
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::order::{ApiKey, KeyState, OrderName, OrderSubject, PauseTarget};
use toolbooth_contracts::{CallerKind, Identity};
use toolbooth_policy::Pauses;

use crate::error::KeyRefusal;
use crate::port::Clock;

/// The interval at which the orders are read again, so that a decision holds on every replica
/// within a second.
pub const ORDERS_EVERY: Duration = Duration::from_millis(500);
/// The age of the last reading from which on no key is accepted, because a revoked key could be among them. For as long
/// as that calls go on while the orders cannot be read; then a pause could be missing.
pub const ORDERS_AGE_MAX: Duration = Duration::from_secs(5);

/// The orders as they were read.
#[derive(Debug, Default)]
struct InForce {
    /// Keys by their digests, also expired and revoked ones.
    keys: HashMap<String, ApiKey>,
    /// The newest known revisions of all orders.
    revisions: HashMap<OrderName, u64>,
    /// The pauses in force.
    pauses: BTreeMap<PauseTarget, PauseInForce>,
    /// Orders that are missing, damaged or older than in an earlier reading.
    disbelieved: BTreeSet<OrderName>,
    /// Rows that no event accounts for.
    damaged: BTreeSet<String>,
}

/// A pause in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PauseInForce {
    revision: u64,
    cancels_running: bool,
}

/// A reading of the orders, and its time on the monotonic clock.
type Reading = (Arc<InForce>, Duration);

/// The newest reading of the orders, and the keys that were used since.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    newest: Mutex<Option<Reading>>,
    /// When the first of the readings began, on the monotonic clock, that have not succeeded since the last one that
    /// did.
    failing_since: Mutex<Option<Duration>>,
    /// Times by the names of keys, until they are stored.
    uses: Mutex<HashMap<String, String>>,
}

/// The differences between two readings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The pauses, if others are in force than before.
    pub(crate) pauses: Option<Pauses>,
    /// The targets of new pauses that cancel running calls.
    pub(crate) stops: Vec<PauseTarget>,
}

impl InForce {
    fn of(stored: StoredOrders) -> Self {
        let mut in_force = Self::default();
        for row in stored.damaged {
            in_force.damaged.insert(row.row.clone());
            // A key that no event accounts for names no one; such a pause holds.
            let target = row.row.strip_prefix("pause:").map(str::to_owned);
            if let Some(target) = target.and_then(|text| PauseTarget::try_from(text).ok()) {
                let pause = PauseInForce { revision: 0, cancels_running: false };
                in_force.pauses.insert(target, pause);
            }
        }
        for order in stored.orders {
            in_force.revisions.insert(order.name(), order.revision);
            match order.subject {
                OrderSubject::Key(key) => {
                    in_force.keys.insert(key.digest.clone(), key);
                }
                OrderSubject::Pause(pause) if pause.in_force => {
                    let (revision, cancels_running) = (order.revision, pause.cancels_running);
                    let own = PauseInForce { revision, cancels_running };
                    in_force.pauses.insert(pause.target, own);
                }
                OrderSubject::Pause(_) => (),
            }
        }
        in_force
    }

    /// Keeps the decisions of an earlier reading that this one lacks. A missing, damaged or older
    /// order is ignored, because a revoked key could become valid again. Such a key names no one,
    /// and such a pause holds if it does in one of the readings.
    fn keep_decisions(&mut self, before: &Self) {
        for (name, revision) in &before.revisions {
            if self.revisions.get(name).is_some_and(|now| now >= revision) {
                continue;
            }
            if !before.disbelieved.contains(name) {
                tracing::error!(%name, "an order was changed or put back; it is not believed");
            }
            self.revisions.insert(name.clone(), *revision);
            self.disbelieved.insert(name.clone());
        }
        if self.disbelieved.is_empty() {
            return;
        }
        let disbelieved = &self.disbelieved;
        self.keys.retain(|_, key| !disbelieved.contains(&OrderName::key(&key.name)));
        let held = before.pauses.iter();
        let held = held.filter(|(target, _)| disbelieved.contains(&OrderName::pause(target)));
        self.pauses.extend(held.map(|(target, pause)| (target.clone(), *pause)));
    }

    /// Logs rows that no event accounts for, and that were not found before.
    fn log_damaged(&self, before: Option<&Self>) {
        for row in &self.damaged {
            if before.is_none_or(|before| !before.damaged.contains(row)) {
                tracing::error!(row, "no event accounts for an order; it is not believed");
            }
        }
    }

    /// Returns the targets of the pauses.
    fn paused(&self) -> Pauses {
        self.pauses.keys().cloned().collect()
    }

    /// Returns the differences to an earlier reading.
    fn since(&self, before: Option<&Self>) -> Changed {
        let none = BTreeMap::new();
        let known = before.map_or(&none, |before| &before.pauses);
        let are_same = self.pauses.keys().eq(known.keys());
        let is_new = |(target, pause): &(&PauseTarget, &PauseInForce)| {
            pause.cancels_running && known.get(target) != Some(pause)
        };
        let stops = self.pauses.iter().filter(is_new).map(|(target, _)| target.clone());
        let pauses = (!are_same).then(|| self.paused());
        Changed { pauses, stops: stops.collect() }
    }
}

impl Orders {
    fn newest(&self) -> MutexGuard<'_, Option<Reading>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the keys that were used since the last call, with their times.
    pub(crate) fn take_uses(&self) -> Vec<(String, String)> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *uses).into_iter().collect()
    }

    /// Reads the orders again.
    pub(crate) async fn read(
        &self,
        reads: &dyn LedgerReads,
        clock: &dyn Clock,
    ) -> Result<Changed, LedgerError> {
        // The time before the reading: decisions that were made during it may be missing.
        let began = clock.monotonic();
        self.failing_since().get_or_insert(began);
        let stored = StoredOrders::read(reads).await?;
        *self.failing_since() = None;
        Ok(self.take(stored, began))
    }

    fn failing_since(&self) -> MutexGuard<'_, Option<Duration>> {
        self.failing_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the orders could not be read for so long that a pause may be missing.
    pub(crate) fn are_overdue(&self, clock: &dyn Clock) -> bool {
        let since = *self.failing_since();
        since.is_some_and(|since| clock.monotonic().saturating_sub(since) > ORDERS_AGE_MAX)
    }

    /// Takes over a reading that began at a time on the monotonic clock.
    fn take(&self, stored: StoredOrders, began: Duration) -> Changed {
        let mut in_force = InForce::of(stored);
        let mut newest = self.newest();
        if newest.as_ref().is_some_and(|(_, before)| *before > began) {
            return Changed { pauses: None, stops: Vec::new() };
        }
        in_force.log_damaged(newest.as_ref().map(|(before, _)| &**before));
        if let Some((before, _)) = &*newest {
            in_force.keep_decisions(before);
        }
        let changed = in_force.since(newest.as_ref().map(|(before, _)| &**before));
        *newest = Some((Arc::new(in_force), began));
        changed
    }

    /// Whether this process has read the orders.
    pub(crate) fn are_read(&self) -> bool {
        self.newest().is_some()
    }

    /// Returns the newest reading, unless it is too old to accept keys.
    fn fresh(&self, clock: &dyn Clock) -> Result<Arc<InForce>, KeyRefusal> {
        let newest = self.newest().clone();
        let (in_force, read_at) = newest.ok_or(KeyRefusal::Unread)?;
        match clock.monotonic().saturating_sub(read_at) > ORDERS_AGE_MAX {
            true => Err(KeyRefusal::Unread),
            false => Ok(in_force),
        }
    }

    /// Returns the identity of the holder of the key with this digest.
    pub(crate) fn holder(&self, digest: &str, clock: &dyn Clock) -> Result<Identity, KeyRefusal> {
        let in_force = self.fresh(clock)?;
        let key = in_force.keys.get(digest).ok_or(KeyRefusal::Unknown)?;
        is_active(key, clock)?;
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        match uses.get_mut(&key.name) {
            Some(used) => *used = clock.now().text,
            None => drop(uses.insert(key.name.clone(), clock.now().text)),
        }
        Ok(Identity {
            name: format!("key:{}", key.name),
            kind: CallerKind::Key,
            groups: key.groups.clone(),
            scopes: Vec::new(),
            key_digest: Some(key.digest.clone()),
        })
    }

    /// Checks that an identity that was authenticated before has not ended since. Identities that no
    /// key of the store proved do not end.
    pub(crate) fn check(&self, identity: &Identity, clock: &dyn Clock) -> Result<(), KeyRefusal> {
        let Some(digest) = &identity.key_digest else { return Ok(()) };
        let in_force = self.fresh(clock)?;
        is_active(in_force.keys.get(digest).ok_or(KeyRefusal::Unknown)?, clock)
    }
}

fn is_active(key: &ApiKey, clock: &dyn Clock) -> Result<(), KeyRefusal> {
    match key.state(&clock.now().text) {
        KeyState::Active => Ok(()),
        KeyState::Expired => Err(KeyRefusal::Expired { name: key.name.clone() }),
        KeyState::Revoked => Err(KeyRefusal::Revoked { name: key.name.clone() }),
    }
}

/// Returns the pauses among stored orders, as a gateway that has just started takes them: a damaged one holds.
#[must_use]
pub fn stored_pauses(stored: StoredOrders) -> Pauses {
    InForce::of(stored).paused()
}

/// Returns the digest by which a key is stored: SHA-256 in hex. A key has 256 random bits, so that
/// no slow hash is needed.
#[must_use]
pub fn secret_digest(key: &str) -> String {
    sha256_hex(key.as_bytes())
}

#[cfg(test)]
mod tests {
    use toolbooth_audit::reads::DamagedRow;
    use toolbooth_contracts::order::{Order, Pause};
    use toolbooth_contracts::receipt::AuditPlace;

    use super::*;

    fn order(subject: OrderSubject, revision: u64) -> Order {
        let audit_seq = AuditPlace { writer: "w".into(), seq: revision };
        let (by, at) = ("operator".into(), "2026-01-01T00:00:00.000Z".into());
        Order { subject, revision, by, at, audit_seq }
    }

    fn key(name: &str, revision: u64) -> Order {
        let key = ApiKey {
            name: name.into(),
            digest: secret_digest(name),
            groups: Vec::new(),
            created_at: "2026-01-01T00:00:00.000Z".into(),
            expires_at: None,
            revoked_at: None,
        };
        order(OrderSubject::Key(key), revision)
    }

    fn pause(target: &PauseTarget, in_force: bool, revision: u64) -> Order {
        let (target, cancels_running, reason) = (target.clone(), false, None);
        let pause = Pause { target, in_force, cancels_running, reason };
        order(OrderSubject::Pause(pause), revision)
    }

    fn stored(orders: Vec<Order>, damaged: &[&str]) -> StoredOrders {
        let damaged = damaged.iter().map(|row| DamagedRow {
            table: "orders".into(),
            row: (*row).to_owned(),
            reason: "no event accounts for it".into(),
        });
        StoredOrders { orders, damaged: damaged.collect(), ..StoredOrders::default() }
    }

    #[test]
    fn orders_that_were_changed_do_not_hide_later_ones() {
        let [a, b, c] = ["a", "b", "c"].map(|tool| PauseTarget::Tool(tool.to_owned()));
        let orders = Orders::default();
        let read = |orders: &Orders, stored, second| {
            orders.take(stored, Duration::from_secs(second));
            let newest = orders.newest();
            let (in_force, _) = newest.as_ref().unwrap();
            let paused: Vec<_> = in_force.pauses.keys().cloned().collect();
            let mut keys: Vec<_> = in_force.keys.values().map(|key| key.name.clone()).collect();
            keys.sort();
            (paused, keys)
        };
        let before = vec![key("one", 2), key("two", 1), key("three", 1), pause(&a, true, 3)];
        let (paused, keys) = read(&orders, stored(before.clone(), &[]), 1);
        assert_eq!((paused, keys.len()), (vec![a.clone()], 3));
        // One key has its earlier decision again, one is missing, the pause is damaged, and two are
        // new: one of them damaged.
        let now = vec![key("one", 1), key("three", 1), pause(&b, true, 1)];
        let damaged = ["pause:tool:a", "pause:tool:c"];
        let (paused, keys) = read(&orders, stored(now, &damaged), 2);
        assert_eq!(paused, [a.clone(), b.clone(), c.clone()]);
        assert_eq!(keys, ["three"]);
        // A pause that is missing still holds, and so does one that was put back to its end.
        let now = vec![key("three", 1), pause(&a, false, 2)];
        let (paused, keys) = read(&orders, stored(now, &[]), 3);
        assert_eq!(paused, [a.clone(), b.clone()]);
        assert_eq!(keys, ["three"]);
        // Orders are believed again once they have their newest decisions.
        let mut now = before[..3].to_vec();
        now.extend([pause(&b, false, 2), pause(&a, false, 4)]);
        let (paused, keys) = read(&orders, stored(now, &[]), 4);
        assert_eq!((paused, keys.len()), (Vec::new(), 3));
    }

    struct At(Duration);

    impl Clock for At {
        fn now(&self) -> toolbooth_audit::ledger::Moment {
            unreachable!("only durations are asked for")
        }
        fn monotonic(&self) -> Duration {
            self.0
        }
    }

    #[tokio::test]
    async fn orders_are_overdue_while_readings_fail_for_too_long() {
        let orders = Orders::default();
        let began = Duration::from_secs(100);
        let is_overdue = |after: Duration| orders.are_overdue(&At(began + after));
        assert!(!is_overdue(ORDERS_AGE_MAX * 2), "they are not read at all");
        // A reading that was begun, and has not succeeded.
        *orders.failing_since() = Some(began);
        assert!(!is_overdue(ORDERS_AGE_MAX));
        assert!(is_overdue(ORDERS_AGE_MAX + Duration::from_millis(1)));
        let now = toolbooth_audit::ledger::Moment {
            text: "2026-01-01T00:00:00.000Z".to_owned(),
            epoch_ms: 0,
        };
        let ledger = toolbooth_audit::memory::MemoryLedger::new("w", &[1; 32], &now);
        orders.read(&ledger, &At(began)).await.unwrap();
        assert!(!is_overdue(ORDERS_AGE_MAX * 2));
    }
}
