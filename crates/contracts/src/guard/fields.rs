//! The fields of an entry in both spellings, and the dialect of an entry.
//!
//! Doc: contract.md#dialects

use serde_json::{Map, Value};

use super::{Report, object_of};
use crate::finding::ContractCode::AmbiguousField;

/// The dialect of an entry: it has a `toolId`, or a `name` and no `toolId`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Canonical,
    Snake,
}

/// A field with its two spellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) canonical: &'static str,
    pub(super) snake: &'static str,
}

const fn same(name: &'static str) -> Field {
    Field { canonical: name, snake: name }
}

const fn two(canonical: &'static str, snake: &'static str) -> Field {
    Field { canonical, snake }
}

pub(super) const TOOL_ID: Field = two("toolId", "name");
pub(super) const INPUT_SCHEMA: Field = two("inputSchema", "input_schema");
pub(super) const OUTPUT_SCHEMA: Field = two("outputSchema", "output_schema");
pub(super) const RECEIPT_FIELDS: Field = two("receiptFields", "receipt_fields");
pub(super) const KEY_FIELD: Field = two("keyField", "key_field");
pub(super) const KEY_SCOPE: Field = two("keyScope", "key_scope");
pub(super) const ON_DIFFERENT_ARGS: Field = two("onDifferentArgs", "on_different_args");
pub(super) const ACCEPTS_KEY: Field = two("acceptsIdempotencyKey", "accepts_idempotency_key");
pub(super) const ON_SIGNAL: Field = two("onSignal", "on_signal");
pub(super) const MODE: Field = same("mode");
/// The snake dialect's `timeout_ms` is the canonical `policy.timeoutMs`.
pub(super) const TIMEOUT_MS: &str = "timeout_ms";

/// The fields at the top of an entry; `timeout_ms` is in addition to them.
pub(super) const TOP: [Field; 13] = [
    TOOL_ID,
    same("title"),
    same("description"),
    same("category"),
    INPUT_SCHEMA,
    OUTPUT_SCHEMA,
    same("capabilities"),
    same("execution"),
    same("policy"),
    same("permissions"),
    same("idempotency"),
    RECEIPT_FIELDS,
    same("sandbox"),
];
pub(super) const ANNOTATIONS: &str = "annotations";
/// The other members that a source lists for clients.
pub(super) const SHOWN: &str = "shown";
pub(super) const CAPABILITIES: [&str; 5] =
    ["locales", "mediaTypes", "maxInputTokens", "maxOutputTokens", "maxAssetBytes"];
pub(super) const EXECUTION: [&str; 4] = ["localRuntimeId", "mcpServerId", "endpointRef", "target"];
pub(super) const POLICY: [&str; 8] = [
    "timeoutMs",
    "trustLevel",
    "rateLimitPerMin",
    "costTier",
    "costUnits",
    "maxConcurrency",
    "approval",
    "readOnly",
];
pub(super) const IDEMPOTENCY: [Field; 6] =
    [MODE, KEY_FIELD, KEY_SCOPE, ON_DIFFERENT_ARGS, ACCEPTS_KEY, ON_SIGNAL];

impl Field {
    /// Returns the spelling that `members` uses, and the value.
    pub(super) fn get(self, members: &Map<String, Value>) -> Option<(&'static str, &Value)> {
        let spelled = |name: &'static str| members.get(name).map(|value| (name, value));
        spelled(self.canonical).or_else(|| spelled(self.snake))
    }

    fn ambiguous(self, members: &Map<String, Value>) -> bool {
        self.canonical != self.snake
            && members.contains_key(self.canonical)
            && members.contains_key(self.snake)
    }

    /// Returns the spelling of the field in `dialect`.
    pub(super) fn in_dialect(self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Canonical => self.canonical,
            Dialect::Snake => self.snake,
        }
    }
}

/// An entry with a known dialect.
pub(super) struct RegistryEntry<'e> {
    pub(super) members: &'e Map<String, Value>,
    pub(super) dialect: Dialect,
}

impl<'e> RegistryEntry<'e> {
    /// Reads the entry, and reports each field that it contains in two spellings (rule 4).
    pub(super) fn read(members: &'e Map<String, Value>, report: &mut Report) -> Self {
        let tell = |report: &mut Report, path: &str, other: &str| {
            report.error_with(
                AmbiguousField,
                path,
                format!("`{path}` and `{other}` are two spellings of one field"),
                "keep one of them".to_owned(),
            );
        };
        for field in TOP {
            if field.ambiguous(members) {
                tell(report, field.snake, field.canonical);
            }
        }
        let policy_timeout =
            object_of(members.get("policy")).is_some_and(|policy| policy.contains_key("timeoutMs"));
        if members.contains_key(TIMEOUT_MS) && policy_timeout {
            tell(report, TIMEOUT_MS, "policy.timeoutMs");
        }
        if let Some(idempotency) = object_of(members.get("idempotency")) {
            for field in IDEMPOTENCY {
                if field.ambiguous(idempotency) {
                    let path = format!("idempotency.{}", field.snake);
                    tell(report, &path, field.canonical);
                }
            }
        }
        // An entry with both names is rejected already. The spelling of its schema then determines the
        // dialect, so that the defaults of the dialect apply to the other rules.
        let snake = members.contains_key(TOOL_ID.snake)
            && (!members.contains_key(TOOL_ID.canonical)
                || members.contains_key(INPUT_SCHEMA.snake));
        Self { members, dialect: if snake { Dialect::Snake } else { Dialect::Canonical } }
    }

    pub(super) fn get(&self, field: Field) -> Option<&'e Value> {
        field.get(self.members).map(|(_, value)| value)
    }

    /// Returns the field's path as the entry spells it, or as its dialect would.
    pub(super) fn path(&self, field: Field) -> &'static str {
        field.get(self.members).map_or(field.in_dialect(self.dialect), |(spelled, _)| spelled)
    }

    pub(super) fn plain(&self, name: &str) -> Option<&'e Value> {
        self.members.get(name)
    }

    pub(super) fn object(&self, name: &str) -> Option<&'e Map<String, Value>> {
        object_of(self.members.get(name))
    }

    pub(super) fn is_snake(&self) -> bool {
        self.dialect == Dialect::Snake
    }
}
