//! Tests the writer of a store over a scripted backend: rejections, conflicts, commits with an
//! unknown outcome, early answers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::{Arc, Mutex};

use async_channel::{Receiver, Sender};
use toolbooth_audit::LedgerError;
use toolbooth_audit::approvals::ApprovalRequest;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::steps::{RecordEvents, Settle, Step, Wait};
use toolbooth_audit::backend::working::{Batch, Needs, Stored, WorkingSet};
use toolbooth_audit::backend::writer::{Backend, Failure, LogEnd, Writer, WriterHandle};
use toolbooth_audit::backend::writer_status::WriterStatus;
use toolbooth_audit::claim::ClaimEvent;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::digest::Digester;
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed};
use toolbooth_contracts::Effect;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};

/// The scripted outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Commit {
    Done,
    Outdated,
    /// The outcome is unknown, and the commit succeeded.
    Happened,
    /// The outcome is unknown, and the commit failed.
    Lost,
}

/// The state of the store.
#[derive(Debug, Default)]
struct Kept {
    end: Option<LogEnd>,
    receipts: Vec<Stored>,
    /// The events of each successful commit.
    commits: Vec<Vec<AuditEventKind>>,
    script: Vec<Commit>,
    /// Batches with an event of this tool are rejected.
    poison: Option<String>,
}

struct Scripted {
    kept: Arc<Mutex<Kept>>,
    /// A commit waits for a message from this gate, if it is set.
    gate: Option<Receiver<()>>,
}

impl Backend for Scripted {
    async fn load(&mut self, needs: &Needs, _: bool, set: &mut WorkingSet) -> Result<(), Failure> {
        let missing = set.missing(needs);
        let kept = self.kept.lock().unwrap();
        for id in missing.receipts {
            let stored = kept.receipts.iter().rev().find(|own| own.receipt.receipt_id == id);
            set.load_receipt(id, stored.cloned());
        }
        for key in missing.keys {
            set.load_key(key, None);
        }
        if missing.digest_keys {
            set.load_key_ids(&[]);
        }
        Ok(())
    }

    async fn write(&mut self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        if let Some(gate) = &self.gate {
            gate.recv().await.unwrap();
        }
        let mut kept = self.kept.lock().unwrap();
        let poisoned = batch
            .events
            .iter()
            .any(|placed| kept.poison.is_some() && placed.event.body.tool_name == kept.poison);
        if poisoned {
            return Err(Failure::Refused(LedgerError::unavailable("poison")));
        }
        let commit = if kept.script.is_empty() { Commit::Done } else { kept.script.remove(0) };
        let unknown = || Failure::Unknown(LedgerError::unavailable("it is not known"));
        match commit {
            Commit::Outdated => return Err(Failure::Outdated),
            Commit::Lost => return Err(unknown()),
            Commit::Done | Commit::Happened => (),
        }
        let was = kept.end.as_ref().map_or(0, |end| end.size);
        assert_eq!(was, from.next_seq(), "each log goes on where it ended");
        kept.end = Some(LogEnd { size: to.next_seq(), last_leaf: to.last_leaf() });
        kept.commits.push(batch.events.iter().map(|placed| placed.event.body.event).collect());
        for moved in batch.receipts.values() {
            let put = moved.after.as_ref().unwrap();
            let receipt = Arc::clone(&put.receipt);
            kept.receipts.push(Stored { receipt, fence: put.fence, owner_lost: false });
        }
        if commit == Commit::Happened { Err(unknown()) } else { Ok(()) }
    }

    async fn gather(&mut self, _: &(dyn Fn() -> bool + Sync)) {}

