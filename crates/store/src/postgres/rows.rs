//! Loads the rows that a batch needs into its working set, and writes the rows that it changed.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::pruning::Progress;
use toolbooth_audit::backend::steps;
use toolbooth_audit::backend::working::{
    Batch, CallName, Earlier, Needs, OtherHead, ReceiptChange, ReceiptWrite, StoreQuery, Stored,
    WorkingSet,
};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::checkpoint;
use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::queue::{QueueState, QueuedCall, RawCall};
use toolbooth_audit::reads::{MILESTONES, WriterHead, WriterRow};
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::backend::{Parameters, Session, failed};
use super::statements::CALL;
use super::{clean, prune, schema};
use crate::result_reference::{self, Part};
use crate::{Unreadable, body, shorten, unwritable};

fn unreadable(error: LedgerError) -> Failure {
    Failure::Refused(error)
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Boxes the parameters of a statement.
macro_rules! given {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as Box<dyn ToSql + Sync + Send + '_>),*] as Parameters<'_>
    };
}

pub(super) fn head(row: &Row) -> WriterHead {
    WriterHead {
        writer: row.get(0),
        size: row.get::<_, i64>(1).unsigned_abs(),
        last_leaf: row.get(2),
        root: row.get(3),
        row: Some(WriterRow {
            started: row.get(4),
            stopped: row.get(5),
            named: row.get(6),
            checkpoint: row.get(7),
        }),
        pruned: None,
    }
}

pub(super) fn call(row: &Row) -> QueuedCall {
    let state: String = row.get(3);
    let progress: Option<String> = row.get(9);
    QueuedCall {
        call_id: row.get(0),
        caller: row.get(1),
        request: row.get(2),
        // An unknown state counts as done, so that the call is not run.
        state: QueueState::parse(&state).unwrap_or(QueueState::Done),
        enqueued_at: row.get(4),
        finished_at: row.get(5),
        worker: row.get(6),
        deliveries: row.get::<_, i32>(7).unsigned_abs(),
        cancel: row.get(8),
        // What is no JSON is no progress that was told either: its MAC does not fit.
        progress: progress.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        result: row.get(10),
        queued_by: place_of(row.get(11)),
        finished_by: place_of(row.get(12)),
        mac: row.get(13),
    }
}

/// An unreadable place becomes one that no log has.
fn place_of(text: Option<String>) -> Option<AuditPlace> {
    let nowhere = || AuditPlace { writer: String::new(), seq: u64::MAX };
    text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| nowhere()))
}

fn text_of(place: Option<&AuditPlace>) -> Option<String> {
    place.and_then(|place| serde_json::to_string(place).ok())
}

fn stored(row: &Row, lost: bool) -> Result<Stored, Failure> {
    let receipt: Receipt = body::read(row.get(1), row.get(2))
        .map_err(|damage| unreadable(damage.at("receipts", row.get::<_, String>(3))))?;
    let runs = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput);
    let fence = row.get::<_, i64>(0).unsigned_abs();
    Ok(Stored { fence, owner_lost: runs && lost, receipt: receipt.into() })
}

/// A receipt among many: one that is damaged does not stop the others, and is logged; `audit verify`
/// reports it too.
fn readable(stored: Result<Stored, Failure>) -> Result<Option<Stored>, Failure> {
    match stored {
        Err(Failure::Refused(error @ LedgerError::Damaged(_))) => {
            tracing::error!(%error, "a receipt is left as it is");
            Ok(None)
        }
        stored => stored.map(Some),
    }
}

/// The text of an event whose columns begin at column `at`; `None` if there is no event.
fn event_text(row: &Row, at: usize) -> Result<Option<String>, Failure> {
    let text: Option<String> = row.get(at);
    let text = text.map(|text| body::unpack(text, row.get(at + 1))).transpose();
    text.map_err(|damage| unreadable(damage.at("events", "that a record names")))
}

