//! The rules of claims, as pure functions: the effect of a key on a call and of an outcome on a
//! claim.
//!
//! Every ledger calls these functions, so all ledgers decide alike.
//!
//! Path: 6, 9. Doc: call-path.md#idempotency

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::{ClaimState, Receipt};
use toolbooth_contracts::{Effect, ErrorCode};

/// The requirements of a call with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRules {
    /// Whether different arguments under the same key are rejected.
    pub refuse_different_args: bool,
    /// Whether the tool can be dispatched again if the first outcome is unknown.
    pub rerunnable: bool,
}

/// The fields of a claim that its rules use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimSnapshot {
    /// The state.
    pub state: ClaimState,
    /// Increases with each dispatch and each operator resolution. Requests with an older fence are
    /// stale.
    pub fence: u64,
    /// The number of dispatches.
    pub attempt: u32,
    /// Whether the last dispatch is settled.
    pub settled: bool,
}

impl ClaimSnapshot {
    /// A claim directly after its first dispatch.
    pub const FIRST: Self =
        Self { state: ClaimState::InFlight, fence: 1, attempt: 1, settled: false };
}

/// An event that affects a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimEvent {
    /// Another call has the same key.
    Called {
        /// The requirements of the call.
        rules: KeyRules,
        /// Whether its arguments are the same.
        same_args: bool,
        /// Whether the writer that owns the claim is lost.
        owner_lost: bool,
    },
    /// An outcome arrives.
    Settled {
        /// The fence of the dispatch that has this outcome.
        fence: u64,
        /// The tool's mode.
        mode: IdempotencyMode,
        /// The known effect.
        effect: Effect,
        /// The error code of an unsuccessful call.
        code: Option<ErrorCode>,
    },
    /// The tool waits for input.
    Suspended {
        /// The fence of the dispatch.
        fence: u64,
    },
    /// The input has arrived.
    Resumed {
        /// The fence of the dispatch.
        fence: u64,
    },
    /// The writer that owns it is lost.
    OwnerLost,
    /// An operator resolves the claim as a success or a tool error.
    Resolved {
        /// The tool's mode.
        mode: IdempotencyMode,
        /// Whether it succeeded.
        succeeded: bool,
    },
}

/// The result of a [`step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The first outcome is replayed.
    Replay {
        /// Whether the arguments differed and were not applied.
        arguments_differ: bool,
    },
    /// The first call is still running.
    InFlight,
    /// The first outcome is unknown, and the tool must not run again.
    InDoubt,
    /// The same key was used with different arguments.
    Conflict,
    /// The claim is taken over and the tool dispatched again; contains the new claim.
    Dispatch(ClaimSnapshot),
    /// The new state of the claim.
    Now {
        /// The claim.
        snapshot: ClaimSnapshot,
        /// The known effect of all dispatches of the claim.
        effect: Effect,
        /// Whether the claim still holds its keys.
        holds_keys: bool,
        /// Whether the claim was already in doubt when the outcome arrived.
        late: bool,
    },
    /// The event is a duplicate: nothing changes.
    Already,
    /// The event does not belong to the current dispatch or state of the claim: nothing changes.
    Stale,
}

/// Returns the transition of a claim for an event. Pure; every ledger decides claims only with this
/// function.
#[must_use]
pub fn step(claim: ClaimSnapshot, claim_event: ClaimEvent) -> Transition {
    use ClaimState::{AwaitingInput, Failed, InDoubt, InFlight, Queued, Succeeded};
    match claim_event {
        ClaimEvent::Called { rules, same_args, owner_lost } => {
            // A conflict does not depend on the state of the first call.
            if !same_args && rules.refuse_different_args {
                return Transition::Conflict;
            }
            let unknown = match claim.state {
                Succeeded | Failed => return Transition::Replay { arguments_differ: !same_args },
                Queued => return Transition::InFlight,
                InFlight | AwaitingInput => owner_lost,
                InDoubt => true,
            };
            // With a natural key, a rerun must have the same arguments as the first call.
            match (unknown, rules.rerunnable && same_args) {
                (false, _) => Transition::InFlight,
                (true, false) => Transition::InDoubt,
                (true, true) => Transition::Dispatch(ClaimSnapshot {
                    state: InFlight,
                    fence: claim.fence.saturating_add(1),
                    attempt: claim.attempt.saturating_add(1),
                    settled: false,
                }),
            }
        }
        ClaimEvent::Settled { fence, .. } if fence != claim.fence => Transition::Stale,
        ClaimEvent::Settled { mode, effect, code, .. } => {
            // A later dispatch that did not start does not reveal the effect of an earlier one.
            let effect = match effect {
                Effect::NotStarted if claim.attempt > 1 => Effect::Unknown,
                known => known,
            };
            // An unknown outcome can still become known; every other outcome is final.
            let late = claim.state == InDoubt;
            if claim.settled && !(late && effect != Effect::Unknown) {
                return Transition::Already;
            }
            if !matches!(claim.state, InFlight | AwaitingInput | InDoubt) {
                return Transition::Stale;
            }
            let (state, holds_keys) = outcome(mode, effect, code);
            let snapshot = ClaimSnapshot { state, settled: true, ..claim };
            Transition::Now { snapshot, effect, holds_keys, late }
        }
        ClaimEvent::Suspended { fence } | ClaimEvent::Resumed { fence } if fence != claim.fence => {
            Transition::Stale
        }
        ClaimEvent::Suspended { .. } => moved(claim, InFlight, AwaitingInput),
        ClaimEvent::Resumed { .. } => moved(claim, AwaitingInput, InFlight),
        ClaimEvent::OwnerLost => match claim.state {
            // The fence does not change, so that a late outcome is still accepted.
            InFlight | AwaitingInput => Transition::Now {
                snapshot: ClaimSnapshot { state: InDoubt, ..claim },
                effect: Effect::Unknown,
                holds_keys: true,
                late: false,
            },
            _ => Transition::Already,
        },
        ClaimEvent::Resolved { mode, succeeded } => {
            if claim.state != InDoubt {
                return Transition::Stale;
            }
            let code = (!succeeded).then_some(ErrorCode::ToolError);
            let (state, holds_keys) = outcome(mode, Effect::Completed, code);
            let fence = claim.fence.saturating_add(1);
            Transition::Now {
                snapshot: ClaimSnapshot { state, fence, settled: true, ..claim },
                effect: Effect::Completed,
                holds_keys,
                late: false,
            }
        }
    }
}

