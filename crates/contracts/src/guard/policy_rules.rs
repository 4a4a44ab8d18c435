//! Rules for `policy` and `permissions`.
//!
//! Doc: contract.md#fields

use serde_json::{Map, Value};

use super::fields::{self, RegistryEntry};
use super::values::{at_least_zero, number_or_kind, shown, whole_number};
use super::{Report, found, kind};
use crate::finding::ContractCode as Code;

pub(super) fn policy(entry: &RegistryEntry<'_>, report: &mut Report) {
    let snake = entry.is_snake();
    let top_timeout = entry.plain(fields::TIMEOUT_MS);
    let empty = Map::new();
    let members = match entry.plain("policy") {
        None if snake => &empty,
        value => match value.and_then(Value::as_object) {
            Some(members) => members,
            None => {
                let message = format!("expected an object, found {}", found(value));
                report.error(Code::InvalidPolicy, "policy", message);
                return;
            }
        },
    };
    let (timeout_path, timeout) = match top_timeout {
        Some(value) => (fields::TIMEOUT_MS.to_owned(), Some(value)),
        None => ("policy.timeoutMs".to_owned(), members.get("timeoutMs")),
    };
    let mut expect = |path: String, value: Option<&Value>, required: bool, rule: &FieldRule| {
        let fits = value.map_or(!required, rule.fits);
        if !fits {
            let found = value.map_or_else(|| "nothing".to_owned(), number_or_kind);
            report.error(rule.code, &path, format!("expected {}, found {found}", rule.expected));
        }
    };
    expect(timeout_path, timeout, !snake, &TIMEOUT);
    for (name, required, rule) in POLICY_RULES {
        expect(format!("policy.{name}"), members.get(*name), *required && !snake, rule);
    }
}

/// The requirement of a field of the policy.
pub(super) struct FieldRule {
    code: Code,
    expected: &'static str,
    fits: fn(&Value) -> bool,
}

pub(super) const TIMEOUT: FieldRule = FieldRule {
    code: Code::InvalidPolicyTimeout,
    expected: "a whole number of milliseconds above 0",
    fits: above_zero,
};

/// The rules, in the order of the table; `true` if the field is required.
pub(super) const POLICY_RULES: &[(&str, bool, FieldRule)] = &[
    (
        "rateLimitPerMin",
        false,
        FieldRule {
            code: Code::InvalidPolicyRateLimit,
            expected: "a whole number of at least 0",
            fits: |value| value.as_number().is_some_and(|number| whole_number(number).is_some()),
        },
    ),
    (
        "costTier",
        false,
        FieldRule { code: Code::InvalidPolicyCostTier, expected: "text", fits: not_blank },
    ),
    (
        "trustLevel",
        true,
        FieldRule {
            code: Code::InvalidPolicyTrustLevel,
            expected: "text that is not blank",
            fits: not_blank,
        },
    ),
    (
        "maxConcurrency",
        false,
        FieldRule {
            code: Code::InvalidPolicyConcurrency,
            expected: "a whole number above 0",
            fits: above_zero,
        },
    ),
    (
        "approval",
        false,
        FieldRule {
            code: Code::InvalidPolicyApproval,
            expected: "`never` or `always`",
            fits: |value| matches!(value.as_str(), Some("never" | "always")),
        },
    ),
    (
        "costUnits",
        false,
        FieldRule {
            code: Code::InvalidPolicyField,
            expected: "a number of at least 0",
            fits: |value| value.as_number().is_some_and(at_least_zero),
        },
    ),
    (
        "readOnly",
        false,
        FieldRule {
            code: Code::InvalidPolicyField,
            expected: "true or false",
            fits: Value::is_boolean,
        },
    ),
];

pub(super) fn not_blank(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

pub(super) fn above_zero(value: &Value) -> bool {
    value.as_number().and_then(whole_number).is_some_and(|number| number > 0)
}

pub(super) fn permissions(entry: &RegistryEntry<'_>, report: &mut Report) {
    let Some(value) = entry.plain("permissions") else {
        return;
    };
    let Some(items) = value.as_array() else {
        let message = format!("expected a list of `verb:resource`, found {}", kind(value));
        report.error(Code::InvalidPermission, "permissions", message);
        return;
    };
    for (index, item) in items.iter().enumerate() {
        if !item.as_str().is_some_and(is_permission) {
            report.error_with(
                Code::InvalidPermission,
                &format!("permissions[{index}]"),
                match item.as_str() {
                    Some(text) => format!("expected `verb:resource`, found `{}`", shown(text)),
                    None => format!("expected `verb:resource`, found {}", kind(item)),
                },
                "for example `read:db` or `send:email`".to_owned(),
            );
        }
    }
}

pub(super) fn is_permission(text: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
    };
    text.split_once(':').is_some_and(|(verb, resource)| word(verb) && word(resource))
}