    async fn release(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn recover(&mut self, _: &str) -> Result<LogEnd, LedgerError> {
        let end = self.kept.lock().unwrap().end.clone();
        Ok(end.unwrap_or(LogEnd { size: 0, last_leaf: None }))
    }
}

fn begin(script: &[Commit], gate: Option<Receiver<()>>) -> (WriterHandle, Arc<Mutex<Kept>>) {
    let kept = Arc::new(Mutex::new(Kept { script: script.to_vec(), ..Kept::default() }));
    let status = Arc::new(WriterStatus::default());
    let (steps, queue) = WriterHandle::new(Arc::clone(&status));
    let set = WorkingSet::new(
        Head::new("writer".to_owned()),
        Digester::new(&[1; 32]),
        Arc::clone(&status),
    );
    let backend = Scripted { kept: Arc::clone(&kept), gate };
    tokio::spawn(Writer::new(backend, set, status).serve(queue));
    (steps, kept)
}

fn note(tool: &str) -> RecordEvents {
    let mut event = EventBody::new(AuditEventKind::Paused, moment(1).text);
    event.tool_name = Some(tool.to_owned());
    RecordEvents(vec![event])
}

/// Runs steps that are all submitted before the first commit completes.
async fn together<S: Step>(
    steps: &WriterHandle,
    gate: &Sender<()>,
    all: Vec<S>,
) -> Vec<Result<S::Answer, LedgerError>> {
    let mut asked = tokio::task::JoinSet::new();
    for (number, step) in all.into_iter().enumerate() {
        let steps = steps.clone();
        asked.spawn(async move { (number, steps.run(step).await) });
        // The first step is being committed meanwhile.
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        let _ = gate.try_send(());
    }
    let mut answers: Vec<_> = asked.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[tokio::test]
async fn what_a_store_refuses_takes_no_other_step_along() {
    let (open, gate) = async_channel::bounded(1_000);
    let (steps, kept) = begin(&[], Some(gate));
    kept.lock().unwrap().poison = Some("bad".to_owned());
    let all = ["first", "a", "bad", "b", "bad", "c"].map(note).into_iter().collect();
    let answers = together(&steps, &open, all).await;
    let taken: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(taken, [true, true, false, true, false, true]);
    assert_eq!(kept.lock().unwrap().end.as_ref().unwrap().size, 4);
}

#[tokio::test]
async fn a_step_that_refuses_leaves_nothing_and_the_others_are_done() {
    let (open, gate) = async_channel::bounded(1_000);
    let (steps, kept) = begin(&[], Some(gate));
    let asks = |id: &str| Wait {
        receipt_id: id.to_owned(),
        claim_event: ClaimEvent::Suspended { fence: 1 },
        at: moment(1),
    };
    let first = steps.clone();
    let noting = tokio::spawn(async move { first.run(note("a")).await });
    let answers = together(&steps, &open, vec![asks("none"), asks("neither")]).await;
    noting.await.unwrap().unwrap();
    for answer in answers {
        assert!(matches!(answer, Err(LedgerError::NotFound(_))), "{answer:?}");
    }
    assert_eq!(kept.lock().unwrap().commits, [[AuditEventKind::Paused]]);
}

#[tokio::test]
async fn what_others_have_changed_is_loaded_anew_a_few_times() {
    let (steps, kept) = begin(&[Commit::Outdated, Commit::Outdated], None);
    steps.run(note("a")).await.unwrap();
    kept.lock().unwrap().script = vec![Commit::Outdated; 3];
    assert!(steps.run(note("b")).await.is_err());
    steps.run(note("c")).await.unwrap();
    assert_eq!(kept.lock().unwrap().end.as_ref().unwrap().size, 2);
}

#[tokio::test]
async fn a_commit_of_unknown_result_is_found_out() {
    let (steps, kept) = begin(&[Commit::Happened, Commit::Lost], None);
    let mode = IdempotencyMode::Keyed;
    let claimed = steps.run(request("a", mode, &["k"], "x")).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("{claimed:?}") };
    let settled = settlement(claim, mode, Effect::Completed, None);
    assert!(steps.run(Settle::new(Arc::clone(&settled))).await.is_err(), "it is lost");
    steps.run(Settle::new(settled)).await.unwrap();
    let kinds = [[AuditEventKind::ToolDispatched], [AuditEventKind::ToolExecuted]];
    assert_eq!(kept.lock().unwrap().commits, kinds);
}

#[tokio::test]
async fn only_a_relaxed_claim_without_a_key_is_answered_before_it_is_durable() {
    let (open, gate) = async_channel::bounded(1_000);
    let (steps, kept) = begin(&[], Some(gate));
    let relaxed = |call: &str, keys: &[&str]| ClaimRequest {
        relaxed: true,
        ..request(call, IdempotencyMode::OnKey, keys, "x")
    };
    let early = steps.run(relaxed("early", &[])).await.unwrap();
    let Claimed::Fresh(claim) = early else { panic!("{early:?}") };
    assert!(kept.lock().unwrap().commits.is_empty(), "nothing is durable yet");
    let keyed = tokio::spawn({
        let steps = steps.clone();
        async move { steps.run(relaxed("keyed", &["k"])).await }
    });
    let plain = tokio::spawn({
        let steps = steps.clone();
        async move { steps.run(request("plain", IdempotencyMode::None, &[], "x")).await }
    });
    let approval = ApprovalRequest {
        approval_id: "approval".into(),
        rule: "rule".into(),
        rule_digest: "r0".into(),
        approvers: Approvers::One,
        expires_at: moment(1_000).text,
        arguments: None,
        open_after: String::new(),
    };
    let asking = ClaimRequest { approval: Some(approval), ..relaxed("asking", &[]) };
    assert!(!asking.is_early(&Claimed::Fresh(Claim::granted("r".into(), 1, 1))));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!keyed.is_finished() && !plain.is_finished());
    let settled = settlement(claim, IdempotencyMode::OnKey, Effect::Completed, None);
    for _ in 0..100 {
        let _ = open.try_send(());
    }
    steps.run(Settle::new(settled)).await.unwrap();
    assert!(matches!(keyed.await.unwrap().unwrap(), Claimed::Fresh(_)));
    assert!(matches!(plain.await.unwrap().unwrap(), Claimed::Fresh(_)));
    assert_eq!(kept.lock().unwrap().end.as_ref().unwrap().size, 4);
}
