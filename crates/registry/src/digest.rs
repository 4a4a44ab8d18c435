//! SHA-256 over canonical JSON: the digests of contracts and of what a source says.
//!
//! Doc: registry.md#digests

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::json::canonical;

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// SHA-256 of the canonical form of `value`, in hex.
#[must_use]
pub fn of(value: &Value) -> String {
    sha256_hex(canonical(value).as_bytes())
}

/// The digest of a contract: in receipts.
#[must_use]
pub fn of_contract(contract: &ToolContract) -> String {
    // A contract came from JSON, so it goes back to it.
    of(&serde_json::to_value(contract).unwrap_or_default())
}
