//! Fuzzes the guard with any bytes as an entry of the registry.
//!
//! The guard must not panic, and must return the same verdict twice. `validate_entry` must return the first
//! error of `check_entry`. A contract must stay the same when it is written and read again.

use std::sync::LazyLock;

use toolbooth_contracts::secret::SecretShapes;
use toolbooth_contracts::{ContractError, Guard, Severity, json};

static GUARD: LazyLock<Guard> =
    LazyLock::new(|| Guard::new(SecretShapes::with([toolbooth_adapters::secret_rules::shapes()])));

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    let Ok(entry) = json::parse(bytes) else { return };
    let all = GUARD.check_entry(&entry);
    assert_eq!(all, GUARD.check_entry(&entry));
    let first = all.into_iter().find(|finding| finding.severity == Severity::Error);
    match (first, GUARD.validate_entry(&entry)) {
        (Some(first), Err(error)) => assert_eq!(ContractError::from(first), error),
        (None, Ok(contract)) => {
            let written = serde_json::to_value(&contract).unwrap();
            assert_eq!(GUARD.validate_entry(&written).unwrap(), contract);
        }
        (first, second) => panic!("{first:?} {second:?}"),
    }
}
