//! Reads files of cases: calls with the decision that is expected.
//!
//! Doc: policy.md#cases

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use toolbooth_contracts::Identity;
use toolbooth_contracts::history::{Amount, History, WindowSeen};
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::trust::TrustLevel;

use super::history::HistoryWindows;
use super::source::RULE_FILE_BYTES_MAX;
use crate::caller::Grant;
use crate::rule_finding::{Location, RuleCode, RuleFinding};

/// The time of a case that states none.
pub(super) const TIME: &str = "2026-01-01T12:00:00.000Z";

/// One case, with its place.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) location: Location,
    pub(super) fields: CaseFields,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseFields {
    pub(super) name: String,
    #[serde(default = "local")]
    pub(super) caller: String,
    #[serde(default)]
    pub(super) groups: Vec<String>,
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    #[serde(default)]
    pub(super) grants: Vec<String>,
    #[serde(default)]
    pub(super) trust: Option<TrustLevel>,
    pub(super) tool: String,
    #[serde(default)]
    pub(super) args: Map<String, Value>,
    #[serde(default)]
    pub(super) claimed: Claimed,
    #[serde(default)]
    pub(super) at: Option<String>,
    /// The earlier calls in windows, by the names of the windows.
    #[serde(default)]
    pub(super) history: BTreeMap<String, Earlier>,
    #[serde(default)]
    pub(super) decision: Option<Decision>,
    /// Rules that apply.
    #[serde(default, rename = "match")]
    pub(super) applying: Vec<String>,
    /// Rules that do not apply.
    #[serde(default)]
    pub(super) not_match: Vec<String>,
}

fn local() -> String {
    "local".to_owned()
}

/// What the agent claims in a case.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Claimed {
    pub(super) agent_id: Option<String>,
    pub(super) phase_id: Option<String>,
    pub(super) epic_id: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) turn_index: Option<u64>,
}

/// The earlier calls in a window.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Earlier {
    pub(super) count: u64,
    /// A number with at most four digits after the point.
    pub(super) sum: Amount,
    /// Milliseconds since the last of them; absent = 0, if there is one.
    pub(super) since_ms: Option<i64>,
}

impl Earlier {
    /// Returns the earlier calls as rules see them.
    fn seen(&self) -> WindowSeen {
        let since_ms = self.since_ms.or((self.count > 0).then_some(0));
        WindowSeen { count: self.count, sum: self.sum.ten_thousandths().into(), since_ms }
    }
}

impl CaseFields {
    /// Returns the earlier calls in all windows.
    pub(super) fn earlier(&self) -> History {
        self.history.iter().map(|(name, earlier)| (name.clone(), earlier.seen())).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Decision {
    Permit,
    Deny,
    Approval,
    Error,
}

impl Decision {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
            Self::Approval => "approval",
            Self::Error => "error",
        }
    }
}

/// Whether a text is a time in the form in which calls have it.
fn is_time(text: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00:00:00.000Z";
    let is_alike = |(own, form): (u8, &u8)| match form {
        b'0' => own.is_ascii_digit(),
        other => own == *other,
    };
    text.len() == FORM.len() && text.bytes().zip(FORM).all(is_alike)
}

/// Whether a value was JSON in the file: dates become private tables, and numbers without a value nulls.
fn is_json(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => items.iter().all(is_json),
        Value::Object(members) => {
            members.iter().all(|(name, value)| !name.starts_with("$__toml") && is_json(value))
        }
        _ => true,
    }
}

/// Reads a file of cases; what is wrong goes to `findings`.
pub(super) fn read(
    name: &str,
    text: &str,
    windows: &HistoryWindows,
    findings: &mut Vec<RuleFinding>,
) -> Vec<Case> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default, rename = "case")]
        cases: Vec<toml::Spanned<CaseFields>>,
    }
    let wrong = |offset: usize, message: String| {
        RuleFinding::new(RuleCode::CaseSyntax, Location::of(name, text, offset), message)
    };
    if text.len() > RULE_FILE_BYTES_MAX {
        findings.push(wrong(0, format!("the file has more than {RULE_FILE_BYTES_MAX} bytes")));
        return Vec::new();
    }
    let file: File = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            let offset = error.span().map_or(0, |span| span.start);
            findings.push(wrong(offset, error.message().to_owned()));
            return Vec::new();
        }
    };
    let mut cases = Vec::new();
    for case in file.cases {
        let offset = case.span().start;
        let fields = case.into_inner();
        let of = |message: String| wrong(offset, format!("the case `{}` {message}", fields.name));
        let is_empty =
            fields.decision.is_none() && fields.applying.is_empty() && fields.not_match.is_empty();
        if is_empty {
            let finding = of("expects nothing".to_owned());
            findings.push(finding.hint("write `decision`, `match` or `not_match`"));
        } else if Identity::named(&fields.caller).is_none() {
            findings.push(of(format!("has a caller that is no name: `{}`", fields.caller)));
        } else if let Some(other) = fields.history.keys().find(|own| !windows.has(own)) {
            let finding = of(format!("names a window that is not declared: `{other}`"));
            findings.push(match nearest(other, windows.names()) {
                Some(near) => finding.hint(format!("is `{near}` meant?")),
                None => finding,
            });
        } else if let Some(grant) = fields.grants.iter().find(|grant| Grant::parse(grant).is_err())
        {
            findings.push(of(format!("has an invalid grant: `{grant}`")));
        } else if let Some(at) = fields.at.as_deref().filter(|at| !is_time(at)) {
            let finding = of(format!("has a time in another form: `{at}`"));
            findings.push(finding.hint("write it as `2026-01-31T12:00:00.000Z`"));
        } else if !fields.args.values().all(is_json) {
            let message = "has an argument that JSON does not have: a date, or a number that is none or infinite";
            findings.push(of(message.to_owned()));
        } else {
            cases.push(Case { location: Location::of(name, text, offset), fields });
        }
    }
    cases
}
