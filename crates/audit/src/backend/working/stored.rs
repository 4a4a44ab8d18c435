//! A receipt as a batch works on it.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::sync::Arc;

use toolbooth_contracts::receipt::{ClaimState, Receipt};

/// A receipt with its store-only fields.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// The fence of the claim.
    pub fence: u64,
    /// Whether the owning writer is lost.
    pub owner_lost: bool,
}

impl Stored {
    pub(super) fn runs(&self) -> bool {
        self.receipt.state == ClaimState::InFlight
    }
}
