//! Orders of operators: the requests to the ledger, and orders as stored.
//!
//! Doc: records.md#orders

use serde::Deserialize;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::order::{
    ApiKey, KeyState, Order, OrderName, OrderSubject, Pause, PauseTarget,
};

use crate::digest::of_record;
use crate::moment::Moment;

/// Maximum number of stored API keys, ended ones included.
pub const ORDERS_MAX: usize = 10_000;
/// Maximum number of stored pauses, ended ones included.
pub const PAUSES_MAX: usize = 10_000;
/// The fact of an event that names an order.
pub(crate) const ORDER: &str = "order";
/// The fact of an event that names the digest of an order.
pub(crate) const ORDER_DIGEST: &str = "orderDigest";
/// The fact of an event that states the revision of an order.
pub(crate) const REVISION: &str = "revision";

/// A decision of an operator.
#[derive(Debug, Clone)]
pub struct OrderRequest {
    /// The decision.
    pub change: OrderChange,
    /// The operator.
    pub by: String,
    /// The current time.
    pub at: Moment,
}

/// What an operator decides.
#[derive(Debug, Clone)]
pub enum OrderChange {
    /// Creates an API key. A key of this name that has expired or was revoked is replaced.
    CreateKey {
        /// The name.
        name: String,
        /// SHA-256 of the key, in hex.
        digest: String,
        /// Groups of the holder.
        groups: Vec<String>,
        /// The time from which it is no longer valid.
        expires_at: Option<String>,
    },
    /// Revokes an API key.
    RevokeKey {
        /// The name.
        name: String,
    },
    /// Pauses calls.
    Pause {
        /// The calls.
        target: PauseTarget,
        /// Whether the running calls are cancelled too.
        cancel_running: bool,
        /// The reason.
        reason: Option<String>,
    },
    /// Resumes calls.
    Resume {
        /// The calls.
        target: PauseTarget,
    },
}

/// The result of an [`OrderRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// The decision is recorded.
    Done(Order),
    /// The subject already has this state: nothing changed.
    Already(Order),
    /// An active key has this name.
    Taken(Order),
    /// There is no such subject.
    Missing,
    /// The store has [`ORDERS_MAX`] keys or [`PAUSES_MAX`] pauses.
    Full,
}

impl OrderChange {
    /// Returns the name of the order.
    #[must_use]
    pub fn name(&self) -> OrderName {
        match self {
            Self::CreateKey { name, .. } | Self::RevokeKey { name } => OrderName::key(name),
            Self::Pause { target, .. } | Self::Resume { target } => OrderName::pause(target),
        }
    }

    /// Returns the event that accounts for the decision.
    #[must_use]
    pub(crate) fn event(&self) -> AuditEventKind {
        match self {
            Self::CreateKey { .. } => AuditEventKind::KeyCreated,
            Self::RevokeKey { .. } => AuditEventKind::KeyRevoked,
            Self::Pause { .. } => AuditEventKind::Paused,
            Self::Resume { .. } => AuditEventKind::Resumed,
        }
    }

    /// Returns the subject after the decision, or the result if nothing changes. `before` is the
    /// current order. The only rule of orders; every ledger calls it.
    pub(crate) fn decide(
        &self,
        before: Option<&Order>,
        at: &Moment,
    ) -> Result<OrderSubject, Box<Ordered>> {
        match (self, before) {
            (Self::CreateKey { .. }, Some(order)) if is_active_key(order, &at.text) => {
                Err(Box::new(Ordered::Taken(order.clone())))
            }
            (Self::CreateKey { name, digest, groups, expires_at }, _) => {
                Ok(OrderSubject::Key(ApiKey {
                    name: name.clone(),
                    digest: digest.clone(),
                    groups: groups.clone(),
                    created_at: at.text.clone(),
                    expires_at: expires_at.clone(),
                    revoked_at: None,
                }))
            }
            (Self::RevokeKey { .. } | Self::Resume { .. }, None) => Err(Box::new(Ordered::Missing)),
            (Self::RevokeKey { .. }, Some(order)) => match &order.subject {
                OrderSubject::Key(key) if key.revoked_at.is_none() => {
                    let revoked_at = Some(at.text.clone());
                    Ok(OrderSubject::Key(ApiKey { revoked_at, ..key.clone() }))
                }
                _ => Err(Box::new(Ordered::Already(order.clone()))),
            },
            (Self::Pause { cancel_running: false, .. }, Some(order))
                if is_pause_in_force(order) =>
            {
                Err(Box::new(Ordered::Already(order.clone())))
            }
            (Self::Pause { target, cancel_running, reason }, _) => Ok(OrderSubject::Pause(Pause {
                target: target.clone(),
                in_force: true,
                cancels_running: *cancel_running,
                reason: reason.clone(),
            })),
            (Self::Resume { target }, Some(order)) => match is_pause_in_force(order) {
                true => {
                    let target = target.clone();
                    let pause =
                        Pause { target, in_force: false, cancels_running: false, reason: None };
                    Ok(OrderSubject::Pause(pause))
                }
                false => Err(Box::new(Ordered::Already(order.clone()))),
            },
        }
    }
}

/// Whether the order is an active key.
fn is_active_key(order: &Order, now: &str) -> bool {
    matches!(&order.subject, OrderSubject::Key(key) if key.state(now) == KeyState::Active)
}

fn is_pause_in_force(order: &Order) -> bool {
    matches!(&order.subject, OrderSubject::Pause(pause) if pause.in_force)
}

/// The kinds of events that account for orders.
pub(crate) fn is_order_event(event: AuditEventKind) -> bool {
    use AuditEventKind::{KeyCreated, KeyRevoked, Paused, Resumed};
    matches!(event, KeyCreated | KeyRevoked | Paused | Resumed)
}

/// An order as stored, and the event that it names as its accounting event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawOrder {
    /// The kind in its row.
    pub kind: String,
    /// The name in its row.
    pub name: String,
    /// Its JSON.
    pub bytes: String,
    /// The event.
    pub event: Option<String>,
    /// The time when a key was last used, in the form of records. A hint, which no event accounts for.
    pub used: Option<String>,
}

impl RawOrder {
    /// Returns the name in its row.
    #[must_use]
    pub fn order_name(&self) -> OrderName {
        OrderName { kind: self.kind.clone(), name: self.name.clone() }
    }

    /// Returns the order if its event accounts for it as it is. A decision is trusted because of
    /// its event, not because of its row.
    #[must_use]
    pub fn accounted(&self) -> Option<Order> {
        #[derive(Deserialize)]
        struct Event {
            event: AuditEventKind,
            facts: serde_json::Map<String, serde_json::Value>,
        }
        let order: Order = serde_json::from_str(&self.bytes).ok()?;
        let event: Event = serde_json::from_str(self.event.as_ref()?).ok()?;
        let name = order.name();
        let fact = |fact: &str| event.facts.get(fact);
        let accounted = is_order_event(event.event)
            && name == self.order_name()
            && fact(ORDER).and_then(|of| of.as_str()) == Some(name.to_string().as_str())
            && fact(ORDER_DIGEST).and_then(|of| of.as_str()) == Some(of_record(&order).as_str())
            && fact(REVISION).and_then(serde_json::Value::as_u64) == Some(order.revision);
        accounted.then_some(order)
    }
}
