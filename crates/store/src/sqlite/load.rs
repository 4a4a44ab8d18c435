//! Loads the rows that a batch of steps needs.
//!
//! Doc: records.md#stores

use rusqlite::Row;
use toolbooth_audit::approvals::PENDING_MAX;
use toolbooth_audit::backend::steps;
use toolbooth_audit::backend::working::{
    APPROVALS_LOADED, ApprovalName, CallName, Earlier, Needs, OtherHead, StoreQuery, WorkingSet,
};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::checkpoint;
use toolbooth_audit::queue::{self, QueuedCall, RawCall};
use toolbooth_audit::reads::WriterHead;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::AuditPlace;

use super::compact::{Compact, Name, Shown};
use super::queries::{budget, orders, window};
use super::rows::{CALL, HEAD, RECEIPT, call, head, limited, number, receipt_row, unreadable};
use super::schema;
use super::transaction::{Transaction, failed};
use crate::{Unreadable, packing};

impl Transaction<'_> {
    /// Loads the rows that a batch needs into its working set.
    pub(super) fn load(&self, needs: Needs, set: &mut WorkingSet) -> Result<(), Failure> {
        for key in needs.keys {
            let sql = "SELECT receipt FROM keys WHERE key = ?1";
            let holder: Option<Name> = self.one(sql, [Compact::of(&key)], |row| row.get(0))?;
            let holder = holder.map(|holder| holder.0);
            if let Some(id) = &holder {
                self.load_receipt(id.clone(), set)?;
            }
            set.load_key(key, holder);
        }
        for id in needs.receipts {
            self.load_receipt(id, set)?;
        }
        for name in needs.rates {
            let sql = "SELECT tat_ms FROM rates WHERE tool = ?1 AND caller = ?2";
            let tat_ms = self.one(sql, (&name.0, &name.1), |row| row.get(0))?;
            set.load_rate(name, tat_ms);
        }
        for key in needs.budgets {
            let row = budget(self.connection, &key).map_err(failed)?;
            set.load_budget(key, row);
        }
        for tool in needs.running {
            let running = self.running(&tool)?;
            set.load_running(tool, running);
        }
        for name in needs.approvals {
            self.load_approvals(&name, set)?;
            set.load_asked(name);
        }
        for name in needs.pending {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM approvals
                       WHERE approval_id > ?1 AND caller = ?2 AND state = 'pending' LIMIT ?3)";
            let most = PENDING_MAX.cast_signed();
            let pending: Option<i64> = self.one(sql, (&name.1, &name.0, most), |row| row.get(0))?;
            set.load_pending(name, pending.unwrap_or_default().unsigned_abs());
        }
        for (name, at_ms) in needs.windows {
            let earlier = set.earlier_window(&name);
            let totals = window(self.connection, &name, at_ms, earlier).map_err(failed)?;
            set.load_window(name, totals);
        }
        for name in needs.calls {
            let call = self.call(&name)?;
            set.load_call(name, call);
        }
        if needs.orders {
            set.load_orders(&orders(self.connection, None, -1).map_err(failed)?);
        }
        if needs.waiting {
            let sql = "SELECT caller, count(*) FROM queue WHERE state = 'queued' GROUP BY caller";
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
            set.load_waiting(self.all(sql, [], read)?);
        }
        if needs.digest_keys {
            set.load_key_ids(&self.all("SELECT key_id FROM digest_keys", [], |row| row.get(0))?);
        }
        match needs.survey {
            Some(survey) => self.survey(survey, set),
            None => Ok(()),
        }
    }

    fn load_receipt(&self, id: String, set: &mut WorkingSet) -> Result<(), Failure> {
        let row = self.one(RECEIPT, [Compact::of(&id)], receipt_row)?;
        let stored = row.map(|row| self.stored(&id, row)).transpose()?;
        if let Some(spent) = stored.as_ref().and_then(|stored| stored.receipt.approval_id.as_ref())
        {
            let sql = "SELECT body FROM approvals WHERE approval_id = ?1";
            let text: Option<String> = self.one(sql, [spent], |row| row.get(0))?;
            if let Some(text) = text {
                self.load_approval(spent, &text, set)?;
            }
        }
        set.load_receipt(id, stored);
        Ok(())
    }

    fn load_approvals(&self, name: &ApprovalName, set: &mut WorkingSet) -> Result<(), Failure> {
        let bodies: Vec<(String, String)> = self.all(
            "SELECT approval_id, body FROM approvals
             WHERE tool = ?1 AND caller = ?2 AND args_digest = ?3 AND contract_digest = ?4
                 AND state <> 'spent'
                 AND (NOT json_valid(body) OR body ->> '$.ruleDigest' IS ?5)
             ORDER BY approval_id DESC LIMIT ?6",
            (
                &name.tool,
                &name.caller,
                &name.args_digest,
                &name.contract_digest,
                &name.rule_digest,
                limited(APPROVALS_LOADED),
            ),
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        bodies.iter().try_for_each(|(id, text)| self.load_approval(id, text, set))
    }

    fn load_approval(&self, id: &str, text: &str, set: &mut WorkingSet) -> Result<(), Failure> {
        let approval: Approval = serde_json::from_str(text)
            .map_err(|error| unreadable(Unreadable::of(error).at("approvals", id)))?;
        let event = self.event(approval.audit_seq.as_ref())?;
        set.load_approval(approval, event.as_deref());
        Ok(())
    }

    /// Returns the text of an event by its place.
    fn event(&self, at: Option<&AuditPlace>) -> Result<Option<String>, Failure> {
        let Some(at) = at else { return Ok(None) };
        let sql = "SELECT body FROM events WHERE place =
                       (SELECT no << ?3 | ?2 FROM writers WHERE writer = ?1)";
        let given = (&at.writer, number(at.seq), schema::SEQ_BITS);
        let body: Option<Vec<u8>> = self.one(sql, given, |row| row.get(0))?;
        let damaged = |damage: Unreadable| damage.at("events", format!("{} {}", at.writer, at.seq));
        body.map(|body| packing::unpack(&body).map_err(damaged)).transpose().map_err(unreadable)
    }

    fn running(&self, tool: &str) -> Result<u64, Failure> {
        let by_writer: Vec<(String, i64)> = self.all(
            "SELECT writer, count(*) FROM open_receipts
             WHERE tool = ?1 AND state = 'in_flight' GROUP BY writer",
            [tool],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let live = by_writer.iter().filter(|(writer, _)| !self.is_lost(writer));
        Ok(live.map(|(_, count)| count.unsigned_abs()).sum())
    }

    fn call(&self, (caller, call_id): &CallName) -> Result<Option<QueuedCall>, Failure> {
        let sql = format!("SELECT {CALL} FROM queue WHERE caller = ?1 AND call_id = ?2");
        self.one(&sql, [caller, call_id], call)
    }

    fn survey(&self, survey: StoreQuery, set: &mut WorkingSet) -> Result<(), Failure> {
        match survey {
            StoreQuery::Lost => {
                let sql = "SELECT fence, body, id FROM open_receipts
                           WHERE state IN ('in_flight', 'awaiting_input') AND writer <> ?1
                           ORDER BY id";
                let read = |row: &Row<'_>| Ok((row.get::<_, Shown>(2)?, receipt_row(row)?));
                for (id, row) in self.all(sql, [self.writer], read)? {
                    if let Some(stored) = self.readable(&id.0, row)?
                        && stored.owner_lost
                    {
                        set.load_lost(stored);
                    }
                }
            }
            StoreQuery::UnnamedHeads => {
                let of = "named = 0 AND writer <> ?1";
                set.surveyed.heads = self.heads(of, checkpoint::HEADS_MAX)?;
            }
            StoreQuery::Beginning { heads } => {
                if heads {
                    set.surveyed.heads = self.heads("writer <> ?1", usize::MAX)?;
                }
                set.surveyed.earlier = self.earlier()?;
            }
            StoreQuery::PrunableReceipts { before, now_ms, windows, limit } => {
                self.load_prunable(&before, now_ms, &windows, limit, set)?
            }
            StoreQuery::PrunableLogs(before, limit) => self.prunable_logs(&before, limit, set)?,
            StoreQuery::DroppableLogs(limit) => self.droppable_logs(limit, set)?,
            StoreQuery::PrunableEvents(before) => self.prunable_events(&before, set)?,
            StoreQuery::PrunableCalls(before, limit) => {
                set.surveyed.removal.calls = self.prunable_calls(&before, limit)?;
            }
            StoreQuery::PrunableApprovals(before, limit) => {
                set.surveyed.removal.approvals = self.prunable_approvals(&before, limit)?;
            }
            StoreQuery::PrunableDocuments(before, limit) => {
                set.surveyed.removal.documents = self.prunable_documents(&before, limit, set)?;
            }
            StoreQuery::NextCall(own) => {
                set.surveyed.call = match self.next_call(&own)? {
                    Some(call) => Some(RawCall {
                        state: call.state.as_str().to_owned(),
                        queued: self.event(call.queued_by.as_ref())?,
                        finished: None,
                        call,
                    }),
                    None => None,
                };
            }
        }
        Ok(())
    }

    /// Returns the records of an earlier version that a writer must take over. `None` once this is
    /// done, and in a new store.
    fn earlier(&self) -> Result<Option<Earlier>, Failure> {
        let sql = "SELECT EXISTS (SELECT 1 FROM writers WHERE writer <> ?1)";
        let used: Option<bool> = self.one(sql, [self.writer], |row| row.get(0))?;
        let version = schema::version(self.connection).map_err(failed)?;
        if used != Some(true) || !schema::has_earlier_records(version) {
            return Ok(None);
        }
        let sql = "SELECT body FROM events WHERE place IN (SELECT no << ?1 FROM writers)";
        let first: Vec<Vec<u8>> = self.all(sql, [schema::SEQ_BITS], |row| row.get(0))?;
        let first: Vec<String> =
            first.iter().filter_map(|event| packing::unpack(event).ok()).collect();
        let version = u32::try_from(version).unwrap_or_default();
        steps::check_version(version, first.iter().map(String::as_str))
            .map_err(Failure::Refused)?;
        let sql = format!("SELECT {CALL} FROM queue WHERE mac IS NULL ORDER BY place");
        let calls = self.all(&sql, [], call)?;
        let sql = "SELECT writer, pruned FROM writers WHERE pruned IS NOT NULL ORDER BY no";
        let logs: Vec<(String, String)> =
            self.all(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // Version 4 stored its pruning progress, which does not parse as a log.
        let log =
            |(writer, text): (String, String)| Some((writer, serde_json::from_str(&text).ok()?));
        Ok(Some(Earlier { calls, logs: logs.into_iter().filter_map(log).collect() }))
    }

    fn heads(&self, of: &str, limit: usize) -> Result<Vec<OtherHead>, Failure> {
        let sql = format!("SELECT {HEAD} FROM writers WHERE {of} ORDER BY writer LIMIT ?2");
        let rows: Vec<WriterHead> = self.all(&sql, (self.writer, limited(limit)), head)?;
        let ended = |head: WriterHead| OtherHead {
            ended: head.row.as_ref().is_some_and(|row| row.stopped) || self.is_lost(&head.writer),
            head,
        };
        Ok(rows.into_iter().map(ended).collect())
    }

    fn next_call(
        &self,
        own: &std::collections::BTreeSet<CallName>,
    ) -> Result<Option<QueuedCall>, Failure> {
        // A worker has many calls that wait for an approval, so they are looked for by their workers.
        let sql = "SELECT DISTINCT worker FROM queue WHERE state = 'running'";
        let workers: Vec<Option<String>> = self.all(sql, [], |row| row.get(0))?;
        let sql = "SELECT enqueued, place, caller, call_id FROM queue
                   WHERE state = 'running' AND worker IS ?1 ORDER BY enqueued, place";
        let mut left: Option<(String, i64)> = None;
        for worker in workers {
            let is_own = worker.as_deref() == Some(self.writer);
            let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = statement.query([&worker]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let read = || Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, row.get(3)?)));
                let (position, name): ((String, i64), CallName) = read().map_err(failed)?;
                let has = || own.contains(&name);
                let is_lost = |worker: &str| self.is_lost(worker);
                let is_left = queue::is_left(worker.as_deref(), self.writer, has, is_lost);
                if is_left {
                    left = left.into_iter().chain([position]).min();
                }
                // Those of another worker are left together.
                if is_left || !is_own {
                    break;
                }
            }
        }
        match left {
            Some((_, position)) => {
                self.one(&format!("SELECT {CALL} FROM queue WHERE place = ?1"), [position], call)
            }
            None => self.one(
                &format!(
                    "SELECT {CALL} FROM queue WHERE state = 'queued'
                     ORDER BY enqueued, place LIMIT 1"
                ),
                [],
                call,
            ),
        }
    }
}
