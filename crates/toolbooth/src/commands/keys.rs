//! `keys`: creates, lists and revokes API keys.
//!
//! Doc: front-doors.md#api-keys

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};
use toolbooth_audit::orders::OrderChange;
use toolbooth_audit::stored_orders::StoredOrders;
use toolbooth_contracts::caller::is_key_name;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::order::{ApiKey, Order, OrderSubject};
use toolbooth_proxy::secret_digest;

use super::orders::decide;
use super::records::{nothing_yet, open, unreadable, whole};
use crate::cli::Keys;
use crate::failure::Failure;
use crate::output;
use crate::times::{now, time_after};
use crate::trust::Trusted;

/// The beginning of every API key, by which a leaked key is recognized.
const START: &str = "tbk_";
/// The random bytes of an API key.
const KEY_BYTES: usize = 32;
/// Maximum number of groups of a key.
const GROUPS_MAX: usize = 32;

pub(super) async fn keys(loaded: Trusted, command: Keys) -> Result<bool, Failure> {
    match command {
        Keys::Create { name, groups, expires, shown } => {
            for text in groups.iter().chain([&name]) {
                if !is_key_name(text) {
                    return Err(Failure::usage(format!("`{}` is no name", text.escape_debug()))
                        .hint("1 to 64 letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`"));
                }
            }
            if groups.len() > GROUPS_MAX {
                return Err(Failure::usage(format!("a key has at most {GROUPS_MAX} groups")));
            }
            let expires_at = time_after(expires.as_deref(), "--expires")?;
            let key = new_key()?;
            let digest = secret_digest(&key);
            let change = OrderChange::CreateKey { name, digest, groups, expires_at };
            let order = decide(loaded, change).await?;
            let OrderSubject::Key(created) = &order.subject else { return Ok(true) };
            if shown.format.is_json() {
                let mut out = row(created, &order);
                if let Some(out) = out.as_object_mut() {
                    out.insert("key".to_owned(), json!(key));
                }
                output::json(&out);
            } else {
                crate::notice(
                    "the key is shown this once; clients send it as `Authorization: Bearer KEY`",
                );
                output::line(&key);
            }
            Ok(true)
        }
        Keys::List { shown } => {
            let found = match open(&loaded).await? {
                Some(operations) => operations.orders().await.map_err(unreadable)?,
                None => {
                    nothing_yet(&loaded);
                    StoredOrders::default()
                }
            };
            let is_whole = whole(&found.damaged);
            let uses = &found.key_uses;
            let found: Vec<(&Order, &ApiKey)> = found
                .orders
                .iter()
                .filter_map(|order| match &order.subject {
                    OrderSubject::Key(key) => Some((order, key)),
                    OrderSubject::Pause(_) => None,
                })
                .collect();
            if shown.format.is_json() {
                let rows: Vec<Value> = found
                    .iter()
                    .map(|(order, key)| {
                        let mut row = row(key, order);
                        if let (Some(used), Some(row)) = (used(key, uses), row.as_object_mut()) {
                            row.insert("lastUsedAt".to_owned(), json!(used));
                        }
                        row
                    })
                    .collect();
                output::json(&json!({ "keys": rows }));
                return Ok(is_whole);
            }
            let now = now();
            let rows: Vec<Vec<String>> = found
                .iter()
                .map(|(_, key)| {
                    vec![
                        key.name.clone(),
                        key.state(&now).as_str().to_owned(),
                        key.groups.join(","),
                        key.created_at.clone(),
                        key.expires_at.clone().unwrap_or_else(|| "never".to_owned()),
                        used(key, uses).unwrap_or("never").to_owned(),
                    ]
                })
                .collect();
            output::table(&["NAME", "STATE", "GROUPS", "CREATED", "EXPIRES", "LAST USED"], &rows);
            Ok(is_whole)
        }
        Keys::Revoke { name, shown } => {
            let order = decide(loaded, OrderChange::RevokeKey { name }).await?;
            let OrderSubject::Key(key) = &order.subject else { return Ok(true) };
            if shown.format.is_json() {
                output::json(&row(key, &order));
            } else {
                output::line(&format!(
                    "the key {} is revoked; running gateways refuse it within a second",
                    key.name
                ));
            }
            Ok(true)
        }
    }
}

/// Returns when a key was last used. An earlier key of the same name does not count.
fn used<'u>(key: &ApiKey, uses: &'u BTreeMap<String, String>) -> Option<&'u str> {
    uses.get(&key.name).map(String::as_str).filter(|used| *used >= key.created_at.as_str())
}

fn row(key: &ApiKey, order: &Order) -> Value {
    let mut row = json!({
        "name": key.name,
        "caller": format!("key:{}", key.name),
        "state": key.state(&now()).as_str(),
        "groups": key.groups,
        "createdAt": key.created_at,
        "by": order.by,
    });
    let times = [("expiresAt", &key.expires_at), ("revokedAt", &key.revoked_at)];
    for (name, time) in times {
        if let (Some(time), Some(row)) = (time, row.as_object_mut()) {
            row.insert(name.to_owned(), json!(time));
        }
    }
    row
}

fn new_key() -> Result<String, Failure> {
    let mut random = [0u8; KEY_BYTES];
    getrandom::fill(&mut random).map_err(|error| Failure::store(with_causes(&error)))?;
    Ok(format!("{START}{}", BASE64URL_NOPAD.encode(&random)))
}
