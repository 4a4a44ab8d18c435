//! Writes the changes of a batch, column by column.
//!
//! Doc: records.md#stores

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::working::{Batch, ReceiptChange, ReceiptWrite};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::charges::BudgetRow;
use toolbooth_audit::documents::Document;
use toolbooth_audit::queue::QueuedCall;
use toolbooth_audit::reads::MILESTONES;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::order::{Order, OrderName};
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::backend::{Session, failed};
use super::rows::{cleaned, given, limited, log_text, number, text_of, unreadable};
use super::statements::Parameters;
use super::windows::{LockedWindows, change_columns, history_columns, sum_columns};
use super::{clean, prune};
use crate::result_reference::{self, Part};
use crate::{Unreadable, body, packing, unwritable};

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
            columns.packed.push(packing::pack(text).map_err(unreadable)?);
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
        bodies.push(packing::pack(&placed.bytes).map_err(unreadable)?);
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
        packed.push(packing::pack(rest.as_ref().unwrap_or(whole)).map_err(unreadable)?);
        shared.push(part.filter(|_| rest.is_some()).map(text_of_part));
    }
    Ok(given![writer, seqs, times, packed, shared])
}

fn document_columns<'b>(
    documents: &BTreeMap<&'b str, &'b Document>,
) -> Result<Parameters<'b>, Failure> {
    let digests: Vec<&str> = documents.keys().copied().collect();
    let pack = |document: &&Document| packing::pack(&document.text).map_err(unreadable);
    let packed: Vec<_> = documents.values().map(pack).collect::<Result<_, _>>()?;
    let used: Vec<&str> = documents.values().map(|document| document.used.as_str()).collect();
    let renewed = documents.values().map(|document| document.renewed_before()).min();
    Ok(given![digests, packed, used, renewed.unwrap_or_default()])
}

fn text_of_part(part: Part) -> String {
    format!("{},{},{}", part.own, part.given, part.len)
}

fn budget_columns(budgets: &BTreeMap<String, BudgetRow>) -> Parameters<'_> {
    let keys: Vec<&str> = budgets.keys().map(String::as_str).collect();
    let days: Vec<&str> = budgets.values().map(|row| row.day.as_str()).collect();
    let units: Vec<i64> = budgets.values().map(|row| row.units.cast_signed()).collect();
    let text = |row: &BudgetRow| text_of(Some(&row.changed_by)).unwrap_or_default();
    let places: Vec<String> = budgets.values().map(text).collect();
    given![keys, days, units, places]
}

fn order_columns(orders: &BTreeMap<OrderName, Order>) -> Result<Parameters<'_>, Failure> {
    let kinds: Vec<&str> = orders.keys().map(|name| name.kind.as_str()).collect();
    let names = cleaned(orders.keys().map(|name| &name.name));
    let text = |order| serde_json::to_string(order).map_err(|error| unreadable(unwritable(error)));
    let bodies = orders.values().map(text).collect::<Result<Vec<String>, Failure>>()?;
    Ok(given![kinds, names, bodies])
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
        of(batch, |call| call.identity.as_deref()),
    ]
}

impl Session {
    /// Writes the changes of a batch and commits. The statements are sent together and executed in
    /// order.
    pub(super) async fn write(
        &self,
        batch: &Batch,
        begun: bool,
        windows: &LockedWindows,
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
        if !batch.history.is_empty() {
            let is_known =
                |id: &&String| batch.receipts.get(*id).is_none_or(|moved| moved.before.is_some());
            let known: Vec<&str> =
                batch.history.keys().filter(is_known).map(String::as_str).collect();
            if !known.is_empty() {
                writes.push((&s.remove_history, given![known]));
            }
            writes.push((&s.put_history, history_columns(&batch.history)));
        }
        if !batch.windows.is_empty() {
            writes.push((&s.change_sums, change_columns(&batch.windows)));
        }
        let sums = windows.sums(batch)?;
        if !sums.is_empty() {
            writes.push((&s.put_sums, sum_columns(&sums)));
        }
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
        if !batch.budgets.is_empty() {
            writes.push((&s.put_budgets, budget_columns(&batch.budgets)));
        }
        if !batch.approvals.is_empty() {
            writes.push((&s.put_approvals, approval_columns(batch.approvals.values())?));
        }
        if !batch.orders.is_empty() {
            writes.push((&s.put_orders, order_columns(&batch.orders)?));
        }
        if !batch.key_uses.is_empty() {
            let names: Vec<&str> = batch.key_uses.keys().map(String::as_str).collect();
            let times: Vec<&str> = batch.key_uses.values().map(String::as_str).collect();
            writes.push((&s.record_uses, given![names, times]));
        }
        if !batch.events.is_empty() {
            writes.push((&s.put_events, event_columns(to.writer(), batch)?));
        }
        if !batch.logs.is_empty() {
            writes.push((&s.put_logs, log_columns(to.writer(), batch)?));
        }
        let documents = batch.documents();
        if !documents.is_empty() {
            writes.push((&s.put_documents, document_columns(&documents)?));
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
        let is_pruned = |moved: &ReceiptChange| {
            moved.after.as_ref().is_none_or(|after| after.receipt.pruned_at.is_some())
        };
        if batch.upkeep.pruned.is_some() || batch.receipts.values().any(is_pruned) {
            writes.push((&s.end_sums, given![]));
        }
        // The last statement, because it waits for no lock and its rows are of no use any more.
        if let Some(before) = batch.budgets_before.as_deref() {
            writes.push((&s.end_budgets, given![before]));
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
            packed.push(packing::pack(&whole).map_err(unreadable)?);
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
