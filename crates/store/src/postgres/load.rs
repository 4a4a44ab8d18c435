//! Loads the rows that a batch of steps needs, under the locks that it needs.
//!
//! Doc: records.md#stores

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;

use tokio_postgres::{Row, Statement};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::pruning::Progress;
use toolbooth_audit::backend::steps;
use toolbooth_audit::backend::working::{
    CallName, Earlier, Needs, OtherHead, StoreQuery, Stored, WorkingSet,
};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::charges::BudgetRow;
use toolbooth_audit::checkpoint;
use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::documents::used_before;
use toolbooth_audit::queue::{QueuedCall, RawCall};
use toolbooth_contracts::approval::Approval;

use super::backend::{Session, failed};
use super::rows::{
    call, cleaned, given, head, limited, number, raw_order, stored, unreadable, used_budget, window,
};
use super::statements::{CALL, Parameters};
use super::windows::{LockedWindows, PRUNED_MAX, WindowRead};
use super::{clean, schema};
use crate::{Unreadable, body};

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

/// Returns a pair of names as rows store them, without NUL.
fn kept((one, other): &(String, String)) -> (String, String) {
    (clean(one).into_owned(), clean(other).into_owned())
}

/// Returns a receipt, or `None` if it is damaged. A damaged receipt is logged and does not stop the
/// others; `audit verify` reports it too.
fn readable(stored: Result<Stored, Failure>) -> Result<Option<Stored>, Failure> {
    match stored {
        Err(Failure::Refused(error @ LedgerError::Damaged(_))) => {
            tracing::error!(%error, "a receipt is left as it is");
            Ok(None)
        }
        stored => stored.map(Some),
    }
}

/// Returns the text of an event with columns from the column `at` on; `None` if there is no event.
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

/// Returns the number of an advisory lock. If the numbers of two names collide, they only wait for
/// each other.
fn lock(parts: &[&str]) -> i64 {
    let digest = sha256_hex(parts.join("\u{1f}").as_bytes());
    let head = digest.get(..16).unwrap_or_default();
    u64::from_str_radix(head, 16).unwrap_or_default().cast_signed()
}

/// Returns the advisory locks to take before any row is read, in the same order on all replicas.
/// They also cover rows that do not exist yet.
fn locks(needs: &Needs, windows: &LockedWindows) -> Vec<i64> {
    let keys = needs.keys.iter().map(|key| lock(&["key", key]));
    let rates = needs.rates.iter().map(|(tool, caller)| lock(&["rate", tool, caller]));
    let budgets = needs.budgets.iter().map(|key| lock(&["budget", key]));
    let running = needs.running.iter().map(|tool| lock(&["running", tool]));
    let approvals = needs
        .approvals
        .iter()
        .map(|name| lock(&["approval", &name.tool, &name.caller, &name.args_digest]));
    let windows = windows.keys().map(|key| lock(&["history", key]));
    let calls = needs.calls.iter().map(|(caller, id)| lock(&["call", caller, id]));
    let orders = needs.orders.then(|| lock(&["orders"]));
    let all: BTreeSet<i64> = keys
        .chain(rates)
        .chain(budgets)
        .chain(running)
        .chain(approvals)
        .chain(windows)
        .chain(calls)
        .chain(orders)
        .collect();
    all.into_iter().collect()
}

fn other(row: &Row) -> OtherHead {
    OtherHead { head: head(row), ended: row.get(8) }
}

