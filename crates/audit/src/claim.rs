//! The rules of claims, as pure functions: what a key does, and what an outcome does to it.
//!
//! Every ledger calls these, so that they all decide alike.
//!
//! Path: 6, 9. Doc: call-path.md#idempotency

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{Effect, ErrorCode};

/// What a call with a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRules {
    /// Whether other arguments under the same key are refused.
    pub refuse_different_args: bool,
    /// Whether the tool may be dispatched again where the first outcome is unknown.
    pub rerunnable: bool,
}

/// An earlier claim on the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Where it stands.
    pub state: ClaimState,
    /// Whether its arguments were the same.
    pub same_args: bool,
    /// Whether the writer that owns it is lost.
    pub owner_lost: bool,
}

/// What the earlier claim means for the call.
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
    /// The claim is taken over and the tool dispatched again, with a higher fence.
    Redispatch,
}

/// What an earlier claim means for a call with the same key.
#[must_use]
pub fn next(rules: KeyRules, held: Held) -> Transition {
    // A conflict does not depend on how far the first call came.
    if !held.same_args && rules.refuse_different_args {
        return Transition::Conflict;
    }
    match held.state {
        ClaimState::Succeeded | ClaimState::Failed => {
            Transition::Replay { arguments_differ: !held.same_args }
        }
        ClaimState::Queued | ClaimState::AwaitingInput => Transition::InFlight,
        ClaimState::InFlight if !held.owner_lost => Transition::InFlight,
        // A natural key that is run again must do what the first call asked for.
        ClaimState::InFlight | ClaimState::InDoubt if rules.rerunnable && held.same_args => {
            Transition::Redispatch
        }
        ClaimState::InFlight | ClaimState::InDoubt => Transition::InDoubt,
    }
}

/// What an outcome does to the claim and to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Where the claim stands now.
    pub state: ClaimState,
    /// Whether the key stays held.
    pub holds_key: bool,
}

/// What an outcome does to the claim and to its key: the effect decides.
#[must_use]
pub fn settled(mode: IdempotencyMode, effect: Effect, code: Option<ErrorCode>) -> Settled {
    match (effect, code) {
        (Effect::NotStarted, _) => Settled { state: ClaimState::Failed, holds_key: false },
        (Effect::Unknown, _) => Settled { state: ClaimState::InDoubt, holds_key: true },
        (Effect::Completed, None) => Settled { state: ClaimState::Succeeded, holds_key: true },
        (Effect::Completed, Some(ErrorCode::ToolError)) => {
            Settled { state: ClaimState::Failed, holds_key: mode != IdempotencyMode::Keyed }
        }
        (Effect::Completed, Some(_)) => Settled { state: ClaimState::Failed, holds_key: true },
    }
}

/// One step of a generic cell rate algorithm: `tat_ms` is the theoretical arrival time kept from
/// before. A minute's calls may come at once, then they come evenly.
///
/// # Errors
/// How many milliseconds to wait, where the call comes too early.
pub fn rate(tat_ms: Option<i64>, now_ms: i64, per_min: u64) -> Result<i64, u64> {
    const MINUTE_MS: i64 = 60_000;
    let Some(interval) = i64::try_from(per_min).ok().and_then(|n| MINUTE_MS.checked_div(n)) else {
        // No calls at all: there is no time at which trying again would help; say a minute.
        return Err(MINUTE_MS as u64);
    };
    // What is further ahead than a minute was written by a clock that was wrong.
    let tat = tat_ms.unwrap_or(now_ms).clamp(now_ms, now_ms.saturating_add(MINUTE_MS));
    let next = tat + interval.max(1);
    let early = next - now_ms - MINUTE_MS;
    if early > 0 { Err(early.unsigned_abs()) } else { Ok(next) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATES: [ClaimState; 6] = [
        ClaimState::Queued,
        ClaimState::InFlight,
        ClaimState::AwaitingInput,
        ClaimState::Succeeded,
        ClaimState::Failed,
        ClaimState::InDoubt,
    ];

    #[test]
    fn a_tool_that_may_not_run_again_never_does() {
        for state in STATES {
            for same_args in [true, false] {
                for owner_lost in [true, false] {
                    for refuse_different_args in [true, false] {
                        let rules = KeyRules { refuse_different_args, rerunnable: false };
                        let held = Held { state, same_args, owner_lost };
                        assert_ne!(next(rules, held), Transition::Redispatch, "{held:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn effect_decides_what_holds_the_key() {
        use IdempotencyMode::{Keyed, OnKey, SafeRetry};
        for mode in [Keyed, OnKey, SafeRetry] {
            assert!(!settled(mode, Effect::NotStarted, Some(ErrorCode::AdapterFailed)).holds_key);
            assert_eq!(
                settled(mode, Effect::Unknown, Some(ErrorCode::Timeout)).state,
                ClaimState::InDoubt
            );
            assert!(settled(mode, Effect::Completed, Some(ErrorCode::ResultTooLarge)).holds_key);
            assert!(settled(mode, Effect::Completed, None).holds_key);
            let tool_error = settled(mode, Effect::Completed, Some(ErrorCode::ToolError));
            assert_eq!(tool_error.holds_key, mode != Keyed);
        }
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
            prop_assert_eq!(rate(None, now, 0), Err(60_000));
        }
    }
}
