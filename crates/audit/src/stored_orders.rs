//! Reads the stored orders of operators.
//!
//! Doc: records.md#orders

use std::collections::BTreeMap;

use toolbooth_contracts::order::Order;

use crate::error::{DamagedRow, LedgerError};
use crate::reads::LedgerReads;

/// Orders of one page.
const PAGE: usize = 1_000;

/// The stored orders.
#[derive(Debug, Default)]
pub struct StoredOrders {
    /// Orders, each with an event that accounts for it.
    pub orders: Vec<Order>,
    /// Names of API keys, and when they were used last.
    pub key_uses: BTreeMap<String, String>,
    /// Rows that no event accounts for; they are not believed.
    pub damaged: Vec<DamagedRow>,
}

impl StoredOrders {
    /// Reads all orders.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn read(reads: &dyn LedgerReads) -> Result<Self, LedgerError> {
        let (mut stored, mut after) = (Self::default(), None);
        loop {
            let page = reads.order_page(after, PAGE).await?;
            for raw in &page {
                match raw.accounted() {
                    Some(order) => {
                        let used = raw.used.clone().map(|used| (raw.name.clone(), used));
                        stored.key_uses.extend(used);
                        stored.orders.push(order);
                    }
                    None => stored.damaged.push(DamagedRow {
                        table: "orders".to_owned(),
                        row: raw.order_name().to_string(),
                        reason: "no event accounts for it".to_owned(),
                    }),
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.order_name()),
                _ => return Ok(stored),
            }
        }
    }
}
