//! Windows over earlier calls: their declarations, which calls they count, and how rules read them.
//!
//! Path: 5. Doc: policy.md#history

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cedar_policy_core::ast::Value as RuleValue;
use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use toolbooth_contracts::history::{
    Amount, CountedIn, DeclaredWindow, History, WindowName, WindowSeen,
};
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::{CallContext, ToolPattern};

use super::arguments::{ArgumentType, ArgumentTypes};
use super::reads::Reads;
use super::{numbers, values};
use crate::engine::Uncountable;
use crate::error::{EngineError, SettingError};

/// The member of the context that holds the windows.
pub(super) const HISTORY: &str = "history";
/// Maximum number of windows.
const WINDOWS_MAX: usize = 100;
/// Maximum length of a window.
const LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Maximum bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Words of the rule language that are no names.
const RESERVED: [&str; 9] = ["true", "false", "if", "then", "else", "in", "is", "like", "has"];

/// Whose calls a window counts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Within {
    /// Those of one caller.
    #[default]
    Caller,
    /// Those of one session of a caller, as the agent claims it.
    Session,
    /// Those of one epic of a caller, as the agent claims it.
    Epic,
}

impl Within {
    fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Session => "session",
            Self::Epic => "epic",
        }
    }
}

/// A window over earlier calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryWindow {
    /// The tools whose calls it counts.
    pub tool: ToolPattern,
    /// How long a call counts.
    pub length: Duration,
    /// The JSON pointer (RFC 6901) of the argument that it sums.
    pub sum: Option<String>,
    /// Whose calls it counts together.
    pub within: Within,
}

impl HistoryWindow {
    fn check(&self) -> Result<(), String> {
        if self.length.is_zero() || self.length > LENGTH_MAX {
            return Err("its length is not between 1 second and 366 days".to_owned());
        }
        match &self.sum {
            Some(sum) if !sum.starts_with('/') => {
                Err(format!("`{sum}` is no JSON pointer such as `/amount`"))
            }
            _ => Ok(()),
        }
    }

