//! Reads the stored orders of operators.
//!
//! Doc: records.md#orders

use std::collections::BTreeMap;

use toolbooth_contracts::order::{Order, OrderName};

use crate::error::{DamagedRow, LedgerError};
use crate::orders::RawOrder;
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
        let (mut stored, mut after) = (Self::default(), None::<OrderName>);
        loop {
            let page = reads.order_page(after.clone(), PAGE).await?;
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
            match page.last().map(RawOrder::order_name) {
                // A name that is no text is shown in another form, and could come again.
                Some(last) if page.len() == PAGE && Some(&last) > after.as_ref() => {
                    after = Some(last);
                }
                _ => return Ok(stored),
            }
        }
    }
}
