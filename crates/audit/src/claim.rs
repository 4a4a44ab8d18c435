//! The rules of claims, as pure functions: what a key does, and what an outcome does to it.
//!
//! Every ledger calls these, so that they all decide alike.
//!
//! Path: 6, 9. Doc: call-path.md#idempotency

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::{ClaimState, Receipt};
use toolbooth_contracts::{Effect, ErrorCode};

/// What a call with a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRules {
    /// Whether other arguments under the same key are refused.
    pub refuse_different_args: bool,
    /// Whether the tool may be dispatched again where the first outcome is unknown.
    pub rerunnable: bool,
}

/// A claim, as its rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimSnapshot {
    /// Where it stands.
    pub state: ClaimState,
    /// Grows with each dispatch and each word of a person: what holds an older one matches
    /// nothing.
    pub fence: u64,
    /// How often it was dispatched.
    pub attempt: u32,
    /// Whether the last dispatch has been settled.
    pub settled: bool,
}

impl ClaimSnapshot {
    /// A claim that has just been dispatched for the first time.
    pub const FIRST: Self =
        Self { state: ClaimState::InFlight, fence: 1, attempt: 1, settled: false };
}

/// What happens to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimEvent {
    /// Another call has the same key.
    Called {
        /// What it asks for.
        rules: KeyRules,
        /// Whether its arguments are the same.
        same_args: bool,
        /// Whether the writer that owns the claim is lost.
        owner_lost: bool,
    },
    /// An outcome arrives.
    Settled {
        /// The fence of the dispatch whose outcome it is.
        fence: u64,
        /// The tool's mode.
        mode: IdempotencyMode,
        /// What is known of the effect.
        effect: Effect,
        /// Why the call did not succeed.
        code: Option<ErrorCode>,
    },
    /// The tool waits for somebody's input.
    Suspended {
        /// The fence of the dispatch.
        fence: u64,
    },
    /// The input has come.
    Resumed {
        /// The fence of the dispatch.
        fence: u64,
    },
    /// The writer that owns it is lost.
    OwnerLost,
    /// A person says what came of it: a success, or an error of the tool.
    Resolved {
        /// The tool's mode.
        mode: IdempotencyMode,
        /// Whether it succeeded.
        succeeded: bool,
    },
}

/// What it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The first outcome is given again.
    Replay {
        /// Whether the arguments differed and were not applied.
        arguments_differ: bool,
    },
    /// The first call still runs.
    InFlight,
    /// The first outcome is unknown, and the tool may not be run again.
    InDoubt,
    /// The same key with other arguments.
    Conflict,
    /// The claim is taken over and the tool dispatched again; how the claim stands then.
    Dispatch(ClaimSnapshot),
    /// How the claim stands now.
    Now {
        /// The claim.
        snapshot: ClaimSnapshot,
        /// What is known of the effect of all its dispatches.
        effect: Effect,
        /// Whether its keys stay held.
        holds_keys: bool,
        /// Whether the outcome was given up before it arrived.
        late: bool,
    },
    /// This has happened before: nothing changes.
    Already,
    /// The claim is no longer that of whoever speaks: nothing changes.
    Stale,
}

/// The one rule of claims: what something that happens means for a claim. Pure; every ledger
/// decides by it and by nothing else.
#[must_use]
pub fn step(claim: ClaimSnapshot, claim_event: ClaimEvent) -> Transition {
    use ClaimState::{AwaitingInput, Failed, InDoubt, InFlight, Queued, Succeeded};
    match claim_event {
        ClaimEvent::Called { rules, same_args, owner_lost } => {
            // A conflict does not depend on how far the first call came.
            if !same_args && rules.refuse_different_args {
                return Transition::Conflict;
            }
            let unknown = match claim.state {
                Succeeded | Failed => return Transition::Replay { arguments_differ: !same_args },
                Queued => return Transition::InFlight,
                InFlight | AwaitingInput => owner_lost,
                InDoubt => true,
            };
            // A natural key that is run again must do what the first call asked for.
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
            // A second dispatch that did not start says nothing of what the first one did.
            let effect = match effect {
                Effect::NotStarted if claim.attempt > 1 => Effect::Unknown,
                known => known,
            };
            // What was settled as unknown may still become known; everything else is final.
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
            // The fence stays: an outcome that still arrives is taken.
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

/// What an outcome does to the claim, and whether its keys stay held: the effect decides.
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

/// Whether a receipt holds its keys, by what came of its claim.
#[must_use]
pub fn holds_keys(receipt: &Receipt) -> bool {
    match receipt.state {
        ClaimState::Succeeded | ClaimState::Failed => {
            outcome(receipt.idempotency.mode, receipt.effect, receipt.error_code).1
        }
        _ => true,
    }
}

/// One step of a generic cell rate algorithm: `tat_ms` is the theoretical arrival time kept from
/// before. A minute's calls may come at once, then they come evenly.
///
/// # Errors
/// [`TooEarly`].
pub fn rate(tat_ms: Option<i64>, now_ms: i64, per_min: u64) -> Result<i64, TooEarly> {
    const MINUTE_MS: i64 = 60_000;
    let Some(interval) = i64::try_from(per_min).ok().and_then(|n| MINUTE_MS.checked_div(n)) else {
        // No calls at all: there is no time at which trying again would help; say a minute.
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

/// A call that comes too early for its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooEarly {
    /// How many milliseconds to wait.
    pub retry_after_ms: u64,
    /// The arrival time to keep instead, where a clock that was wrong has written one further ahead
    /// than a minute's calls: else nothing would pass until that time has come.
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
        // A clock that is right corrects nothing.
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
            // A burst of one minute's calls, and what flows in during another minute.
            for start in &passed {
                let within = passed.iter().filter(|at| **at >= *start && **at < start + 60_000).count();
                prop_assert!(within as u64 <= 2 * per_min + 1);
            }
            prop_assert_eq!(rate(None, now, 0).unwrap_err().retry_after_ms, 60_000);
        }
    }
}