fn moved(claim: ClaimSnapshot, from: ClaimState, to: ClaimState) -> Transition {
    if claim.state == to {
        return Transition::Already;
    }
    if claim.state != from {
        return Transition::Stale;
    }
    let snapshot = ClaimSnapshot { state: to, ..claim };
    Transition::Now { snapshot, effect: Effect::Unknown, holds_keys: true, late: false }
}

/// Returns the state that an outcome leads to, and whether the keys stay held.
fn outcome(mode: IdempotencyMode, effect: Effect, code: Option<ErrorCode>) -> (ClaimState, bool) {
    match (effect, code) {
        (Effect::NotStarted, _) => (ClaimState::Failed, false),
        (Effect::Unknown, _) => (ClaimState::InDoubt, true),
        (Effect::Completed, None) => (ClaimState::Succeeded, true),
        (Effect::Completed, Some(ErrorCode::ToolError)) => {
            (ClaimState::Failed, mode != IdempotencyMode::Keyed)
        }
        (Effect::Completed, Some(_)) => (ClaimState::Failed, true),
    }
}

/// Whether a receipt holds its keys, according to the outcome of its claim.
#[must_use]
pub fn holds_keys(receipt: &Receipt) -> bool {
    match receipt.state {
        ClaimState::Succeeded | ClaimState::Failed => {
            outcome(receipt.idempotency.mode, receipt.effect, receipt.error_code).1
        }
        _ => true,
    }
}

/// Returns the next theoretical arrival time, as one step of a generic cell rate algorithm.
/// `tat_ms` is the stored theoretical arrival time. A burst may contain one minute's calls; further
/// calls are evenly spaced.
///
/// # Errors
/// [`TooEarly`].
pub fn rate(tat_ms: Option<i64>, now_ms: i64, per_min: u64) -> Result<i64, TooEarly> {
    const MINUTE_MS: i64 = 60_000;
    let Some(interval) = i64::try_from(per_min).ok().and_then(|n| MINUTE_MS.checked_div(n)) else {
        // The limit is zero, so no retry time helps; report one minute.
        return Err(TooEarly { retry_after_ms: MINUTE_MS as u64, corrected: None });
    };
    let most = now_ms.saturating_add(MINUTE_MS);
    let tat = tat_ms.unwrap_or(now_ms).clamp(now_ms, most);
    let next = tat + interval.max(1);
    let early = next - most;
    if early > 0 {
        let corrected = tat_ms.is_some_and(|kept| kept > most).then_some(most);
        Err(TooEarly { retry_after_ms: early.unsigned_abs(), corrected })
    } else {
        Ok(next)
    }
}

/// The rejection of a call that exceeds its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooEarly {
    /// The time to wait, in milliseconds.
    pub retry_after_ms: u64,
    /// The arrival time to store instead. Set if a wrong clock stored a time more than one minute
    /// ahead. Without it, all calls would be rejected until that time.
    pub corrected: Option<i64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_fast_clock_has_written_is_corrected() {
        const DAY_MS: i64 = 86_400_000;
        let fast = rate(None, DAY_MS, 60).unwrap();
        let refused = rate(Some(fast), 0, 60).unwrap_err();
        assert_eq!((refused.retry_after_ms, refused.corrected), (1_000, Some(60_000)));
        assert!(rate(refused.corrected, 1_000, 60).is_ok());
        // A correct clock causes no correction.
        let full = (0..60).fold(None, |tat, _| Some(rate(tat, 5, 60).unwrap()));
        assert_eq!(rate(full, 5, 60).unwrap_err().corrected, None);
    }

    proptest! {
        #[test]
        fn no_more_than_the_rate_passes_in_a_minute(
            per_min in 1u64..200,
            gaps in proptest::collection::vec(0i64..3_000, 1..400),
        ) {
            let (mut now, mut tat, mut passed) = (1_000_000i64, None, Vec::new());
            for gap in gaps {
                now += gap;
                if let Ok(next) = rate(tat, now, per_min) {
                    tat = Some(next);
                    passed.push(now);
                }
            }
            // A burst of one minute's calls, plus the calls of the next minute.
            for start in &passed {
                let within = passed.iter().filter(|at| **at >= *start && **at < start + 60_000).count();
                prop_assert!(within as u64 <= 2 * per_min + 1);
            }
            prop_assert_eq!(rate(None, now, 0).unwrap_err().retry_after_ms, 60_000);
        }
    }
}