    fn length_ms(&self) -> i64 {
        i64::try_from(self.length.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns the name under which the calls of a caller are counted. It does not depend on the length,
    /// so that another length counts the calls that there were.
    fn key(&self, caller: &str, claimed: &CallContext) -> String {
        let claim = match self.within {
            Within::Caller => None,
            Within::Session => Some(&claimed.session_id),
            Within::Epic => Some(&claimed.epic_id),
        };
        let (tool, sum, within) = (self.tool.as_str(), &self.sum, self.within.as_str());
        let name = serde_json::to_vec(&(tool, sum, within, caller, claim)).unwrap_or_default();
        HEXLOWER.encode(&Sha256::digest(name))
    }

    /// Returns the amount of a call.
    ///
    /// # Errors
    /// The reason, if it is not there or not exact.
    fn amount(&self, arguments: &Value) -> Result<Option<Amount>, String> {
        let Some(pointer) = &self.sum else { return Ok(None) };
        let wrong = |what: &str| Err(format!("the argument `{pointer}` {what}"));
        match arguments.pointer(pointer) {
            Some(Value::Number(number)) => match numbers::ten_thousandths(number) {
                Some(exact) => match Amount::of_ten_thousandths(exact) {
                    Some(amount) => Ok(Some(amount)),
                    None => wrong("is negative"),
                },
                None => wrong("has more than four digits after the point, or is too large"),
            },
            Some(_) => wrong("is no number"),
            None => wrong("is missing"),
        }
    }
}

/// Why a window cannot sum an argument of a tool.
#[derive(Debug)]
pub(super) struct Unsummed {
    pub(super) reason: String,
    /// The JSON pointer of the number that may be meant.
    pub(super) nearest: Option<String>,
}

/// The windows that a policy declares, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryWindows(BTreeMap<String, HistoryWindow>);

impl HistoryWindows {
    /// Checks the declarations.
    ///
    /// # Errors
    /// [`SettingError`] with the name of the window that is not valid.
    pub fn new(windows: BTreeMap<String, HistoryWindow>) -> Result<Self, SettingError> {
        let wrong = |name: &str, reason: &str| {
            Err(SettingError::Window { window: name.to_owned(), reason: reason.to_owned() })
        };
        if let Some(name) = windows.keys().nth(WINDOWS_MAX) {
            return wrong(name, &format!("there are more than {WINDOWS_MAX} windows"));
        }
        for (name, window) in &windows {
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let is_name = name.bytes().all(is_word)
                && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
                && name.len() <= NAME_BYTES_MAX
                && !RESERVED.contains(&name.as_str());
            if !is_name {
                return wrong(name, "its name is not made of letters, digits and `_`");
            }
            if let Err(what) = window.check() {
                return wrong(name, &what);
            }
        }
        Ok(Self(windows))
    }

    /// Whether no window is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a window with this name is declared.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names of all windows.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns all windows with their names.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &HistoryWindow)> {
        self.0.iter()
    }

    /// Whether one of the windows with these names sums an argument.
    pub(super) fn has_sums(&self, names: &[String]) -> bool {
        names.iter().filter_map(|name| self.0.get(name)).any(|window| window.sum.is_some())
    }

    /// Returns those of the windows with these names that sum an argument which a tool does not have, or which is
    /// no number.
    pub(super) fn unsummed(
        &self,
        names: &[String],
        arguments: &ArgumentTypes,
    ) -> Vec<(String, Unsummed)> {
        let sums = names.iter().filter_map(|name| Some((name, self.0.get(name)?.sum.as_deref()?)));
        let unsummed = sums.filter_map(|(name, sum)| {
            let reason = match arguments.at(sum)? {
                Some(ArgumentType::Whole | ArgumentType::Decimal) => return None,
                Some(_) => format!("its argument `{sum}` is no number"),
                None => format!("it has no argument `{sum}`"),
            };
            let numbers = arguments.numbers();
            let nearest = nearest(sum, numbers.iter().map(String::as_str)).map(str::to_owned);
            Some((name.clone(), Unsummed { reason, nearest }))
        });
        unsummed.collect()
    }

    /// Returns the names of the windows that count the calls of a tool.
    pub(super) fn counting(&self, tool_id: &str) -> Vec<String> {
        let counting = self.0.iter().filter(|(_, window)| window.tool.selects(tool_id));
        counting.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the names of the windows that rules read.
    pub(super) fn read_by(&self, reads: &Reads) -> BTreeSet<String> {
        let Some(history) = reads.of(HISTORY) else { return BTreeSet::new() };
        let is_read = |name: &&String| history.of(name).is_some();
        self.0.keys().filter(is_read).cloned().collect()
    }

    /// Returns the first name that rules read and that is not declared.
    pub(super) fn undeclared(&self, reads: &Reads) -> Option<String> {
        let history = reads.of(HISTORY)?;
        history.parts().map(|(name, _)| name).find(|name| !self.has(name)).cloned()
    }

    /// Returns the first of these windows that is keyed by a claim of the agent, and the name of
    /// the claim.
    pub(super) fn claimed<'w>(&self, names: &'w BTreeSet<String>) -> Option<(&'w str, &str)> {
        names.iter().find_map(|name| {
            let within = self.0.get(name)?.within;
            (within != Within::Caller).then(|| (name.as_str(), within.as_str()))
        })
    }

    /// Returns which calls each window counts, and for how long.
    pub(super) fn declared(&self) -> Vec<DeclaredWindow> {
        let declared = |window: &HistoryWindow| DeclaredWindow {
            tool: window.tool.clone(),
            length_ms: window.length_ms(),
        };
        self.0.values().map(declared).collect()
    }

    /// Returns the windows of a call by their names.
    pub(super) fn of_call(
        &self,
        names: &BTreeSet<String>,
        caller: &str,
        claimed: &CallContext,
    ) -> BTreeMap<String, WindowName> {
        let windows = names.iter().filter_map(|name| {
            let window = self.0.get(name)?;
            let (key, length_ms) = (window.key(caller, claimed), window.length_ms());
            Some((name.clone(), WindowName { key, length_ms }))
        });
        windows.collect()
    }

    /// Returns the amounts that a call adds to the windows with these names.
    ///
    /// # Errors
    /// [`Uncountable`].
    pub(super) fn counted(
        &self,
        names: &[String],
        caller: &str,
        claimed: &CallContext,
        arguments: &Value,
    ) -> Result<Vec<CountedIn>, Uncountable> {
        let mut counted: Vec<CountedIn> = Vec::new();
        for (name, window) in names.iter().filter_map(|name| Some((name, self.0.get(name)?))) {
            let amount = window.amount(arguments).map_err(|reason| Uncountable {
                window: name.clone(),
                reason: format!("the window `{name}` cannot count the call: {reason}"),
            })?;
            let (key, length_ms) = (window.key(caller, claimed), window.length_ms());
            match counted.iter_mut().find(|known| known.key == key) {
                // Windows that differ in their lengths only count together.
                Some(known) => known.length_ms = known.length_ms.max(length_ms),
                None => counted.push(CountedIn { key, amount, length_ms }),
            }
        }
        Ok(counted)
    }

    /// Whether one of the windows with these names sums an argument at a JSON pointer, or beneath it.
    pub(super) fn sums_at(&self, names: &[String], pointer: &str) -> bool {
        let sums = names.iter().filter_map(|name| self.0.get(name)?.sum.as_deref());
        sums.into_iter().any(|sum| {
            let beneath = |whole: &str, part: &str| {
                whole
                    .strip_prefix(part)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            beneath(sum, pointer) || beneath(pointer, sum)
        })
    }

    /// Returns the type of the windows, as a JSON schema of Cedar states it.
    pub(super) fn cedar(&self) -> Value {
        let windows = self.0.iter().map(|(name, window)| {
            let mut attributes = Map::new();
            attributes.insert("count".to_owned(), json!({ "type": "Long" }));
            let since = json!({ "type": "Extension", "name": "duration", "required": false });
            attributes.insert("since".to_owned(), since);
            if window.sum.is_some() {
                let sum = json!({ "type": "Extension", "name": "decimal" });
                attributes.insert("sum".to_owned(), sum);
            }
            (name.clone(), json!({ "type": "Record", "attributes": attributes }))
        });
        let windows: Map<String, Value> = windows.collect();
        json!({ "type": "Record", "attributes": windows })
    }

    /// Returns the parts of the windows that rules read.
    ///
    /// # Errors
    /// [`EngineError`], if one is not known, or a number is too large for a rule.
    pub(super) fn context(
        &self,
        names: &BTreeSet<String>,
        reads: &Reads,
        history: &History,
    ) -> Result<RuleValue, EngineError> {
        let failed = |what: String| EngineError(what);
        let mut windows = Vec::new();
        let history_reads = reads.of(HISTORY);
        for (name, window) in names.iter().filter_map(|name| Some((name, self.0.get(name)?))) {
            let seen = history.get(name);
            let seen = seen.ok_or_else(|| failed(format!("the window `{name}` is not known")))?;
            let WindowSeen { count, sum, since_ms } = seen;
            let reads = history_reads.as_deref().and_then(|reads| reads.of(name));
            let is_read = |member| reads.as_ref().is_some_and(|reads| reads.of(member).is_some());
            let too_large = || failed(format!("the window `{name}` is larger than rules can read"));
            let count = i64::try_from(*count).map_err(|_| too_large())?;
            let mut members = vec![("count".to_owned(), values::whole(count))];
            if let Some(since_ms) = since_ms.filter(|_| is_read("since")) {
                members.push(("since".to_owned(), values::duration(since_ms)?));
            }
            if window.sum.is_some() && is_read("sum") {
                let sum = i64::try_from(*sum).ok().and_then(Amount::of_ten_thousandths);
                let sum = sum.ok_or_else(too_large)?.to_string();
                members.push(("sum".to_owned(), values::decimal(sum)?));
            }
            windows.push((name.clone(), values::record(members)));
        }
        Ok(values::record(windows))
    }

    /// Describes the values of each window that rules have read, in one sentence.
    pub(super) fn told<'h>(
        &'h self,
        history: impl Iterator<Item = (&'h String, &'h WindowSeen)> + 'h,
    ) -> impl Iterator<Item = String> + 'h {
        history.filter_map(|(name, seen)| Some(told(name, self.0.get(name)?, seen)))
    }

