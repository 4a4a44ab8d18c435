//! Tests that the ledger in memory passes the suite.

use toolbooth_audit::conformance::{moment, suite};
use toolbooth_audit::memory::MemoryLedger;

#[tokio::test]
async fn memory_ledger_conforms() {
    suite(async || MemoryLedger::new("writer", &[1; 32], &moment(0))).await;
}
