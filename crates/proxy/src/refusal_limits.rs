//! Limits how many refusals are recorded one by one. Above a number per caller, code and minute, they
//! are counted and recorded together in one event. The same holds for each reason for which requests
//! were not authenticated.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use toolbooth_audit::ledger::Moment;
use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};

/// Refusals of one caller with one code that are recorded one by one in a minute.
pub(crate) const SINGLE_MAX: u64 = 300;
/// How long refusals are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Pairs of caller and code that are counted separately; refusals of further callers are counted
/// together.
const NAMES_MAX: usize = 1_000;
/// The name under which refusals of further callers are recorded.
const OTHERS: &str = "(others)";

/// The kind of refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RefusalKind {
    /// A call or a request of a caller, with this code.
    Call(ErrorCode),
    /// A request without valid credentials.
    Authentication,
}

/// The refused caller, or the reason why the caller is unknown; and the kind of refusal.
type Name = (String, RefusalKind);

#[derive(Debug)]
struct Window {
    /// When its first refusal came, on the monotonic clock, and as records write it.
    began: Duration,
    since: String,
    single: u64,
    folded: u64,
}

/// Refusals of the last minute.
#[derive(Debug, Default)]
pub(crate) struct RefusalLimits(Mutex<HashMap<Name, Window>>);

impl RefusalLimits {
    fn windows(&self) -> MutexGuard<'_, HashMap<Name, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a refusal is recorded by itself; otherwise it is counted.
    pub(crate) fn is_single(
        &self,
        name: &str,
        kind: RefusalKind,
        now: Duration,
        at: &Moment,
    ) -> bool {
        let mut windows = self.windows();
        let mut name = (name.to_owned(), kind);
        if windows.len() >= NAMES_MAX && !windows.contains_key(&name) {
            // Windows that are over and without counted refusals are removed to free space.
            windows.retain(|_, window| window.folded > 0 || now < window.began + WINDOW);
            if windows.len() >= NAMES_MAX {
                name.0 = OTHERS.to_owned();
            }
        }
        let begin = |folded| Window { began: now, since: at.text.clone(), single: 0, folded };
        let window = windows.entry(name).or_insert_with(|| begin(0));
        if now >= window.began + WINDOW {
            // Counted refusals without an event yet are added to those of the next minute.
            let since = window.since.clone();
            *window = begin(window.folded);
            if window.folded > 0 {
                window.since = since;
            }
        }
        let is_single = window.single < SINGLE_MAX;
        window.single += u64::from(is_single);
        window.folded += u64::from(!is_single);
        is_single
    }

    /// Takes the events of counted refusals: of all minutes if `all`, otherwise of those that are over.
    pub(crate) fn take(&self, now: Duration, at: &Moment, all: bool) -> Vec<EventBody> {
        let mut events = Vec::new();
        self.windows().retain(|(name, kind), window| {
            let over = now >= window.began + WINDOW;
            if window.folded > 0 && (over || all) {
                events.extend(event(name, *kind, window, at));
                window.folded = 0;
            }
            !over
        });
        events
    }
}

fn event(name: &str, kind: RefusalKind, window: &Window, at: &Moment) -> Option<EventBody> {
    let mut facts = serde_json::Map::new();
    let mut event = match kind {
        RefusalKind::Call(code) => {
            let mut event = EventBody::new(code.event()?, at.text.clone());
            event.caller = Some(name.to_owned());
            event.status = Some(code.status());
            event.error_code = Some(code);
            event
        }
        RefusalKind::Authentication => {
            facts.insert("reason".to_owned(), name.into());
            EventBody::new(AuditEventKind::AuthDenied, at.text.clone())
        }
    };
    facts.insert("folded".to_owned(), window.folded.into());
    facts.insert("since".to_owned(), window.since.clone().into());
    event.facts = Some(facts);
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> (Duration, Moment) {
        let text = format!("2026-01-01T00:00:{seconds:02}.000Z");
        (Duration::from_secs(seconds), Moment { text, epoch_ms: 0 })
    }

    #[test]
    fn what_comes_too_often_is_counted_for_each_caller_and_code() {
        let limits = RefusalLimits::default();
        let refuse = |caller: &str, code, (now, at): (Duration, Moment)| {
            limits.is_single(caller, RefusalKind::Call(code), now, &at)
        };
        let unknown = ErrorCode::UnregisteredTool;
        let single = (0..1_000).filter(|_| refuse("a", unknown, at(1))).count() as u64;
        assert_eq!(single, SINGLE_MAX);
        assert!(refuse("b", unknown, at(1)) && refuse("a", ErrorCode::PolicyDenied, at(1)));
        let (now, moment) = at(2);
        assert!(limits.take(now, &moment, false).is_empty(), "the minute goes on");
        let (later, moment) = (Duration::from_secs(62), at(3).1);
        let told = limits.take(later, &moment, false);
        assert_eq!(told.len(), 1);
        let facts = told[0].facts.clone().unwrap();
        assert_eq!(facts["folded"], 700);
        assert_eq!(
            (told[0].caller.as_deref(), facts["since"].as_str()),
            (Some("a"), Some(at(1).1.text.as_str()))
        );
        assert!(limits.windows().is_empty() && limits.take(later, &moment, true).is_empty());
    }

    #[test]
    fn many_callers_take_bounded_memory_and_none_is_lost() {
        let limits = RefusalLimits::default();
        let mut single = 0;
        for n in 0..10_000 {
            let (now, at) = at(1);
            single += u64::from(limits.is_single(
                &format!("c{n}"),
                RefusalKind::Call(ErrorCode::UnregisteredTool),
                now,
                &at,
            ));
        }
        assert!(limits.windows().len() <= NAMES_MAX + 1);
        let (now, at) = at(2);
        let told: u64 = limits
            .take(now, &at, true)
            .iter()
            .map(|event| event.facts.as_ref().unwrap()["folded"].as_u64().unwrap())
            .sum();
        assert_eq!(single + told, 10_000);
    }
}
