//! What a claim counts in the windows of the policy.
//!
//! Doc: policy.md#history

use std::collections::BTreeMap;
use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::id::ToolPattern;

/// An exact amount, zero or more, in ten thousandths. It is written as a decimal with four digits after
/// the point, such as `12.5000`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u64);

/// Ten thousandths in one.
const SCALE: u64 = 10_000;

impl Amount {
    /// Creates the amount of a number of ten thousandths; `None` if it is negative.
    #[must_use]
    pub fn of_ten_thousandths(number: i64) -> Option<Self> {
        u64::try_from(number).ok().map(Self)
    }

    /// Returns the number of ten thousandths, at most `i64::MAX`.
    #[must_use]
    pub fn ten_thousandths(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        let (ones, rest) = text.split_once('.')?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if rest.len() != 4 || ones.is_empty() || !digits(ones) || !digits(rest) {
            return None;
        }
        let number: i64 = format!("{ones}{rest}").parse().ok()?;
        let amount = Self::of_ten_thousandths(number)?;
        (amount.to_string() == text).then_some(amount)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04}", self.0 / SCALE, self.0 % SCALE)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not an amount such as `12.5000`"))
    }
}

#[cfg(feature = "schemars")]
impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An exact amount, zero or more, with four digits after the point.",
            "type": "string",
            "pattern": "^(0|[1-9][0-9]*)\\.[0-9]{4}$",
        })
    }
}

/// What a claim counts in one window of the policy, for as long as the call may have had an effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The window, and whose calls it counts, as a digest in hex.
    pub key: String,
    /// The amount that the window sums; absent where it only counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<Amount>,
    /// When the call was claimed, by the store's clock, in milliseconds since 1970-01-01 UTC.
    pub at_ms: i64,
    /// Until when the receipt must not be pruned at least, likewise.
    pub until_ms: i64,
}

/// A window that a call is counted in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedIn {
    /// The window, and whose calls it counts, as a digest in hex.
    pub key: String,
    /// The amount that the window sums.
    pub amount: Option<Amount>,
    /// The length of the window, in milliseconds: the receipt is kept for as long.
    pub length_ms: i64,
}

/// A window as a policy declares it: which calls it counts, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredWindow {
    /// The tools whose calls it counts.
    pub tool: ToolPattern,
    /// The length in milliseconds.
    pub length_ms: i64,
}

/// A window, and whose calls it counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WindowName {
    /// The digest in hex.
    pub key: String,
    /// The length in milliseconds.
    pub length_ms: i64,
}

/// A window as the rules see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WindowSeen {
    /// The number of calls, with the one that is judged where the window counts it.
    pub count: u64,
    /// The sum of their amounts, in ten thousandths, likewise.
    #[serde(with = "sum_text")]
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub sum: i128,
    /// Milliseconds since the last earlier call; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
}

/// Sums in the form of amounts. They may be larger than any amount.
mod sum_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(sum: &i128, serializer: S) -> Result<S::Ok, S::Error> {
        let scale = i128::from(super::SCALE);
        serializer.collect_str(&format_args!("{}.{:04}", sum / scale, sum % scale))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<i128, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = text.split_once('.').filter(|(_, rest)| rest.len() == 4);
        let number = number.and_then(|(ones, rest)| format!("{ones}{rest}").parse().ok());
        number.ok_or_else(|| de::Error::custom("not a sum such as `12.5000`"))
    }
}

impl WindowSeen {
    /// Adds the call that is judged.
    pub fn add(&mut self, amount: Option<Amount>) {
        self.count = self.count.saturating_add(1);
        let amount = amount.map_or(0, |amount| amount.ten_thousandths().into());
        self.sum = self.sum.saturating_add(amount);
    }
}

/// Windows as the rules see them, by their names.
pub type History = BTreeMap<String, WindowSeen>;

/// Returns what rules see of the windows of a call that is counted in some windows, if the earlier calls are
/// `earlier`.
#[must_use]
pub fn seen(
    windows: &BTreeMap<String, WindowName>,
    counted: &[CountedIn],
    earlier: &History,
) -> History {
    let seen = windows.iter().map(|(name, window)| {
        let mut seen = earlier.get(name).cloned().unwrap_or_default();
        let own = counted.iter().filter(|own| own.key == window.key);
        own.for_each(|own| seen.add(own.amount));
        (name.clone(), seen)
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_has_one_form() {
        for (text, number) in
            [("0.0000", 0), ("12.5000", 125_000), ("922337203685477.5807", i64::MAX)]
        {
            let amount: Amount = serde_json::from_value(text.into()).unwrap();
            assert_eq!((amount.ten_thousandths(), amount.to_string()), (number, text.to_owned()));
        }
        for text in ["1", "1.5", "-1.0000", "01.0000", ".0000", "1.00000", "922337203685477.5808"] {
            assert!(serde_json::from_value::<Amount>(text.into()).is_err(), "{text}");
        }
        assert_eq!(Amount::of_ten_thousandths(-1), None);
    }
}