    /// Returns the declarations as a document.
    pub(super) fn document(&self) -> Value {
        let windows = self.0.iter().map(|(name, window)| {
            let HistoryWindow { tool, sum, within, .. } = window;
            let (length_ms, within) = (window.length_ms(), within.as_str());
            let window =
                json!({ "tool": tool, "windowMs": length_ms, "sum": sum, "within": within });
            (name.clone(), window)
        });
        windows.collect()
    }
}

/// Describes the values of a window that rules have read, in one sentence.
fn told(name: &str, window: &HistoryWindow, seen: &WindowSeen) -> String {
    let since = match seen.since_ms {
        Some(ms) => format!("{ms} ms since the last one"),
        None => "none before".to_owned(),
    };
    let sum = i64::try_from(seen.sum).ok().and_then(Amount::of_ten_thousandths);
    let sum = sum.map_or_else(|| "too large".to_owned(), |sum| sum.to_string());
    let sum = window.sum.as_ref().map(|_| format!("sum {sum}, ")).unwrap_or_default();
    format!("`history.{name}`: count {}, {sum}{since}", seen.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(sum: Option<&str>, within: Within) -> HistoryWindow {
        HistoryWindow {
            tool: ToolPattern::try_from("pay.*".to_owned()).unwrap(),
            length: Duration::from_secs(60),
            sum: sum.map(str::to_owned),
            within,
        }
    }

    fn declared(name: &str, window: HistoryWindow) -> Result<HistoryWindows, SettingError> {
        HistoryWindows::new(BTreeMap::from([(name.to_owned(), window)]))
    }

    #[test]
    fn declarations_are_checked() {
        assert!(declared("paid", window(Some("/amount"), Within::Caller)).is_ok());
        for name in ["", "1st", "a-b", "in", "a b", &"x".repeat(65)] {
            assert!(declared(name, window(None, Within::Caller)).is_err(), "{name}");
        }
        assert!(declared("paid", window(Some("amount"), Within::Caller)).is_err());
        for seconds in [0, 367 * 86_400] {
            let length = Duration::from_secs(seconds);
            let window = HistoryWindow { length, ..window(None, Within::Caller) };
            assert!(declared("paid", window).is_err(), "{seconds}");
        }
        let many = (0..=WINDOWS_MAX).map(|n| (format!("w{n}"), window(None, Within::Caller)));
        assert!(HistoryWindows::new(many.collect()).is_err());
    }

    #[test]
    fn only_exact_amounts_are_counted() {
        let paid = window(Some("/a/amount"), Within::Caller);
        for (arguments, amount) in [
            (json!({ "a": { "amount": 12.5 } }), Ok(125_000)),
            (json!({ "a": { "amount": 0 } }), Ok(0)),
            (json!({ "a": { "amount": 0.00001 } }), Err("four digits")),
            (json!({ "a": { "amount": 1e300 } }), Err("too large")),
            (json!({ "a": { "amount": -1 } }), Err("negative")),
            (json!({ "a": { "amount": "5" } }), Err("no number")),
            (json!({ "a": {} }), Err("missing")),
        ] {
            match (paid.amount(&arguments), amount) {
                (Ok(Some(got)), Ok(expected)) => assert_eq!(got.ten_thousandths(), expected),
                (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
                (got, expected) => panic!("{arguments}: {got:?}, not {expected:?}"),
            }
        }
        assert_eq!(window(None, Within::Caller).amount(&json!({})), Ok(None));
    }

    #[test]
    fn calls_count_together_as_declared() {
        let claims = |session: Option<&str>, epic: Option<&str>| CallContext {
            session_id: session.map(str::to_owned),
            epic_id: epic.map(str::to_owned),
            ..CallContext::default()
        };
        let [none, s, e] =
            [claims(None, None), claims(Some("x"), None), claims(Some("x"), Some("e"))];
        for (within, same_session, same_epic) in [
            (Within::Caller, true, true),
            (Within::Session, false, true),
            (Within::Epic, true, false),
        ] {
            let own = window(None, within);
            assert_eq!(own.key("a", &none) == own.key("a", &s), same_session, "{within:?}");
            assert_eq!(own.key("a", &s) == own.key("a", &e), same_epic, "{within:?}");
            assert_ne!(own.key("a", &s), own.key("b", &s));
        }
        // Another length counts the calls that there were; another sum does not.
        let own = window(None, Within::Caller);
        let longer = HistoryWindow { length: Duration::from_secs(61), ..own.clone() };
        assert_eq!(own.key("a", &none), longer.key("a", &none));
        let sums = window(Some("/amount"), Within::Caller);
        assert_ne!(own.key("a", &none), sums.key("a", &none));
        let both = BTreeMap::from([("short".to_owned(), own), ("long".to_owned(), longer)]);
        let both = HistoryWindows::new(both).unwrap();
        let counted = both.counted(&both.counting("pay.send"), "a", &none, &json!({})).unwrap();
        assert_eq!(counted.len(), 1);
        assert_eq!(counted[0].length_ms, 61_000);
    }

    #[test]
    fn keys_are_those_that_stores_contain() {
        let claims = CallContext { session_id: Some("x".to_owned()), ..CallContext::default() };
        // SHA-256 of `["pay.*","/amount","session","a\"b","x"]`.
        let session = window(Some("/amount"), Within::Session).key("a\"b", &claims);
        assert_eq!(session, "4549dcfe05c917966c85578583abd976172d4b4b60811dd9ce406f26b77afe74");
        // SHA-256 of `["pay.*",null,"caller","a",null]`.
        let caller = window(None, Within::Caller).key("a", &claims);
        assert_eq!(caller, "43539e350572189ca59a71a54aed1295f1d926d5f6b683651de6d2956dcabb82");
    }
}
