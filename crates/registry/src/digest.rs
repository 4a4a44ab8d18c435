//! SHA-256 over canonical JSON, for the digests of contracts and of source claims.
//!
//! Doc: registry.md#digests

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::json::canonical;

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// SHA-256 of the canonical form of `value`, in hex.
#[must_use]
pub fn of(value: &Value) -> String {
    sha256_hex(canonical(value).as_bytes())
}

/// The *contract digest*: SHA-256 of the canonical contract, in hex. Receipts name it.
#[must_use]
pub fn of_contract(contract: &ToolContract) -> String {
    // A contract is read from JSON, so its serialisation does not fail.
    of(&serde_json::to_value(contract).unwrap_or_default())
}
