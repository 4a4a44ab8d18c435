//! The rules of claims, against a plain model, and under many tasks with pauses and clock steps.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use proptest::prelude::*;
use shuttle::rand::Rng;
use shuttle::sync::{Arc, Mutex};
use toolbooth_audit::claim::{Happening, KeyRules, Meaning, Standing, step};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{Effect, ErrorCode};

const MODES: [IdempotencyMode; 4] = [
    IdempotencyMode::None,
    IdempotencyMode::OnKey,
    IdempotencyMode::SafeRetry,
    IdempotencyMode::Keyed,
];

/// What a claim is in plain words: the story of its dispatches. It keeps no state but what was
/// said, and works out every answer from that.
#[derive(Debug, Clone)]
struct Story {
    mode: IdempotencyMode,
    /// One for each dispatch: what was told of it, if anything.
    dispatches: Vec<Option<(Effect, Option<ErrorCode>)>>,
    /// How many times a person spoke.
    words: u64,
    word: Option<bool>,
    lost: bool,
    parked: bool,
}

impl Story {
    fn new(mode: IdempotencyMode) -> Self {
        Self { mode, dispatches: vec![None], words: 0, word: None, lost: false, parked: false }
    }

    fn fence(&self) -> u64 {
        self.dispatches.len() as u64 + self.words
    }

    /// What is known of the whole: a dispatch that came after another says nothing of that one
    /// by not having started.
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

