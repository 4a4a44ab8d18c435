//! Tests the rules of claims against a plain model, and with many tasks, pauses and clock steps.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use proptest::prelude::*;
use shuttle::rand::Rng;
use shuttle::sync::{Arc, Mutex};
use toolbooth_audit::claim::{ClaimEvent, ClaimSnapshot, KeyRules, Transition, step};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{Effect, ErrorCode};

const MODES: [IdempotencyMode; 4] = [
    IdempotencyMode::None,
    IdempotencyMode::OnKey,
    IdempotencyMode::SafeRetry,
    IdempotencyMode::Keyed,
];

/// The plain model of a claim: the simulation of its dispatches. It stores only the reported facts,
/// and derives every answer from them.
#[derive(Debug, Clone)]
struct Simulation {
    mode: IdempotencyMode,
    /// One entry for each dispatch: its reported outcome, if any.
    dispatches: Vec<Option<(Effect, Option<ErrorCode>)>>,
    /// The number of operator resolutions.
    words: u64,
    word: Option<bool>,
    lost: bool,
    parked: bool,
}

impl Simulation {
    fn new(mode: IdempotencyMode) -> Self {
        Self { mode, dispatches: vec![None], words: 0, word: None, lost: false, parked: false }
    }

    fn fence(&self) -> u64 {
        self.dispatches.len() as u64 + self.words
    }

    /// Returns the known outcome of all dispatches. A later dispatch that did not start does not
    /// reveal the effect of an earlier one.
    fn told(&self) -> Option<(Effect, Option<ErrorCode>)> {
        let last = self.dispatches.last().copied().flatten();
        last.map(|(effect, code)| match effect {
            Effect::NotStarted if self.dispatches.len() > 1 => (Effect::Unknown, code),
            known => (known, code),
        })
    }

    fn state(&self) -> ClaimState {
        match (self.word, self.told()) {
            (Some(true), _) => ClaimState::Succeeded,
            (Some(false), _) => ClaimState::Failed,
            (None, Some((Effect::Unknown, _))) => ClaimState::InDoubt,
            (None, Some((Effect::Completed, None))) => ClaimState::Succeeded,
            (None, Some(_)) => ClaimState::Failed,
            (None, None) if self.lost => ClaimState::InDoubt,
            (None, None) if self.parked => ClaimState::AwaitingInput,
            (None, None) => ClaimState::InFlight,
        }
    }

    fn holds(&self) -> bool {
        let keyed = self.mode == IdempotencyMode::Keyed;
        match (self.word, self.told()) {
            (Some(succeeded), _) => succeeded || !keyed,
            (None, Some((Effect::NotStarted, _))) => false,
            (None, Some((Effect::Completed, Some(ErrorCode::ToolError)))) => !keyed,
            _ => true,
        }
    }

    fn is_known(&self) -> bool {
        matches!(self.state(), ClaimState::Succeeded | ClaimState::Failed)
    }

