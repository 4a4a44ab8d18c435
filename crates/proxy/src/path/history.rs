//! Judges a call by windows over earlier calls, in the transaction of its claim.
//!
//! Path: 6. Doc: policy.md#history

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolbooth_audit::history::{
    History, HistoryJudge, HistoryQuestion, HistoryVerdict, WindowName,
};
use toolbooth_policy::{Denial, Permit};

use crate::trail::CallTrail;
use crate::world::World;

/// A call that is judged once its windows are known, by the world that resolved it.
#[derive(Debug)]
pub(super) struct CallJudge {
    world: Arc<World>,
    permit: Arc<Permit>,
    /// The last judgement, and the windows that it has read.
    judged: Mutex<Option<(Result<Permit, Denial>, History)>>,
}

impl CallJudge {
    pub(super) fn new(world: &Arc<World>, permit: &Arc<Permit>) -> Arc<Self> {
        let (world, permit) = (Arc::clone(world), Arc::clone(permit));
        Arc::new(Self { world, permit, judged: Mutex::new(None) })
    }

    /// Returns the question to the ledger.
    pub(super) fn question(
        self: &Arc<Self>,
        windows: &BTreeMap<String, WindowName>,
    ) -> HistoryQuestion {
        let judge: Arc<dyn HistoryJudge> = Arc::clone(self) as _;
        HistoryQuestion { windows: windows.clone(), judge }
    }

    /// Takes the last judgement. Records in the trail the windows that it has read and the approval that
    /// it requires. `None` if the ledger has not asked for a judgement since the last call of this
    /// function.
    pub(super) fn take(&self, trail: &mut CallTrail) -> Option<Result<Permit, Denial>> {
        let last = self.judged.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (judged, history) = last?;
        if let Some(own) = &mut trail.judged {
            let approval = judged.as_ref().ok().and_then(Permit::approval);
            own.approval = approval.cloned();
            own.history = history;
        }
        Some(judged)
    }
}

impl HistoryJudge for CallJudge {
    fn judge(&self, history: &History) -> HistoryVerdict {
        let judged = self.world.policy.complete(&self.permit, history, None);
        let verdict = match &judged {
            Ok(permit) => HistoryVerdict::Permit {
                decision: permit.summary(),
                approval: permit.approval().map(|need| need.rule_digest.clone()),
                shadow: permit.shadow().cloned(),
            },
            Err(_) => HistoryVerdict::Deny,
        };
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((judged, history.clone()));
        verdict
    }
}
