//! The orders of operators that are in force: a copy of the stored ones, read again every
//! [`ORDERS_EVERY`].
//!
//! Path: 1, 3. Doc: records.md#orders

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::reads::DamagedRow;
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
/// The age of the last reading from which on no key is accepted: a revoked key could be among them.
pub const ORDERS_AGE_MAX: Duration = Duration::from_secs(5);

/// The orders as they were read.
#[derive(Debug, Default)]
struct InForce {
    /// Keys by their digests, also expired and revoked ones.
    keys: HashMap<String, ApiKey>,
    /// The revisions of all orders.
    revisions: HashMap<OrderName, u64>,
    /// The pauses in force.
    pauses: BTreeMap<PauseTarget, PauseInForce>,
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
            tracing::error!(%row, "an order was changed");
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

    /// Returns an order that is older than in an earlier reading, or is missing. Such a reading is not
    /// believed: a revoked key could be valid again in it.
    fn put_back_from(&self, before: &Self) -> Option<OrderName> {
        let is_older = |(name, revision): &(&OrderName, &u64)| {
            self.revisions.get(*name).is_none_or(|now| now < *revision)
        };
        before.revisions.iter().find(is_older).map(|(name, _)| name.clone())
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
        let pauses = (!are_same).then(|| self.pauses.keys().cloned().collect());
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
        let in_force = InForce::of(StoredOrders::read(reads).await?);
        let mut newest = self.newest();
        if newest.as_ref().is_some_and(|(_, before)| *before > began) {
            return Ok(Changed { pauses: None, stops: Vec::new() });
        }
        if let Some((before, _)) = &*newest
            && let Some(name) = in_force.put_back_from(before)
        {
            return Err(LedgerError::Damaged(DamagedRow {
                table: "orders".to_owned(),
                row: name.to_string(),
                reason: "it was put back to an earlier decision".to_owned(),
            }));
        }
        let changed = in_force.since(newest.as_ref().map(|(before, _)| &**before));
        *newest = Some((Arc::new(in_force), began));
        Ok(changed)
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

/// Returns the digest by which a key is stored: SHA-256 in hex. A key has 256 random bits, so that
/// no slow hash is needed.
#[must_use]
pub fn secret_digest(key: &str) -> String {
    sha256_hex(key.as_bytes())
}