    fn snapshot(&self) -> ClaimSnapshot {
        ClaimSnapshot {
            state: self.state(),
            fence: self.fence(),
            attempt: self.dispatches.len() as u32,
            settled: self.word.is_some() || self.told().is_some(),
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Call { refuse: bool, rerunnable: bool, same: bool, lost: bool },
    Settle { old: bool, effect: Effect, code: Option<ErrorCode> },
    Park { old: bool },
    Resume { old: bool },
    Lose,
    Resolve { succeeded: bool },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let outcome = prop_oneof![
        Just((Effect::Completed, None)),
        Just((Effect::Completed, Some(ErrorCode::ToolError))),
        Just((Effect::Completed, Some(ErrorCode::ResultTooLarge))),
        Just((Effect::NotStarted, Some(ErrorCode::AdapterFailed))),
        Just((Effect::Unknown, Some(ErrorCode::Timeout))),
    ];
    let act = prop_oneof![
        4 => any::<(bool, bool, bool, bool)>()
            .prop_map(|(refuse, rerunnable, same, lost)| Act::Call { refuse, rerunnable, same, lost }),
        4 => (any::<bool>(), outcome)
            .prop_map(|(old, (effect, code))| Act::Settle { old, effect, code }),
        1 => any::<bool>().prop_map(|old| Act::Park { old }),
        1 => any::<bool>().prop_map(|old| Act::Resume { old }),
        2 => Just(Act::Lose),
        1 => any::<bool>().prop_map(|succeeded| Act::Resolve { succeeded }),
    ];
    proptest::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn the_rules_do_what_a_plain_model_does(mode in 0usize..4, acts in acts()) {
        let mode = MODES[mode];
        let (mut simulation, mut claim) = (Simulation::new(mode), ClaimSnapshot::FIRST);
        for act in acts {
            prop_assert_eq!(claim, simulation.snapshot(), "before {:?}", act);
            let before = claim;
            match act.clone() {
                Act::Call { refuse, rerunnable, same, lost } => {
                    let rules = KeyRules { refuse_different_args: refuse, rerunnable };
                    let transition = step(claim, ClaimEvent::Called { rules, same_args: same, owner_lost: lost });
                    let gone = simulation.state() == ClaimState::InDoubt || (lost && !simulation.is_known());
                    let expected = if refuse && !same {
                        Transition::Conflict
                    } else if simulation.is_known() {
                        Transition::Replay { arguments_differ: !same }
                    } else if !gone {
                        Transition::InFlight
                    } else if rerunnable && same {
                        simulation.dispatches.push(None);
                        (simulation.lost, simulation.parked) = (false, false);
                        Transition::Dispatch(simulation.snapshot())
                    } else {
                        Transition::InDoubt
                    };
                    prop_assert_eq!(transition, expected, "{:?}", act);
                    if let Transition::Dispatch(snapshot) = transition {
                        prop_assert!(rerunnable && same);
                        claim = snapshot;
                    }
                }
                Act::Settle { old, effect, code } => {
                    let fence = claim.fence - u64::from(old);
                    let transition = step(claim, ClaimEvent::Settled { fence, mode, effect, code });
                    let last = simulation.dispatches.len() - 1;
                    let was = simulation.told();
                    let doubt = simulation.state() == ClaimState::InDoubt;
                    let mut then = simulation.clone();
                    then.dispatches[last] = Some((effect, code));
                    if old {
                        prop_assert_eq!(transition, Transition::Stale);
                    } else if simulation.word.is_some()
                        || (was.is_some() && !(doubt && then.told().unwrap().0 != Effect::Unknown)) {
                        prop_assert_eq!(transition, Transition::Already);
                    } else {
                        simulation = then;
                        let expected = Transition::Now {
                            snapshot: simulation.snapshot(),
                            effect: simulation.told().unwrap().0,
                            holds_keys: simulation.holds(),
                            late: doubt,
                        };
                        prop_assert_eq!(transition, expected, "{:?}", act);
                        claim = simulation.snapshot();
                    }
                }
                Act::Park { old } | Act::Resume { old } => {
                    let fence = claim.fence - u64::from(old);
                    let parks = matches!(act, Act::Park { .. });
                    let claim_event = if parks { ClaimEvent::Suspended { fence } } else { ClaimEvent::Resumed { fence } };
                    let runs = matches!(simulation.state(), ClaimState::InFlight | ClaimState::AwaitingInput);
                    match step(claim, claim_event) {
                        Transition::Stale => prop_assert!(old || !runs),
                        Transition::Already => prop_assert!(runs && simulation.parked == parks),
                        Transition::Now { snapshot, .. } => {
                            prop_assert!(runs && !old && simulation.parked != parks);
                            simulation.parked = parks;
                            claim = snapshot;
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Act::Lose => match step(claim, ClaimEvent::OwnerLost) {
                    Transition::Now { snapshot, effect, holds_keys, .. } => {
                        prop_assert!(simulation.told().is_none() && !simulation.lost && simulation.word.is_none());
                        prop_assert_eq!((effect, holds_keys), (Effect::Unknown, true));
                        simulation.lost = true;
                        claim = snapshot;
                    }
                    other => {
                        prop_assert_eq!(other, Transition::Already);
                        prop_assert!(simulation.is_known() || simulation.state() == ClaimState::InDoubt);
                    }
                },
                Act::Resolve { succeeded } => match step(claim, ClaimEvent::Resolved { mode, succeeded }) {
                    Transition::Now { snapshot, holds_keys, .. } => {
                        prop_assert_eq!(simulation.state(), ClaimState::InDoubt);
                        simulation.words += 1;
                        simulation.word = Some(succeeded);
                        prop_assert_eq!(holds_keys, simulation.holds());
                        claim = snapshot;
                    }
                    other => {
                        prop_assert_eq!(other, Transition::Stale);
                        prop_assert!(simulation.state() != ClaimState::InDoubt);
                    }
                },
            }
            // A known outcome does not change, and a fence never decreases.
            prop_assert!(claim.fence >= before.fence && claim.attempt >= before.attempt);
            if matches!(before.state, ClaimState::Succeeded | ClaimState::Failed) {
                prop_assert_eq!(claim, before);
            }
        }
    }
}

/// A store in which many writers share one key; time is a number that tasks increment.
struct World {
    claim: Option<(ClaimSnapshot, usize)>,
    /// The time of the last lease renewal of each writer.
    renewed: Vec<u64>,
    now: u64,
    /// The effects under the key: the fence of each.
    effects: Vec<u64>,
    answers: Vec<u64>,
    rerunnable: bool,
}

const LOST_AFTER: u64 = 15;

impl World {
    fn lost(&self, writer: usize) -> bool {
        self.now.saturating_sub(self.renewed[writer]) >= LOST_AFTER
    }

    /// Makes the claim of one call in one transaction; returns the fence of a dispatch.
    fn claim(&mut self, writer: usize) -> Option<u64> {
        let rules = KeyRules { refuse_different_args: true, rerunnable: self.rerunnable };
        self.renewed[writer] = self.now;
        let Some((snapshot, owner)) = self.claim else {
            self.claim = Some((ClaimSnapshot::FIRST, writer));
            return Some(ClaimSnapshot::FIRST.fence);
        };
        let owner_lost = owner != writer && self.lost(owner);
        match step(snapshot, ClaimEvent::Called { rules, same_args: true, owner_lost }) {
            Transition::Dispatch(snapshot) => {
                self.claim = Some((snapshot, writer));
                Some(snapshot.fence)
            }
            Transition::Replay { .. } => {
                let fence = snapshot.fence;
                self.answers.push(fence);
                None
            }
            Transition::InFlight | Transition::InDoubt => None,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, fence: u64, effect: Effect) -> bool {
        let (snapshot, owner) = self.claim.unwrap();
        let mode = IdempotencyMode::OnKey;
        let code = (effect != Effect::Completed).then_some(ErrorCode::Timeout);
        match step(snapshot, ClaimEvent::Settled { fence, mode, effect, code }) {
            Transition::Now { snapshot, .. } => {
                self.claim = Some((snapshot, owner));
                true
            }
            Transition::Already => true,
            Transition::Stale => false,
            other => panic!("{other:?}"),
        }
    }

    fn sweep(&mut self) {
        if let Some((snapshot, owner)) = self.claim
            && self.lost(owner)
            && let Transition::Now { snapshot, .. } = step(snapshot, ClaimEvent::OwnerLost)
        {
            self.claim = Some((snapshot, owner));
        }
    }
}

/// Runs several writers that call with one key. Some sleep during a call, as a laptop does; a clock
/// jumps; a sweeper marks claims that it considers lost.
fn contended(rerunnable: bool) {
    const WRITERS: usize = 4;
    let world = Arc::new(Mutex::new(World {
        claim: None,
        renewed: vec![0; WRITERS],
        now: 0,
        effects: Vec::new(),
        answers: Vec::new(),
        rerunnable,
    }));
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let world = Arc::clone(&world);
        tasks.push(shuttle::thread::spawn(move || {
            for _ in 0..3 {
                let Some(fence) = world.lock().unwrap().claim(writer) else {
                    shuttle::thread::yield_now();
                    continue;
                };
                if shuttle::rand::thread_rng().gen_bool(0.3) {
                    // The writer sleeps for ten minutes before the tool runs.
                    world.lock().unwrap().now += 600;
                    shuttle::thread::yield_now();
                }
                world.lock().unwrap().effects.push(fence);
                shuttle::thread::yield_now();
                if shuttle::rand::thread_rng().gen_bool(0.3) {
                    world.lock().unwrap().now += 600;
                    shuttle::thread::yield_now();
                }
                match shuttle::rand::thread_rng().gen_range(0..4) {
                    // The writer is killed and never reports an outcome.
                    0 => return,
                    1 => drop(world.lock().unwrap().settle(fence, Effect::Unknown)),
                    _ => {
                        let mut world = world.lock().unwrap();
                        let taken = world.settle(fence, Effect::Completed);
                        // Only the current holder of the claim can settle it.
                        let (snapshot, _) = world.claim.unwrap();
                        assert!(taken || snapshot.fence > fence);
                        if taken {
                            assert_eq!(snapshot.state, ClaimState::Succeeded);
                        }
                    }
                }
            }
        }));
    }
    let sweeper = {
        let world = Arc::clone(&world);
        shuttle::thread::spawn(move || {
            for _ in 0..6 {
                let mut world = world.lock().unwrap();
                // A clock may also be set back.
                let back = shuttle::rand::thread_rng().gen_bool(0.2);
                world.now = if back { world.now.saturating_sub(30) } else { world.now + 5 };
                world.sweep();
                drop(world);
                shuttle::thread::yield_now();
            }
        })
    };
    tasks.into_iter().for_each(|task| task.join().unwrap());
    sweeper.join().unwrap();
    let world = world.lock().unwrap();
    let (snapshot, _) = world.claim.unwrap();
    if rerunnable {
        let mut fences = world.effects.clone();
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), world.effects.len(), "one effect for each dispatch");
    } else {
        assert!(world.effects.len() <= 1, "dispatched twice: {:?}", world.effects);
        assert_eq!(snapshot.attempt, 1);
    }
    // Replays return only settled outcomes that had an effect.
    assert!(world.answers.iter().all(|fence| world.effects.contains(fence)));
}

#[test]
fn a_key_is_dispatched_once_however_tasks_and_clocks_run() {
    shuttle::check_random(|| contended(false), 3_000);
    shuttle::check_pct(|| contended(false), 1_000, 3);
}

#[test]
fn a_tool_that_may_run_again_has_one_effect_for_each_dispatch() {
    shuttle::check_random(|| contended(true), 3_000);
    shuttle::check_pct(|| contended(true), 1_000, 3);
}