    fn standing(&self) -> Standing {
        Standing {
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
        let (mut story, mut claim) = (Story::new(mode), Standing::FIRST);
        for act in acts {
            prop_assert_eq!(claim, story.standing(), "before {:?}", act);
            let before = claim;
            match act.clone() {
                Act::Call { refuse, rerunnable, same, lost } => {
                    let rules = KeyRules { refuse_different_args: refuse, rerunnable };
                    let meaning = step(claim, Happening::Called { rules, same_args: same, owner_lost: lost });
                    let gone = story.state() == ClaimState::InDoubt || (lost && !story.is_known());
                    let expected = if refuse && !same {
                        Meaning::Conflict
                    } else if story.is_known() {
                        Meaning::Replay { arguments_differ: !same }
                    } else if !gone {
                        Meaning::InFlight
                    } else if rerunnable && same {
                        story.dispatches.push(None);
                        (story.lost, story.parked) = (false, false);
                        Meaning::Dispatch(story.standing())
                    } else {
                        Meaning::InDoubt
                    };
                    prop_assert_eq!(meaning, expected, "{:?}", act);
                    if let Meaning::Dispatch(standing) = meaning {
                        prop_assert!(rerunnable && same);
                        claim = standing;
                    }
                }
                Act::Settle { old, effect, code } => {
                    let fence = claim.fence - u64::from(old);
                    let meaning = step(claim, Happening::Settled { fence, mode, effect, code });
                    let last = story.dispatches.len() - 1;
                    let was = story.told();
                    let doubt = story.state() == ClaimState::InDoubt;
                    let mut then = story.clone();
                    then.dispatches[last] = Some((effect, code));
                    if old {
                        prop_assert_eq!(meaning, Meaning::Stale);
                    } else if story.word.is_some()
                        || (was.is_some() && !(doubt && then.told().unwrap().0 != Effect::Unknown)) {
                        prop_assert_eq!(meaning, Meaning::Already);
                    } else {
                        story = then;
                        let expected = Meaning::Now {
                            standing: story.standing(),
                            effect: story.told().unwrap().0,
                            holds_keys: story.holds(),
                            late: doubt,
                        };
                        prop_assert_eq!(meaning, expected, "{:?}", act);
                        claim = story.standing();
                    }
                }
                Act::Park { old } | Act::Resume { old } => {
                    let fence = claim.fence - u64::from(old);
                    let parks = matches!(act, Act::Park { .. });
                    let happening = if parks { Happening::Parked { fence } } else { Happening::Resumed { fence } };
                    let runs = matches!(story.state(), ClaimState::InFlight | ClaimState::AwaitingInput);
                    match step(claim, happening) {
                        Meaning::Stale => prop_assert!(old || !runs),
                        Meaning::Already => prop_assert!(runs && story.parked == parks),
                        Meaning::Now { standing, .. } => {
                            prop_assert!(runs && !old && story.parked != parks);
                            story.parked = parks;
                            claim = standing;
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Act::Lose => match step(claim, Happening::OwnerLost) {
                    Meaning::Now { standing, effect, holds_keys, .. } => {
                        prop_assert!(story.told().is_none() && !story.lost && story.word.is_none());
                        prop_assert_eq!((effect, holds_keys), (Effect::Unknown, true));
                        story.lost = true;
                        claim = standing;
                    }
                    other => {
                        prop_assert_eq!(other, Meaning::Already);
                        prop_assert!(story.is_known() || story.state() == ClaimState::InDoubt);
                    }
                },
                Act::Resolve { succeeded } => match step(claim, Happening::Resolved { mode, succeeded }) {
                    Meaning::Now { standing, holds_keys, .. } => {
                        prop_assert_eq!(story.state(), ClaimState::InDoubt);
                        story.words += 1;
                        story.word = Some(succeeded);
                        prop_assert_eq!(holds_keys, story.holds());
                        claim = standing;
                    }
                    other => {
                        prop_assert_eq!(other, Meaning::Stale);
                        prop_assert!(story.state() != ClaimState::InDoubt);
                    }
                },
            }
            // What is known stays as it is, and a fence never goes back.
            prop_assert!(claim.fence >= before.fence && claim.attempt >= before.attempt);
            if matches!(before.state, ClaimState::Succeeded | ClaimState::Failed) {
                prop_assert_eq!(claim, before);
            }
        }
    }
}

/// A store in which many writers share one key; time is a number that tasks push forward.
struct World {
    claim: Option<(Standing, usize)>,
    /// When each writer last said that it lives.
    renewed: Vec<u64>,
    now: u64,
    /// The keys' worth of effects: which fence did it.
    effects: Vec<u64>,
    answers: Vec<u64>,
    rerunnable: bool,
}

const LOST_AFTER: u64 = 15;

impl World {
    fn lost(&self, writer: usize) -> bool {
        self.now.saturating_sub(self.renewed[writer]) >= LOST_AFTER
    }

    /// One call's claim, in one transaction; gives the fence of a dispatch.
    fn claim(&mut self, writer: usize) -> Option<u64> {
        let rules = KeyRules { refuse_different_args: true, rerunnable: self.rerunnable };
        self.renewed[writer] = self.now;
        let Some((standing, owner)) = self.claim else {
            self.claim = Some((Standing::FIRST, writer));
            return Some(Standing::FIRST.fence);
        };
        let owner_lost = owner != writer && self.lost(owner);
        match step(standing, Happening::Called { rules, same_args: true, owner_lost }) {
            Meaning::Dispatch(standing) => {
                self.claim = Some((standing, writer));
                Some(standing.fence)
            }
            Meaning::Replay { .. } => {
                let fence = standing.fence;
                self.answers.push(fence);
                None
            }
            Meaning::InFlight | Meaning::InDoubt => None,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, fence: u64, effect: Effect) -> bool {
        let (standing, owner) = self.claim.unwrap();
        let mode = IdempotencyMode::OnKey;
        let code = (effect != Effect::Completed).then_some(ErrorCode::Timeout);
        match step(standing, Happening::Settled { fence, mode, effect, code }) {
            Meaning::Now { standing, .. } => {
                self.claim = Some((standing, owner));
                true
            }
            Meaning::Already => true,
            Meaning::Stale => false,
            other => panic!("{other:?}"),
        }
    }

    fn sweep(&mut self) {
        if let Some((standing, owner)) = self.claim
            && self.lost(owner)
            && let Meaning::Now { standing, .. } = step(standing, Happening::OwnerLost)
        {
            self.claim = Some((standing, owner));
        }
    }
}

/// Several writers call with one key; some sleep in mid-call, as a laptop does; a clock jumps; a
/// sweeper marks what it takes for lost.
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
                    // Asleep for ten minutes before the tool runs.
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
                    // Killed: nothing is ever told.
                    0 => return,
                    1 => drop(world.lock().unwrap().settle(fence, Effect::Unknown)),
                    _ => {
                        let mut world = world.lock().unwrap();
                        let taken = world.settle(fence, Effect::Completed);
                        // Only whoever still holds the claim is believed.
                        let (standing, _) = world.claim.unwrap();
                        assert!(taken || standing.fence > fence);
                        if taken {
                            assert_eq!(standing.state, ClaimState::Succeeded);
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
    let (standing, _) = world.claim.unwrap();
    if rerunnable {
        let mut fences = world.effects.clone();
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), world.effects.len(), "one effect for each dispatch");
    } else {
        assert!(world.effects.len() <= 1, "dispatched twice: {:?}", world.effects);
        assert_eq!(standing.attempt, 1);
    }
    // Replays are of what was settled last, and only of what had an effect.
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
