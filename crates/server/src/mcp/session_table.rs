//! The sessions of all callers, by id and in the order of their use.
//!
//! Sessions are used far more often than one of them must end. So a session keeps its place in the order when it is
//! used. When it comes first, it moves to that of its last use, or to the end if it is in use.
//!
//! Doc: front-doors.md#sessions

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tokio::time::Instant;

/// The properties of a session that the table reads.
pub(super) trait Tracked {
    /// Its id.
    fn id(&self) -> &str;

    /// The name of its caller.
    fn caller(&self) -> &str;

    /// The time since which it is idle; `None` if it is in use.
    fn idle_since(&self) -> Option<Instant>;
}

/// A time at which a session was used, or was found in use, and the number of the session.
type UseOrder = (Instant, u64);

/// Sessions.
pub(super) struct SessionTable<S> {
    by_id: HashMap<String, (UseOrder, Arc<S>)>,
    by_use: BTreeMap<UseOrder, Arc<S>>,
    by_caller: HashMap<Arc<str>, BTreeSet<UseOrder>>,
    /// The callers, by the number of their sessions.
    callers: BTreeSet<(usize, Arc<str>)>,
    made: u64,
}

impl<S> Default for SessionTable<S> {
    fn default() -> Self {
        Self {
            by_id: HashMap::new(),
            by_use: BTreeMap::new(),
            by_caller: HashMap::new(),
            callers: BTreeSet::new(),
            made: 0,
        }
    }
}

impl<S: Tracked> SessionTable<S> {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of sessions of a caller.
    pub(super) fn of_caller(&self, caller: &str) -> usize {
        self.by_caller.get(caller).map_or(0, BTreeSet::len)
    }

