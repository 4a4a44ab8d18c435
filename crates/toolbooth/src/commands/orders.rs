//! Records a decision of the operator, for `keys`, `pause` and `resume`.
//!
//! Doc: records.md#orders

use toolbooth_audit::orders::{ORDERS_MAX, OrderChange, Ordered};
use toolbooth_contracts::order::{Order, OrderName};

use super::records::unreadable;
use crate::compose::Runtime;
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::records;
use crate::trust::Trusted;

fn subject(name: &OrderName) -> String {
    format!("{} `{}`", name.kind, name.name)
}

/// Records a decision of the operator.
pub(super) async fn decide(loaded: Trusted, change: OrderChange) -> Result<Order, Failure> {
    records::need_shared(&loaded)?;
    let name = change.name();
    let runtime = Runtime::build(OfflineGateway::build(loaded).await?).await?;
    let operator = records::operator()?;
    let ordered = runtime.proxy.order(&operator, change).await;
    runtime.shut_down().await?;
    match ordered.map_err(unreadable)? {
        Ordered::Done(order) => Ok(order),
        Ordered::Already(order) => {
            crate::notice(&format!(
                "nothing changes: {} has this state since {}",
                subject(&name),
                order.at
            ));
            Ok(order)
        }
        Ordered::Taken(_) => Err(Failure::new(
            FAILED,
            "key-exists",
            format!("there is an active key `{}`", name.name),
        )
        .hint(format!("`toolbooth keys revoke {}` ends it", name.name))),
        Ordered::Missing => {
            Err(Failure::new(FAILED, "not-found", format!("there is no {}", subject(&name))).hint(
                match name.kind.as_str() {
                    "key" => "`toolbooth keys list` shows the keys",
                    _ => "`toolbooth pause --list` shows the pauses",
                },
            ))
        }
        Ordered::Full => Err(Failure::new(
            FAILED,
            "too-many-orders",
            format!("the store has {ORDERS_MAX} of them, ended ones included, which is the most"),
        )
        .hint("give a new key the name of one that has ended: `toolbooth keys list` shows them")),
    }
}
