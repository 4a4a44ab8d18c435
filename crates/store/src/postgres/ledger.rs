//! The ledger over PostgreSQL: hands steps to the writer task and waits until they are durable.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::sync::{Arc, Mutex, PoisonError};

use async_channel::Sender;
use async_trait::async_trait;
use toolbooth_audit::chain::Head;
use toolbooth_audit::checkpoint::{Checkpoint, Due};
use toolbooth_audit::claim::Happening;
use toolbooth_audit::digest::{Digester, KEY_BYTES};
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, Moment, Prune, PruneKind, Pruned, Refusal, Resolution,
    Settlement, Swept,
};
use toolbooth_audit::note::Signer;
use toolbooth_audit::reads::{
    EventFilter, Include, LedgerReads, LogFilter, PlacedEvent, RawEntry, ReceiptFilter,
    Unaccounted, WriterHead,
};
use toolbooth_audit::{LedgerError, steps};
use toolbooth_contracts::Effect;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::Receipt;

use super::connect::{Connection, Server};
use super::reads::PostgresReads;
use super::working::{Alone, Needs, Working};
use super::writer::{Job, QUEUE_MAX, Writer, head_of, job};
use super::{OpenError, clean, schema};
use crate::watch::Watch;

/// How a store is opened.
#[derive(Debug)]
pub struct PostgresOptions {
    /// The server and database, `postgres://USER@HOST/DATABASE`; `sslmode=require` asks for TLS.
    pub url: String,
    /// The store's digest key: the same for all replicas.
    pub digest_key: [u8; KEY_BYTES],
    /// Keys that were the store's before: what was claimed under them is found.
    pub older_digest_keys: Vec<[u8; KEY_BYTES]>,
    /// What signs this replica's checkpoints.
    pub signer: Signer,
    /// The newest checkpoint that was kept outside of the database.
    pub kept: Option<Checkpoint>,
    /// Whether a database that is older than that checkpoint is taken as it is; the log says so
    /// then.
    pub accept_restored: bool,
}

/// The ledger of one replica.
pub struct PostgresLedger {
    pub(super) writer: String,
    digester: Digester,
    signer: Signer,
    jobs: Sender<Box<dyn Job>>,
    reads: PostgresReads,
    watch: Arc<Watch>,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
    pub(super) server: Server,
    /// The connection of the queue, made when it is wanted.
    pub(super) queue: tokio::sync::Mutex<Option<Connection>>,
}

fn closed() -> LedgerError {
    LedgerError::Unavailable("the store is closed".to_owned())
}

impl PostgresLedger {
    /// Opens the store, brings its tables up to date, and begins the log of the writer `writer`
    /// (an id that was never used) at `at`.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is begun then.
    pub async fn open(
        options: PostgresOptions,
        writer: &str,
        at: &Moment,
    ) -> Result<Self, OpenError> {
        let PostgresOptions { url, digest_key, older_digest_keys, signer, kept, accept_restored } =
            options;
        let server = Server::parse(&url)?;
        let mut connection = server.connect().await?;
        let client = &mut connection.client;
        let found = schema::migrate(client).await?;
        if found > schema::VERSION {
            return Err(OpenError::Newer { found, known: schema::VERSION });
        }
        let digester = Digester::new(&digest_key).with_older(&older_digest_keys);
        check_keys(client, &digester).await?;
        let lost = match &kept {
            Some(kept) => shorter(client, kept).await?,
            None => None,
        };
        if let (Some((writer, size, found)), false) = (&lost, accept_restored) {
            let (writer, size, found) = (writer.clone(), *size, *found);
            return Err(OpenError::RolledBack { writer, size, found });
        }
        let before = client
            .query_opt(
                "SELECT writer, size, last_leaf, root, pruned, checkpoint FROM writers
                 ORDER BY ordinal DESC LIMIT 1",
                &[],
            )
            .await?;
        let before = before.map(|row| (head_of(&row), row.get(5)));
        let transaction = client.transaction().await?;
        transaction
            .execute("INSERT INTO writers (writer, started) VALUES ($1, $2)", &[&writer, &at.text])
            .await?;
        transaction.commit().await?;
        let watch = Arc::new(Watch::default());
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        let head = Head::new(writer.to_owned());
        let key_id = digester.key_id().to_owned();
        let serving = Writer::new(server.clone(), key_id, head, Arc::clone(&watch)).serve(queue);
        let started = steps::started(&signer, digester.key_id(), before, at);
        let ledger = Self {
            writer: writer.to_owned(),
            digester,
            signer,
            jobs,
            reads: PostgresReads::over(&server)?,
            watch,
            task: Mutex::new(Some(tokio::spawn(serving))),
            server,
            queue: tokio::sync::Mutex::new(None),
        };
        let needs = match accept_restored {
            true => Needs { alone: Some(Alone::AllHeads), ..Needs::default() },
            false => Needs::default(),
        };
        let at = at.clone();
        let begun = ledger.run(needs, move |records| {
            steps::note(records, &[started])?;
            if !accept_restored {
                return Ok(());
            }
            let lost = lost.as_ref().map(|(writer, size, _)| (writer.as_str(), *size));
            steps::accept_restored(records, lost, &at)
        });
        begun.await.map_err(OpenError::Ledger)?;
        Ok(ledger)
    }

    /// What checks the checkpoints of this writer.
    #[must_use]
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    pub(super) fn reads(&self) -> &PostgresReads {
        &self.reads
    }