    /// Returns the caller with the most sessions, and their number.
    pub(super) fn most(&self) -> Option<(usize, Arc<str>)> {
        self.callers.last().cloned()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Arc<S>> {
        self.by_id.get(id).map(|(_, session)| session)
    }

    /// Adds a session at the time `now`. One with the same id is replaced.
    pub(super) fn insert(&mut self, session: Arc<S>, now: Instant) {
        self.remove(session.id());
        self.made += 1;
        let position = (session.idle_since().unwrap_or(now), self.made);
        let caller: Arc<str> = session.caller().into();
        let own = self.by_caller.entry(Arc::clone(&caller)).or_default();
        self.callers.remove(&(own.len(), Arc::clone(&caller)));
        own.insert(position);
        self.callers.insert((own.len(), caller));
        self.by_id.insert(session.id().to_owned(), (position, Arc::clone(&session)));
        self.by_use.insert(position, session);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Arc<S>> {
        let (position, session) = self.by_id.remove(id)?;
        self.by_use.remove(&position);
        let caller: Arc<str> = session.caller().into();
        if let Some(own) = self.by_caller.get_mut(&caller) {
            self.callers.remove(&(own.len(), Arc::clone(&caller)));
            own.remove(&position);
            match own.len() {
                0 => drop(self.by_caller.remove(&caller)),
                left => drop(self.callers.insert((left, caller))),
            }
        }
        Some(session)
    }

    /// Removes the session of a caller that has been idle for the longest time at `now`; `None` if none is idle.
    pub(super) fn take_longest_idle(&mut self, caller: &str, now: Instant) -> Option<Arc<S>> {
        let (mut after, mut busy) = (Bound::Unbounded, Vec::new());
        let found = loop {
            let own = self.by_caller.get(caller);
            let next = own.and_then(|own| own.range((after, Bound::Unbounded)).next().copied());
            let Some(position) = next else { break None };
            let Some(session) = self.by_use.get(&position) else { break None };
            match session.idle_since() {
                Some(since) if since <= position.0 => break Some(session.id().to_owned()),
                Some(since) => self.advance(position, since),
                None => {
                    after = Bound::Excluded(position);
                    busy.push(position);
                }
            }
        };
        // Where all are in use, their order does not matter.
        let found = found?;
        self.advance_all(busy, now);
        self.remove(&found)
    }

    /// Removes the sessions that have been idle since `before` or longer at `now`.
    pub(super) fn take_idle_since(&mut self, before: Instant, now: Instant) -> Vec<Arc<S>> {
        let (mut after, mut busy, mut idle) = (Bound::Unbounded, Vec::new(), Vec::new());
        while let Some((position, session)) = self.by_use.range((after, Bound::Unbounded)).next()
            && position.0 <= before
        {
            let position = *position;
            match session.idle_since() {
                Some(since) if since <= before => {
                    after = Bound::Excluded(position);
                    idle.push(session.id().to_owned());
                }
                Some(since) => self.advance(position, since),
                None => {
                    after = Bound::Excluded(position);
                    busy.push(position);
                }
            }
        }
        self.advance_all(busy, now);
        idle.iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Removes all sessions.
    pub(super) fn take_all(&mut self) -> Vec<Arc<S>> {
        std::mem::take(self).by_use.into_values().collect()
    }

    /// Moves sessions that are in use at `now` to the end of the order.
    fn advance_all(&mut self, busy: Vec<UseOrder>, now: Instant) {
        busy.into_iter().for_each(|position| self.advance(position, now));
    }

    /// Moves a session to a later time.
    fn advance(&mut self, position: UseOrder, used: Instant) {
        let later = (used.max(position.0), position.1);
        let Some(session) = self.by_use.remove(&position) else { return };
        if let Some(own) = self.by_caller.get_mut(session.caller()) {
            own.remove(&position);
            own.insert(later);
        }
        if let Some((own, _)) = self.by_id.get_mut(session.id()) {
            *own = later;
        }
        self.by_use.insert(later, session);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// A session, and the time since which it is idle.
    struct Own {
        id: String,
        caller: &'static str,
        idle: Mutex<Option<Instant>>,
    }

    impl Tracked for Own {
        fn id(&self) -> &str {
            &self.id
        }

        fn caller(&self) -> &str {
            self.caller
        }

        fn idle_since(&self) -> Option<Instant> {
            *self.idle.lock().unwrap()
        }
    }

    const CALLERS: [&str; 3] = ["a", "b", "c"];

    #[derive(Debug, Clone)]
    enum Step {
        Make(usize),
        /// Uses a session; whether it stays in use.
        Use(usize, bool),
        TakeLongestIdle(usize),
        TakeIdleFor(u64),
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3_usize).prop_map(Step::Make),
            6 => (0..40_usize, any::<bool>()).prop_map(|(index, stays)| Step::Use(index, stays)),
            2 => (0..3_usize).prop_map(Step::TakeLongestIdle),
            1 => (0..60_u64).prop_map(Step::TakeIdleFor),
            1 => (0..40_usize).prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn sessions_end_in_the_order_of_their_last_use(
            steps in proptest::collection::vec(step(), 0..120),
        ) {
            // Times of uses are in the past, and later from step to step.
            let began = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
            let mut table = SessionTable::default();
            let mut all: Vec<Arc<Own>> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let now = began + Duration::from_millis(number as u64);
                let index = |index: usize| (!all.is_empty()).then(|| index % all.len());
                match step {
                    Step::Make(caller) => {
                        let idle = Mutex::new(Some(now));
                        let own = Own { id: number.to_string(), caller: CALLERS[caller], idle };
                        let own = Arc::new(own);
                        table.insert(Arc::clone(&own), now);
                        all.push(own);
                    }
                    Step::Use(own, stays) => if let Some(own) = index(own) {
                        let mut idle = all[own].idle.lock().unwrap();
                        *idle = match *idle {
                            _ if stays => None,
                            // It becomes idle later than the table may have asked it.
                            None => Some(Instant::now()),
                            Some(since) => Some(since.max(now)),
                        };
                    },
                    Step::TakeLongestIdle(caller) => {
                        let own = all.iter().filter(|own| own.caller == CALLERS[caller]);
                        let expected =
                            own.filter_map(|own| own.idle_since().map(|since| (since, own))).min_by_key(|(since, _)| *since);
                        let expected = expected.map(|(since, _)| since);
                        let found = table.take_longest_idle(CALLERS[caller], Instant::now());
                        prop_assert_eq!(found.as_ref().and_then(|own| own.idle_since()), expected);
                        all.retain(|own| found.as_ref().is_none_or(|found| found.id != own.id));
                    }
                    Step::TakeIdleFor(ms) => {
                        let before = now.checked_sub(Duration::from_millis(ms)).unwrap();
                        let found = table.take_idle_since(before, Instant::now());
                        let is_old = |own: &Own| own.idle_since().is_some_and(|since| since <= before);
                        prop_assert_eq!(found.len(), all.iter().filter(|own| is_old(own)).count());
                        prop_assert!(found.iter().all(|own| is_old(own)));
                        all.retain(|own| !is_old(own));
                    }
                    Step::Remove(own) => if let Some(own) = index(own) {
                        let own = all.remove(own);
                        prop_assert!(table.remove(&own.id).is_some());
                        prop_assert!(table.remove(&own.id).is_none());
                    },
                }
                prop_assert_eq!(table.len(), all.len());
                prop_assert!(all.iter().all(|own| table.get(&own.id).is_some()));
                let count = |caller: &str| all.iter().filter(|own| own.caller == caller).count();
                for caller in CALLERS {
                    prop_assert_eq!(table.of_caller(caller), count(caller));
                }
                let most = CALLERS.map(|caller| (count(caller), caller)).into_iter().max();
                let most = most.filter(|(count, _)| *count > 0);
                let own = table.most();
                prop_assert_eq!(own.as_ref().map(|(count, caller)| (*count, &**caller)), most);
            }
            prop_assert_eq!(table.take_all().len(), all.len());
            prop_assert_eq!((table.len(), table.most()), (0, None));
        }
    }
}
