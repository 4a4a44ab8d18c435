//! Finds the keywords of rules in texts.
//!
//! Doc: contract.md#no-secrets

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Match};

/// Bytes of searched texts from which on the faster automaton is made. It saves about as much time for them as
/// its making takes.
const FAST_FROM: usize = 1 << 20;

/// The keywords of rules. Many processes search little text, so a small automaton is made at first, and the fast
/// one, which is ten times larger, once much was searched.
pub(super) struct Keywords {
    words: Arc<[String]>,
    small: AhoCorasick,
    fast: Arc<OnceLock<AhoCorasick>>,
    searched: AtomicUsize,
}

impl Keywords {
    pub(super) fn new(words: Vec<String>) -> Result<Self, BuildError> {
        let small = automaton(AhoCorasickKind::ContiguousNFA, &words)?;
        Ok(Self { words: words.into(), small, fast: Arc::default(), searched: AtomicUsize::new(0) })
    }

    /// Returns all occurrences in a text; they may overlap.
    pub(super) fn find_all<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Match> + 't {
        if self.fast.get().is_none() {
            drop(self.count(text.len()));
        }
        self.automaton().find_overlapping_iter(text)
    }

    /// Returns the automaton that is searched with now.
    fn automaton(&self) -> &AhoCorasick {
        self.fast.get().unwrap_or(&self.small)
    }

    /// Counts searched bytes. Returns the thread that makes the fast automaton, if it begins now.
    fn count(&self, bytes: usize) -> Option<JoinHandle<()>> {
        let before = self.searched.fetch_add(bytes, Ordering::Relaxed);
        if before >= FAST_FROM || before.saturating_add(bytes) < FAST_FROM {
            return None;
        }
        let (words, fast) = (Arc::clone(&self.words), Arc::clone(&self.fast));
        let make = move || match automaton(AhoCorasickKind::DFA, &words) {
            Ok(made) => drop(fast.set(made)),
            Err(error) => tracing::warn!(%error, "the rules for secrets are searched more slowly"),
        };
        let thread = thread::Builder::new().name("toolbooth-rules".to_owned()).spawn(make);
        if let Err(error) = &thread {
            tracing::warn!(%error, "the rules for secrets are searched more slowly");
            // The next mebibyte tries again.
            self.searched.store(0, Ordering::Relaxed);
        }
        thread.ok()
    }
}

fn automaton(kind: AhoCorasickKind, words: &[String]) -> Result<AhoCorasick, BuildError> {
    AhoCorasick::builder().ascii_case_insensitive(true).kind(Some(kind)).build(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_automaton_is_made_once_and_finds_the_same() {
        let words = ["ghp_", "key", "secret_key", "AKIA", "ret"].map(str::to_owned);
        let keywords = Keywords::new(words.to_vec()).unwrap();
        let text = "SECRET_KEY=akia ghp_ghp_ monkeys";
        let found = || -> Vec<_> {
            keywords.find_all(text).map(|hit| (hit.pattern().as_usize(), hit.range())).collect()
        };
        let before = found();
        assert_eq!(before.len(), 7);
        assert!(keywords.count(FAST_FROM - 2 * text.len()).is_none());
        assert_eq!(keywords.automaton().kind(), AhoCorasickKind::ContiguousNFA);
        keywords.count(text.len()).unwrap().join().unwrap();
        assert_eq!(keywords.automaton().kind(), AhoCorasickKind::DFA);
        assert_eq!(found(), before);
        assert!(keywords.count(FAST_FROM).is_none());
    }
}