fn approval(row: &Row) -> Result<Approval, Failure> {
    let text: String = row.get(0);
    serde_json::from_str(&text)
        .map_err(|error| unreadable(Unreadable::of(error).at("approvals", "that a call needs")))
}

/// The number of an advisory lock. Names whose numbers collide only wait for each other.
fn lock(parts: &[&str]) -> i64 {
    let digest = sha256_hex(parts.join("\u{1f}").as_bytes());
    let head = digest.get(..16).unwrap_or_default();
    u64::from_str_radix(head, 16).unwrap_or_default().cast_signed()
}

/// The advisory locks to take before anything is read, in the same order on all replicas. They also
/// cover rows that do not exist yet.
fn locks(needs: &Needs) -> Vec<i64> {
    let keys = needs.keys.iter().map(|key| lock(&["key", key]));
    let rates = needs.rates.iter().map(|(tool, caller)| lock(&["rate", tool, caller]));
    let running = needs.running.iter().map(|tool| lock(&["running", tool]));
    let approvals = needs
        .approvals
        .iter()
        .map(|name| lock(&["approval", &name.tool, &name.caller, &name.args_digest]));
    let calls = needs.calls.iter().map(|(caller, id)| lock(&["call", caller, id]));
    let all: BTreeSet<i64> =
        keys.chain(rates).chain(running).chain(approvals).chain(calls).collect();
    all.into_iter().collect()
}

/// Statements that are sent together.
struct StatementBatch<'s>(Vec<(&'s Statement, Parameters<'s>)>);

impl<'s> StatementBatch<'s> {
    /// Adds a statement if it is `wanted`, and returns its index.
    fn add(
        &mut self,
        wanted: bool,
        statement: &'s Statement,
        given: impl FnOnce() -> Parameters<'s>,
    ) -> Option<usize> {
        wanted.then(|| {
            self.0.push((statement, given()));
            self.0.len() - 1
        })
    }
}

fn cleaned<'n>(names: impl Iterator<Item = &'n String>) -> Vec<Cow<'n, str>> {
    names.map(|name| clean(name)).collect()
}

/// A pair of names as rows store them, without NUL.
fn kept((one, other): &(String, String)) -> (String, String) {
    (clean(one).into_owned(), clean(other).into_owned())
}