    async fn run<T, F>(&self, needs: Needs, step: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Working<'_>) -> Result<T, LedgerError> + Send + 'static,
    {
        let (job, answer) = job(needs, step);
        self.jobs.send(job).await.map_err(|_| closed())?;
        answer.recv().await.map_err(|_| closed())?
    }

    fn of_receipt(receipt_id: &str) -> Needs {
        Needs { receipts: vec![receipt_id.to_owned()], ..Needs::default() }
    }

    fn alone(alone: Alone) -> Needs {
        Needs { alone: Some(alone), ..Needs::default() }
    }
}

/// All replicas know all keys of the store, or one would not find what another has claimed.
async fn check_keys(
    client: &mut tokio_postgres::Client,
    digester: &Digester,
) -> Result<(), OpenError> {
    let transaction = client.transaction().await?;
    // Replicas that start at once wait for each other here.
    transaction.execute("LOCK TABLE digest_keys IN EXCLUSIVE MODE", &[]).await?;
    let stored = transaction.query("SELECT key_id FROM digest_keys ORDER BY added", &[]).await?;
    for row in &stored {
        let stored: String = row.get(0);
        if !digester.all().any(|known| known.key_id() == stored) {
            return Err(OpenError::Key { given: digester.key_id().to_owned(), stored });
        }
    }
    let statement = "INSERT INTO digest_keys (key_id) VALUES ($1) ON CONFLICT DO NOTHING";
    transaction.execute(statement, &[&digester.key_id()]).await?;
    Ok(transaction.commit().await?)
}

/// The writer, size and size found of a log that is shorter than its last checkpoint says.
async fn shorter(
    client: &tokio_postgres::Client,
    kept: &Checkpoint,
) -> Result<Option<(String, u64, u64)>, OpenError> {
    let row =
        client.query_opt("SELECT size FROM writers WHERE writer = $1", &[&kept.writer]).await?;
    let found = row.map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs();
    Ok((found < kept.size).then(|| (kept.writer.clone(), kept.size, found)))
}

#[async_trait]
impl Ledger for PostgresLedger {
    fn writer(&self) -> &str {
        &self.writer
    }

    fn digester(&self) -> &Digester {
        &self.digester
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        let watch = Arc::clone(&self.watch);
        let mut needs = Needs { keys: request.keys.clone(), ..Needs::default() };
        if request.rate_per_min.is_some() {
            needs.rates.push((clean(&request.tool_id), clean(&request.caller)));
        }
        if request.concurrency_max.is_some() {
            needs.running.push(clean(&request.tool_id));
        }
        if request.approval_rule.is_some() {
            needs.approvals.push([
                clean(&request.tool_id),
                clean(&request.caller),
                request.args_digest.clone(),
                request.contract_digest.clone(),
            ]);
        }
        self.run(needs, move |records| steps::claim(records, &request, |id| watch.of(id))).await
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Receipt, LedgerError> {
        let mut needs = Self::of_receipt(settlement.claim.receipt_id());
        if settlement.effect == Effect::NotStarted && settlement.rate_per_min.is_some() {
            let log = &settlement.log;
            needs.rates.push((clean(&log.tool_name), clean(&log.caller)));
        }
        self.run(needs, move |records| steps::settle(records, &settlement)).await
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        self.run(Needs::default(), move |records| steps::refuse(records, &refusal)).await
    }

    async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.run(Needs::default(), move |records| steps::note(records, &events)).await
    }

    async fn renew(&self, _at: Moment) -> Result<(), LedgerError> {
        // By the database's clock, and on the writer's own connection: a writer that cannot write
        // must not look alive.
        self.run(Self::alone(Alone::Renew), |_| Ok(())).await
    }

    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        self.run(Self::alone(Alone::Lost), move |records| steps::sweep(records, &at)).await
    }

    async fn park(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let parked = Happening::Parked { fence };
        self.run(Self::of_receipt(&receipt_id), move |records| {
            steps::wait_for_input(records, &receipt_id, parked, &at)
        })
        .await
    }

    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let resumed = Happening::Resumed { fence };
        self.run(Self::of_receipt(&receipt_id), move |records| {
            steps::wait_for_input(records, &receipt_id, resumed, &at)
        })
        .await
    }

    async fn resolve(&self, resolution: Resolution) -> Result<Receipt, LedgerError> {
        let needs = Self::of_receipt(&resolution.receipt_id);
        self.run(needs, move |records| steps::resolve(records, &resolution)).await
    }

    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError> {
        let before = prune.before.clone();
        let needs = Self::alone(match prune.kind {
            PruneKind::Receipts => Alone::Prunable(before),
            PruneKind::Logs => Alone::Logs(before),
            PruneKind::Events => Alone::Events(before),
        });
        self.run(needs, move |records| steps::prune(records, &prune)).await
    }

    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError> {
        let signer = self.signer.clone();
        self.run(Self::alone(Alone::Heads), move |records| {
            steps::checkpoint(records, &signer, due, &at)
        })
        .await
    }

    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError> {
        let signer = self.signer.clone();
        let note = self
            .run(Self::alone(Alone::Heads), move |records| {
                let note = steps::stop(records, &signer, &at)?;
                records.stop();
                Ok(note)
            })
            .await?;
        self.jobs.close();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // The queue is closed, so the task ends after what it holds.
            let _ = task.await;
        }
        Ok(note)
    }
}

#[async_trait]
impl LedgerReads for PostgresLedger {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        self.reads.receipt(receipt_id).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        self.reads.receipts(filter).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        self.reads.agent_log(id).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        self.reads.agent_logs(filter).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        self.reads.events(filter).await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.reads.log_page(after, limit, include).await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.reads.heads().await
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        self.reads.unaccounted().await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        if self.jobs.is_closed() {
            return Err(closed());
        }
        self.watch.health()
    }
}