impl Session {
    /// Begins the transaction, takes the locks and reads the rows that a batch needs. The
    /// statements are sent together and executed in order.
    pub(super) async fn load(
        &self,
        mut needs: Needs,
        writer: &str,
        progress: &HashMap<String, Progress>,
        locked: &mut LockedWindows,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let s = &self.statements;
        let survey = needs.survey.take();
        let mut asked = StatementBatch(vec![(&s.begin, Parameters::new())]);
        let begins = matches!(survey, Some(StoreQuery::Beginning { .. }));
        asked.add(begins, &s.may_idle, Parameters::new);
        *locked = LockedWindows::of(&needs);
        let locks = locks(&needs, locked);
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
        let budgets = asked.add(!needs.budgets.is_empty(), &s.budgets, || {
            given![needs.budgets.iter().map(String::as_str).collect::<Vec<_>>()]
        });
        let is_timed = needs.clock || !(needs.rates.is_empty() && needs.budgets.is_empty());
        let clock = asked.add(is_timed, &s.clock, || given![]);
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
        let pending = asked.add(!needs.pending.is_empty(), &s.pending, || {
            let callers = cleaned(needs.pending.iter().map(|(caller, _)| caller));
            given![callers, cleaned(needs.pending.iter().map(|(_, after)| after))]
        });
        let windows = asked.add(!needs.windows.is_empty(), &s.windows, || {
            let keys: Vec<&str> = needs.windows.keys().map(|name| name.key.as_str()).collect();
            let lengths: Vec<i64> = needs.windows.keys().map(|name| name.length_ms).collect();
            given![keys, lengths]
        });
        let calls = asked.add(!needs.calls.is_empty(), &s.calls, || {
            let callers = cleaned(needs.calls.iter().map(|(caller, _)| caller));
            given![callers, cleaned(needs.calls.iter().map(|(_, id)| id))]
        });
        let orders = asked.add(needs.orders, &s.orders, || given![]);
        let waiting = asked.add(needs.waiting, &s.waiting, || given![]);
        let with_key_ids = needs.digest_keys && survey.is_none();
        let key_ids = asked.add(with_key_ids, &s.key_ids, || given![]);
        let answers = self.ask_all(&asked.0, &AtomicBool::new(true)).await?;
        drop(asked);
        let rows = |index: Option<usize>| -> &[Row] {
            index.and_then(|index| answers.get(index)).map_or(&[], Vec::as_slice)
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
        let mut used: HashMap<String, BudgetRow> =
            rows(budgets).iter().map(|row| (row.get(0), used_budget(row))).collect();
        for key in needs.budgets {
            let row = used.remove(&key);
            set.load_budget(key, row);
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
        let counts: HashMap<(String, String), i64> =
            rows(pending).iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        for name in needs.pending {
            let pending = counts.get(&kept(&name)).copied().unwrap_or_default();
            set.load_pending(name, pending.unsigned_abs());
        }
        for row in rows(windows) {
            let (name, totals) = window(row).map_err(unreadable)?;
            // A call is counted from the time at which the windows end that it was judged by. Otherwise
            // a call that leaves the window between the two times would count for neither.
            set.clock_ms = Some(totals.after_ms.saturating_add(name.length_ms));
            let calls = row.get::<_, i64>(8).unsigned_abs();
            let read = WindowRead { name, totals, is_stored: row.get(7), calls };
            locked.add(&read);
            set.load_window(read.name, totals);
        }
        if needs.orders {
            set.load_orders(&rows(orders).iter().map(raw_order).collect::<Vec<_>>());
        }
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
        if needs.waiting {
            let of_caller = |row: &Row| (row.get(0), row.get::<_, i64>(1).unsigned_abs());
            set.load_waiting(rows(waiting).iter().map(of_caller));
        }
        if with_key_ids {
            set.load_key_ids(&rows(key_ids).iter().map(|row| row.get(0)).collect::<Vec<_>>());
        }
        if !spent.is_empty() {
            let found = self.ask(&s.approvals_by_id, &given![spent]).await.map_err(failed)?;
            for row in &found {
                set.load_approval(approval(row)?, event_text(row, 1)?.as_deref());
            }
        }
        match survey {
            Some(survey) => self.survey(survey, writer, progress, locked, set).await,
            None => Ok(()),
        }
    }

    /// Retains receipts whose windows it could lock without waiting, as many as one step may lock.
    async fn retain_unlocked(
        &self,
        receipts: &mut Vec<(Stored, bool)>,
        locked: &mut LockedWindows,
    ) -> Result<(), Failure> {
        let windows = |stored: &Stored| -> Vec<String> {
            stored.receipt.history.iter().map(|entry| entry.key.clone()).collect()
        };
        let mut asked: BTreeMap<String, i64> = BTreeMap::new();
        for key in receipts.iter().flat_map(|(stored, _)| windows(stored)) {
            if asked.len() < PRUNED_MAX {
                let number = lock(&["history", &key]);
                asked.insert(key, number);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let numbers: BTreeSet<i64> = asked.values().copied().collect();
        let numbers: Vec<i64> = numbers.into_iter().collect();
        let answers = self.ask(&self.statements.try_locks, &given![numbers]).await;
        let answers = answers.map_err(failed)?;
        let is_locked: HashMap<i64, bool> =
            answers.iter().map(|row| (row.get(0), row.get(1))).collect();
        asked.retain(|_, number| is_locked.get(number) == Some(&true));
        receipts.retain(|(stored, _)| windows(stored).iter().all(|key| asked.contains_key(key)));
        asked.keys().for_each(|key| locked.add_key(key));
        Ok(())
    }

    async fn survey(
        &self,
        survey: StoreQuery,
        writer: &str,
        progress: &HashMap<String, Progress>,
        locked: &mut LockedWindows,
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
            StoreQuery::PrunableReceipts { before, now_ms, windows, limit } => {
                let patterns = windows.iter().map(|window| window.tool.as_str());
                let patterns = patterns.map(|tool| match tool.strip_suffix('*') {
                    Some(prefix) => (prefix, true),
                    None => (tool, false),
                });
                let (tools, prefixes): (Vec<&str>, Vec<bool>) = patterns.unzip();
                let lengths: Vec<i64> = windows.iter().map(|window| window.length_ms).collect();
                let parameters = given![before, limited(limit), now_ms, tools, prefixes, lengths];
                let mut found = Vec::new();
                for row in self.ask(&s.prunable, &parameters).await.map_err(failed)? {
                    found.extend(readable(stored(&row, false))?.map(|one| (one, row.get(5))));
                }
                let all = found.len();
                self.retain_unlocked(&mut found, locked).await?;
                set.surveyed.more = !found.is_empty() && found.len() < all;
                found.into_iter().for_each(|(stored, holds)| set.load_prunable(stored, holds));
            }
            StoreQuery::PrunableLogs(before, limit) => {
                let given = given![before, limited(limit)];
                for row in self.ask(&s.prunable_logs, &given).await.map_err(failed)? {
                    let (writer, seq): (String, i64) = (row.get(0), row.get(1));
                    let logs = &mut set.surveyed.removal.logs;
                    logs.entry(writer).or_default().push(seq.unsigned_abs());
                }
            }
            // The database server limits its own disk usage.
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
            StoreQuery::PrunableApprovals(before, limit) => {
                let given = given![before, limited(limit)];
                let rows = self.ask(&s.prunable_approvals, &given).await.map_err(failed)?;
                set.surveyed.removal.approvals = rows.iter().map(|row| row.get(0)).collect();
            }
            StoreQuery::PrunableDocuments(before, limit) => {
                let given = given![used_before(&before), before, limited(limit)];
                let rows = self.ask(&s.prunable_documents, &given).await.map_err(failed)?;
                set.surveyed.removal.documents = rows.iter().map(|row| row.get(0)).collect();
            }
            StoreQuery::NextCall(running) => {
                let running: Vec<String> = running
                    .iter()
                    .map(|(caller, id)| format!("{}\u{1f}{}", clean(caller), clean(id)))
                    .collect();
                let asked = [(&s.next_call, given![own, running]), (&s.key_ids, Parameters::new())];
                let mut answers = self.ask_all(&asked, &AtomicBool::new(true)).await?.into_iter();
                let (rows, ids) = (answers.next().unwrap_or_default(), answers.next());
                let ids = ids.unwrap_or_default();
                set.load_key_ids(&ids.iter().map(|row| row.get(0)).collect::<Vec<_>>());
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

    /// Returns the records of an earlier version that a writer must take over. `None` once this is
    /// done, and in a new store.
    async fn earlier(&self, writer: &str) -> Result<Option<Earlier>, Failure> {
        let client = self.client();
        // Only one replica at a time takes over these records.
        let sql = "SELECT version FROM toolbooth_version FOR UPDATE";
        let version: i32 = client.query_one(sql, &[]).await.map_err(failed)?.get(0);
        let sql = "SELECT EXISTS (SELECT 1 FROM writers WHERE writer <> $1)";
        let used: bool = client.query_one(sql, &[&writer]).await.map_err(failed)?.get(0);
        if !used || !schema::has_earlier_records(version) {
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
        // Version 3 stored its pruning progress, which does not parse as a log.
        let log = |row: &Row| Some((row.get(0), serde_json::from_str(row.get(1)).ok()?));
        Ok(Some(Earlier { calls, logs: logs.iter().filter_map(log).collect() }))
    }
}