impl Session {
    /// Begins the transaction, takes the locks and reads the rows that a batch needs. The
    /// statements are sent together and executed in order.
    pub(super) async fn load(
        &self,
        mut needs: Needs,
        writer: &str,
        progress: &HashMap<String, Progress>,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let s = &self.statements;
        let survey = needs.survey.take();
        let mut asked = StatementBatch(vec![(&s.begin, Parameters::new())]);
        let locks = locks(&needs);
        asked.add(!locks.is_empty(), &s.locks, || given![locks]);
        let keys: Vec<&str> = needs.keys.iter().map(String::as_str).collect();
        let receipts: Vec<&str> = needs.receipts.iter().map(String::as_str).collect();
        let by_key = asked.add(!keys.is_empty(), &s.keys, || given![keys.clone()]);
        let by_id = asked.add(!(keys.is_empty() && receipts.is_empty()), &s.receipts, || {
            given![keys.clone(), receipts.clone()]
        });
        let rates = asked.add(!needs.rates.is_empty(), &s.rates, || {
            let tools = cleaned(needs.rates.iter().map(|(tool, _)| tool));
            given![tools, cleaned(needs.rates.iter().map(|(_, caller)| caller))]
        });
        let clock = asked.add(!needs.rates.is_empty(), &s.clock, || given![]);
        let running = asked
            .add(!needs.running.is_empty(), &s.running, || given![cleaned(needs.running.iter())]);
        let approvals = asked.add(!needs.approvals.is_empty(), &s.approvals, || {
            let names = &needs.approvals;
            given![
                cleaned(names.iter().map(|name| &name.tool)),
                cleaned(names.iter().map(|name| &name.caller)),
                cleaned(names.iter().map(|name| &name.args_digest)),
            ]
        });
        let calls = asked.add(!needs.calls.is_empty(), &s.calls, || {
            let callers = cleaned(needs.calls.iter().map(|(caller, _)| caller));
            given![callers, cleaned(needs.calls.iter().map(|(_, id)| id))]
        });
        let waiting = asked.add(needs.waiting, &s.waiting, || given![]);
        let answers = self.ask_all(&asked.0, &AtomicBool::new(true)).await?;
        drop(asked);
        let rows = |place: Option<usize>| -> &[Row] {
            place.and_then(|place| answers.get(place)).map_or(&[], Vec::as_slice)
        };
        let mut spent = Vec::new();
        let mut found = HashMap::new();
        for row in rows(by_id) {
            let mut stored = stored(row, row.get(4))?;
            stored.owner_lost &= stored.receipt.writer != writer;
            spent.extend(stored.receipt.approval_id.clone());
            found.insert(stored.receipt.receipt_id.clone(), stored);
        }
        let mut holders: HashMap<String, String> =
            rows(by_key).iter().map(|row| (row.get(0), row.get(1))).collect();
        for key in needs.keys {
            let holder = holders.remove(&key);
            if let Some(id) = &holder {
                set.load_receipt(id.clone(), found.get(id).cloned());
            }
            set.load_key(key, holder);
        }
        for id in needs.receipts {
            let stored = found.remove(&id);
            set.load_receipt(id, stored);
        }
        let times: HashMap<(String, String), i64> =
            rows(rates).iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        for name in needs.rates {
            let tat_ms = times.get(&kept(&name)).copied();
            set.load_rate(name, tat_ms);
        }
        set.clock_ms = rows(clock).first().map(|row| row.get(0));
        let counts: HashMap<String, i64> =
            rows(running).iter().map(|row| (row.get(0), row.get(1))).collect();
        for tool in needs.running {
            let running = counts.get(&*clean(&tool)).copied().unwrap_or_default();
            set.load_running(tool, running.unsigned_abs());
        }
        for row in rows(approvals) {
            set.load_approval(approval(row)?, event_text(row, 1)?.as_deref());
        }
        needs.approvals.into_iter().for_each(|name| set.load_asked(name));
        let known: HashMap<CallName, QueuedCall> = rows(calls)
            .iter()
            .map(call)
            .map(|call| ((call.caller.clone(), call.call_id.clone()), call))
            .collect();
        for name in needs.calls {
            let call = known.get(&kept(&name));
            let own = |call: &QueuedCall| QueuedCall {
                caller: name.0.clone(),
                call_id: name.1.clone(),
                ..call.clone()
            };
            let call = call.map(own);
            set.load_call(name, call);
        }
        if let Some(row) = rows(waiting).first() {
            set.load_waiting(row.get::<_, i64>(0).unsigned_abs());
        }
        if !spent.is_empty() {
            let found = self.ask(&s.approvals_by_id, &given![spent]).await.map_err(failed)?;
            for row in &found {
                set.load_approval(approval(row)?, event_text(row, 1)?.as_deref());
            }
        }
        match survey {
            Some(survey) => self.survey(survey, writer, progress, set).await,
            None => Ok(()),
        }
    }

