//! Makes the calls whose API differs between the compared releases, in this release.

use std::path::Path;
use std::sync::Arc;

use toolbooth_audit::LedgerReads;
use toolbooth_audit::claim::KeyRules;
use toolbooth_audit::ledger::{ClaimRequest, Ledger, Moment};
use toolbooth_audit::note::Signer;
pub(crate) use toolbooth_audit::verify::TrustAnchors;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::EventBody;
use toolbooth_proxy::{Clock, SystemClock};
use toolbooth_store::postgres::{self, PostgresOptions};
use toolbooth_store::sqlite::{self, Durability, SqliteOptions};

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub(crate) fn claim(at: Moment, dispatched: EventBody, sync: bool) -> ClaimRequest {
    super::claim_request!(
        at,
        dispatched,
        sync,
        relaxed: false,
        approval: None,
        counted: Vec::new(),
        history: None
    )
}

pub(crate) fn log(log: AgentLog) -> Arc<AgentLog> {
    Arc::new(log)
}

fn options(full: bool) -> SqliteOptions {
    let durability = if full { Durability::Full } else { Durability::Process };
    SqliteOptions { durability, ..SqliteOptions::default() }
}

pub(crate) fn sqlite(folder: &Path, full: bool) -> Arc<dyn Ledger> {
    let now = SystemClock::default().now();
    Arc::new(sqlite::open(folder, "bench", options(full), &now).expect("opens"))
}

pub(crate) fn sqlite_reads(folder: &Path) -> (Arc<dyn Ledger>, Arc<dyn LedgerReads>) {
    let now = SystemClock::default().now();
    let ledger = sqlite::open(folder, "bench", options(false), &now).expect("opens");
    let ledger = Arc::new(ledger);
    (Arc::clone(&ledger) as Arc<dyn Ledger>, ledger)
}

pub(crate) async fn postgres(url: String) -> Arc<dyn Ledger> {
    let options = PostgresOptions {
        url,
        digest_key: [7; 32],
        older_digest_keys: Vec::new(),
        signer: Signer::new(&[7; 32]),
        kept: Vec::new(),
        accept_restored: false,
    };
    let now = SystemClock::default().now();
    Arc::new(postgres::open(options, "bench", &now).await.expect("opens"))
}