    async fn survey(
        &self,
        survey: StoreQuery,
        writer: &str,
        progress: &HashMap<String, Progress>,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let s = &self.statements;
        let own = writer.to_owned();
        match survey {
            StoreQuery::Lost => {
                for row in self.ask(&s.lost_claims, &given![own]).await.map_err(failed)? {
                    if let Some(stored) = readable(stored(&row, true))? {
                        set.load_lost(stored);
                    }
                }
            }
            StoreQuery::Beginning { heads } => {
                if heads {
                    let rows = self.ask(&s.heads, &given![own]).await.map_err(failed)?;
                    set.surveyed.heads = rows.iter().map(other).collect();
                }
                set.surveyed.earlier = self.earlier(writer).await?;
            }
            StoreQuery::UnnamedHeads => {
                let parameters = given![own, limited(checkpoint::HEADS_MAX)];
                let rows = self.ask(&s.unnamed, &parameters).await.map_err(failed)?;
                set.surveyed.heads = rows.iter().map(other).collect();
            }
            StoreQuery::PrunableReceipts(before, limit) => {
                let parameters = given![before, limited(limit)];
                for row in self.ask(&s.prunable, &parameters).await.map_err(failed)? {
                    if let Some(stored) = readable(stored(&row, false))? {
                        set.load_prunable(stored, row.get(5));
                    }
                }
            }
            StoreQuery::PrunableLogs(before, limit) => {
                let given = given![before, limited(limit)];
                for row in self.ask(&s.prunable_logs, &given).await.map_err(failed)? {
                    let (writer, seq): (String, i64) = (row.get(0), row.get(1));
                    let logs = &mut set.surveyed.removal.logs;
                    logs.entry(writer).or_default().push(seq.unsigned_abs());
                }
            }
            // The disk of a database server is bounded at the server.
            StoreQuery::DroppableLogs(_) => (),
            StoreQuery::PrunableEvents(before) => {
                self.prunable_events(&before, progress, set).await?;
            }
            StoreQuery::PrunableCalls(before, limit) => {
                let given = given![before, limited(limit)];
                let rows = self.ask(&s.prunable_calls, &given).await.map_err(failed)?;
                let name = |row: &Row| (row.get(0), row.get(1));
                set.surveyed.removal.calls = rows.iter().map(name).collect();
            }
            StoreQuery::NextCall(running) => {
                let running: Vec<String> = running
                    .iter()
                    .map(|(caller, id)| format!("{}\u{1f}{}", clean(caller), clean(id)))
                    .collect();
                let rows = self.ask(&s.next_call, &given![own, running]).await.map_err(failed)?;
                if let Some(call) = rows.first().map(call) {
                    let queued = match &call.queued_by {
                        Some(at) => {
                            let given = given![at.writer.clone(), number(at.seq)];
                            let found = self.ask(&s.event, &given).await.map_err(failed)?;
                            match found.first() {
                                Some(row) => event_text(row, 0)?,
                                None => None,
                            }
                        }
                        None => None,
                    };
                    set.surveyed.call = Some(RawCall {
                        state: call.state.as_str().to_owned(),
                        call,
                        queued,
                        finished: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// What an earlier version has left to be taken over. `None` once that is done, and in a store
    /// that is new.
    async fn earlier(&self, writer: &str) -> Result<Option<Earlier>, Failure> {
        let client = self.client();
        // One replica after the other takes over what is left.
        let sql = "SELECT version FROM toolbooth_version FOR UPDATE";
        let version: i32 = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
        let sql = "SELECT EXISTS (SELECT 1 FROM writers WHERE writer <> $1)";
        let used: bool = client.query_one(sql, &[&writer]).await.map_err(failed)?.get(0);
        if !used || version >= schema::VERSION {
            return Ok(None);
        }
        let sql = "SELECT body, zbody FROM events WHERE seq = 0";
        let first = client.query(sql, &[]).await.map_err(failed)?;
        let first = first.iter().filter_map(|row| body::unpack(row.get(0), row.get(1)).ok());
        let first: Vec<String> = first.collect();
        let version = u32::try_from(version).unwrap_or_default();
        steps::check_version(version, first.iter().map(String::as_str))
            .map_err(Failure::Refused)?;
        let sql = format!("SELECT {CALL} FROM queue WHERE mac IS NULL ORDER BY place FOR UPDATE");
        let calls = client.query(&sql, &[]).await.map_err(failed)?.iter().map(call).collect();
        let sql = "SELECT writer, pruned FROM writers WHERE pruned IS NOT NULL ORDER BY writer";
        let logs = client.query(sql, &[]).await.map_err(failed)?;
        // Version 3 wrote how far it had pruned, which does not parse as a log.
        let log = |row: &Row| Some((row.get(0), serde_json::from_str(row.get(1)).ok()?));
        Ok(Some(Earlier { calls, logs: logs.iter().filter_map(log).collect() }))
    }

    /// Writes the changes of a batch and commits. The statements are sent together and executed in
    /// order.
    pub(super) async fn write(
        &self,
        batch: &Batch,
        begun: bool,
        from: &Head,
        to: &Head,
    ) -> Result<(), Failure> {
        let s = &self.statements;
        let begun = self.unshare(batch, begun).await?;
        let mut writes: Vec<(&Statement, Parameters<'_>)> = Vec::new();
        if !begun {
            writes.push((&s.begin, Vec::new()));
        }
        // Keys are freed first, since a key may move from one receipt to another within a batch.
        if !batch.freed.is_empty() {
            let freed: Vec<&str> = batch.freed.iter().map(String::as_str).collect();
            writes.push((&s.free_keys, given![freed]));
        }
        self.receipts(batch, &mut writes)?;
        if !batch.held.is_empty() {
            let (keys, ids): (Vec<&str>, Vec<&str>) =
                batch.held.iter().map(|(key, id)| (key.as_str(), id.as_str())).unzip();
            writes.push((&s.hold_keys, given![keys, ids]));
        }
        if !batch.rates.is_empty() {
            let tools = cleaned(batch.rates.keys().map(|(tool, _)| tool));
            let callers = cleaned(batch.rates.keys().map(|(_, caller)| caller));
            let times: Vec<i64> = batch.rates.values().copied().collect();
            writes.push((&s.put_rates, given![tools, callers, times]));
        }
        if !batch.approvals.is_empty() {
            writes.push((&s.put_approvals, approval_columns(batch.approvals.values())?));
        }
        if !batch.events.is_empty() {
            writes.push((&s.put_events, event_columns(to.writer(), batch)?));
        }
        if !batch.logs.is_empty() {
            writes.push((&s.put_logs, log_columns(to.writer(), batch)?));
        }
        if !batch.calls.is_empty() {
            writes.push((&s.put_calls, call_columns(batch)));
        }
        for (writer, log) in &batch.upkeep.adopted {
            let adopted = prune::adopted(writer, log).map_err(unreadable)?;
            writes.push((&s.put_gone, adopted));
        }
        if !batch.upkeep.adopted.is_empty() {
            let sql = "UPDATE writers SET pruned = NULL";
            self.client().batch_execute(sql).await.map_err(failed)?;
        }
        if let Some(removal) = &batch.upkeep.pruned {
            self.remove(removal, &mut writes);
        }
        let own = || to.writer();
        if let Some(named) = &batch.upkeep.checkpoint {
            let (ended, sizes): (Vec<&str>, Vec<i64>) =
                named.ended.iter().map(|(writer, size)| (writer.as_str(), number(*size))).unzip();
            writes.push((&s.name_writers, given![ended, sizes]));
            writes.push((&s.set_checkpoint, given![own(), named.note.as_str()]));
        }
        if batch.upkeep.renewed.is_some() {
            // Uses the database's clock and the writer's own connection: a writer that cannot write
            // must not look alive.
            writes.push((&s.renew, given![own()]));
        }
        if to.next_seq() != from.next_seq() {
            let (was, is) = (number(from.next_seq()), number(to.next_seq()));
            let root = to.frontier().root().to_string();
            writes.push((&s.advance, given![own(), was, is, to.last_leaf(), root]));
        }
        if batch.upkeep.stopped {
            writes.push((&s.stop, given![own()]));
        }
        let sent = AtomicBool::new(true);
        let commit = async {
            // The server does not know a statement that could not be sent, so `COMMIT` would omit
            // its changes.
            let is_sent = sent.load(Ordering::Relaxed);
            let end = if is_sent { &s.commit } else { &s.rollback };
            match self.ask(end, &Vec::new()).await {
                Ok(_) => Ok(is_sent),
                Err(error) => Err(Failure::Unknown(super::unavailable(error))),
            }
        };
        let writing = self.ask_all(&writes, &sent);
        // `join` polls `writing` first: all statements are sent, or found to be unsendable, before
        // the commit.
        let (written, committed) = futures_util::future::join(writing, commit).await;
        // `COMMIT` rolls back if a statement before it has failed.
        match (written, committed?) {
            (Err(Failure::Unknown(error)), false) => Err(Failure::Refused(error)),
            (written, _) => written.map(drop),
        }
    }

    /// Writes the shared parts of settled receipts back into their agent logs, before the batch
    /// changes the receipts. Returns whether the transaction has begun.
    async fn unshare(&self, batch: &Batch, begun: bool) -> Result<bool, Failure> {
        let s = &self.statements;
        let ended = |state: ClaimState| matches!(state, ClaimState::Succeeded | ClaimState::Failed);
        let ids: Vec<String> = batch
            .receipts
            .iter()
            .filter(|(_, moved)| moved.before.is_some_and(|(state, _)| ended(state)))
            .map(|(id, _)| id.clone())
            .collect();
        if ids.is_empty() {
            return Ok(begun);
        }
        if !begun {
            self.ask(&s.begin, &Vec::new()).await.map_err(failed)?;
        }
        let mut receipts: HashMap<(String, i64), String> = HashMap::new();
        for row in self.ask(&s.ended_at, &given![ids]).await.map_err(failed)? {
            let damaged =
                |damage: Unreadable| unreadable(damage.at("receipts", row.get::<_, String>(2)));
            let text = body::unpack(row.get(0), row.get(1)).map_err(damaged)?;
            let receipt: Receipt =
                serde_json::from_str(&text).map_err(|error| damaged(Unreadable::of(error)))?;
            receipts.extend(receipt.audit_seq.map(|at| ((at.writer, number(at.seq)), text)));
        }
        let (writers, seqs): (Vec<String>, Vec<i64>) = receipts.keys().cloned().unzip();
        let logs = self.ask(&s.shared_logs, &given![writers, seqs]).await.map_err(failed)?;
        let (mut writers, mut seqs) = (Vec::new(), Vec::new());
        let mut packed = Vec::new();
        for row in &logs {
            let (writer, seq): (String, i64) = (row.get(0), row.get(1));
            let receipt = receipts.remove(&(writer.clone(), seq));
            let whole = match log_text((row.get(2), row.get(3), row.get(4)), || Ok(receipt)) {
                Ok(whole) => whole,
                // Damage in one log must not stop the pruning of other records; `audit verify`
                // reports it.
                Err(error) => {
                    let error = error.at("agent_logs", format!("{writer} {seq}"));
                    tracing::error!(%error, "an agent log does not fit its receipt");
                    continue;
                }
            };
            writers.push(writer);
            seqs.push(seq);
            packed.push(shorten::pack(&whole).map_err(unreadable)?);
        }
        if !seqs.is_empty() {
            let given = given![writers, seqs, packed];
            self.ask(&s.give_logs, &given).await.map_err(failed)?;
        }
        Ok(true)
    }

    fn receipts<'s>(
        &'s self,
        batch: &'s Batch,
        writes: &mut Vec<(&'s Statement, Parameters<'s>)>,
    ) -> Result<(), Failure> {
        let s = &self.statements;
        let of = |changed: bool| {
            batch.receipts.iter().filter(move |(_, moved)| {
                moved.after.is_some() && moved.before.is_some() == changed
            })
        };
        let fresh = Columns::of(of(false))?;
        if !fresh.ids.is_empty() {
            let Columns { ids, tools, states, writers, fences, settled, packed, .. } = fresh;
            let given = given![ids, tools, states, writers, fences, settled, packed];
            writes.push((&s.insert_receipts, given));
        }
        let changed = Columns::of(of(true))?;
        if !changed.ids.is_empty() {
            let Columns { ids, was, held, states, writers, fences, settled, packed, .. } = changed;
            let count = limited(ids.len());
            let given = given![ids, was, held, states, writers, fences, settled, packed, count];
            writes.push((&s.update_receipts, given));
        }
        let removed: Vec<&str> = batch
            .receipts
            .iter()
            .filter(|(_, moved)| moved.after.is_none())
            .map(|(id, _)| id.as_str())
            .collect();
        if !removed.is_empty() {
            writes.push((&s.remove_receipts, given![removed]));
            let places = batch.receipts.values().filter_map(|moved| moved.accounted.as_ref());
            writes
                .push((&s.lost, prune::lost(places.map(|at| (at.writer.clone(), number(at.seq))))));
        }
        Ok(())
    }
}

fn other(row: &Row) -> OtherHead {
    OtherHead { head: head(row), ended: row.get(8) }
}

/// Receipts, column by column.
#[derive(Default)]
struct Columns<'b> {
    ids: Vec<&'b str>,
    was: Vec<&'static str>,
    held: Vec<i64>,
    tools: Vec<Cow<'b, str>>,
    states: Vec<&'static str>,
    writers: Vec<&'b str>,
    fences: Vec<i64>,
    settled: Vec<Option<&'b str>>,
    packed: Vec<Vec<u8>>,
}

impl<'b> Columns<'b> {
    fn of(all: impl Iterator<Item = (&'b String, &'b ReceiptChange)>) -> Result<Self, Failure> {
        let mut columns = Self::default();
        for (id, moved) in all {
            let Some(ReceiptWrite { receipt, fence, text }) = &moved.after else { continue };
            if let Some((state, fence)) = moved.before {
                columns.was.push(state.as_str());
                columns.held.push(number(fence));
            }
            columns.ids.push(id);
            columns.tools.push(clean(&receipt.tool_id));
            columns.states.push(receipt.state.as_str());
            columns.writers.push(&receipt.writer);
            columns.fences.push(number(*fence));
            columns.settled.push(match receipt.state {
                ClaimState::Succeeded | ClaimState::Failed if receipt.pruned_at.is_none() => {
                    receipt.settled_at.as_deref()
                }
                _ => None,
            });
            columns.packed.push(shorten::pack(text).map_err(unreadable)?);
        }
        Ok(columns)
    }
}

fn approval_columns<'a>(
    approvals: impl Iterator<Item = &'a Approval>,
) -> Result<Parameters<'a>, Failure> {
    let mut columns: [Vec<Cow<'a, str>>; 7] = Default::default();
    for approval in approvals {
        let state = serde_json::to_value(approval.state).unwrap_or_default();
        let text =
            serde_json::to_string(approval).map_err(|error| unreadable(unwritable(error)))?;
        let values = [
            approval.approval_id.as_str().into(),
            clean(&approval.tool_id),
            clean(&approval.caller),
            approval.args_digest.as_str().into(),
            approval.contract_digest.as_str().into(),
            state.as_str().unwrap_or_default().to_owned().into(),
            text.into(),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    Ok(boxed(columns))
}

fn boxed<'p, const N: usize, T: ToSql + Sync + Send + 'p>(columns: [Vec<T>; N]) -> Parameters<'p> {
    let boxed = |column| Box::new(column) as Box<dyn ToSql + Sync + Send + 'p>;
    columns.into_iter().map(boxed).collect()
}

fn event_columns<'b>(writer: &'b str, batch: &'b Batch) -> Result<Parameters<'b>, Failure> {
    let mut seqs = Vec::new();
    let mut texts: [Vec<Option<Cow<'b, str>>>; 7] = Default::default();
    let (mut has_log, mut milestones, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
    for placed in &batch.events {
        let body = &placed.event.body;
        seqs.push(number(placed.event.seq));
        let values = [
            Some(body.time.as_str().into()),
            body.tool_name.as_deref().map(clean),
            body.agent_id.as_deref().map(clean),
            body.call_id.as_deref().map(clean),
            body.status.map(|status| status.as_str().into()),
            body.error_code.map(|code| code.as_str().into()),
            body.receipt_id.as_deref().map(Cow::from),
        ];
        for (column, value) in texts.iter_mut().zip(values) {
            column.push(value);
        }
        has_log.push(body.log_digest.is_some());
        milestones.push(MILESTONES.contains(&body.event));
        bodies.push(shorten::pack(&placed.bytes).map_err(unreadable)?);
    }
    let mut parameters = given![writer, seqs];
    parameters.extend(boxed(texts));
    parameters.extend(given![has_log, milestones, bodies]);
    Ok(parameters)
}

fn log_columns<'b>(writer: &'b str, batch: &'b Batch) -> Result<Parameters<'b>, Failure> {
    let (mut seqs, mut times) = (Vec::new(), Vec::new());
    let (mut packed, mut shared) = (Vec::new(), Vec::new());
    for (log, seq) in &batch.logs {
        let whole = &log.record.text;
        let receipt = result_reference::giver(batch, log, *seq);
        let part = receipt.and_then(|receipt| Part::of(whole, receipt));
        let rest = part.and_then(|part| part.taken_from(whole));
        seqs.push(number(*seq));
        times.push(log.log.timestamp.as_str());
        packed.push(shorten::pack(rest.as_ref().unwrap_or(whole)).map_err(unreadable)?);
        shared.push(part.filter(|_| rest.is_some()).map(text_of_part));
    }
    Ok(given![writer, seqs, times, packed, shared])
}

fn text_of_part(part: Part) -> String {
    format!("{},{},{}", part.own, part.given, part.len)
}

/// The text of an agent log from its columns `body`, `zbody` and `shared`. `receipt` returns the
/// text of its call's receipt.
pub(super) fn log_text(
    (text, packed, shared): (String, Option<Vec<u8>>, Option<&str>),
    receipt: impl FnOnce() -> Result<Option<String>, Unreadable>,
) -> Result<String, Unreadable> {
    let rest = body::unpack(text, packed)?;
    let Some(shared) = shared else { return Ok(rest) };
    let numbers: Option<Vec<usize>> = shared.split(',').map(|text| text.parse().ok()).collect();
    let whole = match numbers.as_deref() {
        Some(&[own, given, len]) => {
            receipt()?.and_then(|receipt| Part { own, given, len }.given_to(rest, &receipt))
        }
        _ => None,
    };
    whole.ok_or_else(|| Unreadable::of("its receipt lacks what it shares with it"))
}

fn call_columns(batch: &Batch) -> Parameters<'_> {
    fn of<'b, T>(batch: &'b Batch, read: impl Fn(&'b QueuedCall) -> T) -> Vec<T> {
        batch.calls.values().map(read).collect()
    }
    given![
        of(batch, |call| clean(&call.caller)),
        of(batch, |call| clean(&call.call_id)),
        of(batch, |call| call.request.as_str()),
        of(batch, |call| call.enqueued_at.as_str()),
        of(batch, |call| call.state.as_str()),
        of(batch, |call| call.finished_at.as_deref()),
        of(batch, |call| call.worker.as_deref()),
        of(batch, |call| i32::try_from(call.deliveries).unwrap_or(i32::MAX)),
        of(batch, |call| call.cancel),
        of(batch, |call| call.progress.as_ref().map(Value::to_string)),
        of(batch, |call| call.result.as_deref()),
        of(batch, |call| text_of(call.queued_by.as_ref())),
        of(batch, |call| text_of(call.finished_by.as_ref())),
        of(batch, |call| call.mac.as_deref()),
    ]
}
