//! Rules 5 to 16, each for one part of the entry, in the order of the table.
//!
//! Doc: contract.md#codes

use serde_json::{Map, Value};

use super::fields::{self, Field, RegistryEntry};
use super::values::{at_least_zero, number_or_kind, shown};
use super::{Report, found, kind};
use super::{idempotency_rules, policy_rules};
use crate::contract::Category;
use crate::finding::ContractCode as Code;
use crate::id::{ToolId, near_miss, nearest};
use crate::json::{Step, dotted};
use crate::sandbox::SandboxProfile;
use crate::secret::names_a_secret;

#[cfg(feature = "schema")]
type Schema = crate::schema::CompiledSchema;
#[cfg(not(feature = "schema"))]
type Schema = ();

/// Input and output schema, if they compile.
pub(super) type Schemas = (Option<Schema>, Option<Schema>);

pub(super) fn examine(entry: &RegistryEntry<'_>, report: &mut Report) -> Schemas {
    tool_id(entry, report);
    category(entry, report);
    let input = schema(entry, fields::INPUT_SCHEMA, Code::InvalidInputSchema, true, report);
    let output = schema(entry, fields::OUTPUT_SCHEMA, Code::InvalidOutputSchema, false, report);
    capabilities(entry, report);
    execution(entry, report);
    policy_rules::policy(entry, report);
    policy_rules::permissions(entry, report);
    idempotency_rules::idempotency(entry, report);
    idempotency_rules::receipt_fields(entry, report);
    sandbox(entry, report);
    unknown_keys(entry, report);
    let description = entry.plain("description").and_then(Value::as_str).unwrap_or_default();
    if description.trim().is_empty() {
        report.warning(
            Code::MissingDescription,
            "description",
            "there is no description",
            Some("describe the effect of the tool; models choose tools by it".to_owned()),
        );
    }
    (input, output)
}

fn tool_id(entry: &RegistryEntry<'_>, report: &mut Report) {
    let path = entry.path(fields::TOOL_ID);
    match entry.get(fields::TOOL_ID) {
        Some(Value::String(text)) => {
            if let Err(error) = ToolId::try_from(text.as_str()) {
                report.error(Code::InvalidToolId, path, error.to_string());
            }
        }
        other => report.error(
            Code::InvalidToolId,
            path,
            format!("expected a tool id, found {}", found(other)),
        ),
    }
}

/// Checks the fields without their own code, which count as the entry's own shape.
pub(super) fn texts(members: &Map<String, Value>, report: &mut Report) {
    for name in ["title", "description"] {
        if let Some(value) = members.get(name)
            && !value.is_string()
        {
            report.error(Code::InvalidRoot, name, format!("expected text, found {}", kind(value)));
        }
    }
    for name in [fields::ANNOTATIONS, fields::SHOWN] {
        if let Some(value) = members.get(name)
            && !value.is_object()
        {
            let message = format!("expected an object, found {}", kind(value));
            report.error(Code::InvalidRoot, name, message);
        }
    }
}

fn category(entry: &RegistryEntry<'_>, report: &mut Report) {
    let expected = || format!("expected one of {}", Category::NAMES.join(", "));
    match entry.plain("category") {
        None if entry.is_snake() => (),
        Some(Value::String(text)) if Category::NAMES.contains(&text.as_str()) => (),
        Some(Value::String(text)) => {
            let message = format!("{}, found `{}`", expected(), shown(text));
            match nearest(text, Category::NAMES) {
                Some(near) => report.error_with(
                    Code::InvalidCategory,
                    "category",
                    message,
                    format!("did you mean `{near}`?"),
                ),
                None => report.error(Code::InvalidCategory, "category", message),
            }
        }
        other => report.error(
            Code::InvalidCategory,
            "category",
            format!("{}, found {}", expected(), found(other)),
        ),
    }
}

fn schema(
    entry: &RegistryEntry<'_>,
    field: Field,
    code: Code,
    object_root: bool,
    report: &mut Report,
) -> Option<Schema> {
    let path = entry.path(field);
    let Some(value) = entry.get(field) else {
        report.error(code, path, "expected a JSON Schema object, found nothing");
        return None;
    };
    let Some(members) = value.as_object() else {
        report.error(code, path, format!("expected a JSON Schema object, found {}", kind(value)));
        return None;
    };
    if object_root && members.get("type").and_then(Value::as_str) != Some("object") {
        report.error_with(
            code,
            &format!("{path}.type"),
            "expected the root to have `type: object`",
            "arguments are always an object".to_owned(),
        );
        return None;
    }
    compiled(value, path, code, report)
}

#[cfg(feature = "schema")]
fn compiled(value: &Value, path: &str, code: Code, report: &mut Report) -> Option<Schema> {
    match Schema::compile(value) {
        Ok(schema) => Some(schema),
        Err(fault) => {
            let mut full_path = vec![Step::Key(path.to_owned())];
            full_path.extend(fault.path);
            report.error(code, &dotted(&full_path), fault.message);
            None
        }
    }
}

#[cfg(not(feature = "schema"))]
fn compiled(_: &Value, path: &str, _: Code, _: &mut Report) -> Option<Schema> {
    let _ = dotted(&[Step::Key(path.to_owned())]);
    Some(())
}

fn capabilities(entry: &RegistryEntry<'_>, report: &mut Report) {
    let value = match entry.plain("capabilities") {
        None if entry.is_snake() => return,
        value => value,
    };
    let Some(members) = value.and_then(Value::as_object) else {
        let message = format!("expected an object, which may be empty, found {}", found(value));
        report.error(Code::InvalidCapabilities, "capabilities", message);
        return;
    };
    for (name, code) in [
        ("locales", Code::InvalidCapabilitiesLocales),
        ("mediaTypes", Code::InvalidCapabilitiesMediaTypes),
    ] {
        if let Some(value) = members.get(name) {
            texts_of(value, &format!("capabilities.{name}"), code, report);
        }
    }
    for name in ["maxInputTokens", "maxOutputTokens", "maxAssetBytes"] {
        match members.get(name) {
            None => (),
            Some(Value::Number(number)) if at_least_zero(number) => (),
            Some(other) => report.error(
                Code::InvalidCapabilitiesLimit,
                &format!("capabilities.{name}"),
                format!("expected a number of at least 0, found {}", number_or_kind(other)),
            ),
        }
    }
}

fn texts_of(value: &Value, path: &str, code: Code, report: &mut Report) {
    let Some(items) = value.as_array() else {
        report.error(code, path, format!("expected a list of texts, found {}", kind(value)));
        return;
    };
    for (index, item) in items.iter().enumerate() {
        if item.as_str().is_none_or(|text| text.trim().is_empty()) {
            report.error(
                code,
                &format!("{path}[{index}]"),
                format!("expected text, found {}", kind(item)),
            );
        }
    }
}

fn execution(entry: &RegistryEntry<'_>, report: &mut Report) {
    let hint = || "name one of `localRuntimeId`, `mcpServerId`, `endpointRef`".to_owned();
    let value = match entry.plain("execution") {
        None if entry.is_snake() => {
            // The dispatch rule needs a domain and a method.
            let name = entry.get(fields::TOOL_ID).and_then(Value::as_str).unwrap_or_default();
            let parts: Vec<&str> = name.split('.').collect();
            // An invalid name is already reported.
            let named = crate::id::ToolId::try_from(name).is_ok();
            if named && (parts.len() < 2 || parts.iter().any(|part| part.is_empty())) {
                report.error_with(
                    Code::MissingExecutionTarget,
                    "execution",
                    "a name of one part has no handler domain, so `execution` must say where the tool is",
                    hint(),
                );
            }
            return;
        }
        value => value,
    };
    let Some(members) = value.and_then(Value::as_object) else {
        let message = format!("expected an object, found {}", found(value));
        report.error(Code::InvalidExecution, "execution", message);
        return;
    };
    for name in fields::EXECUTION {
        match members.get(name) {
            None => (),
            Some(Value::String(text)) if !text.trim().is_empty() => (),
            Some(other) => report.error(
                Code::InvalidExecutionField,
                &format!("execution.{name}"),
                format!("expected text that is not blank, found {}", kind(other)),
            ),
        }
    }
    if !["localRuntimeId", "mcpServerId", "endpointRef"]
        .iter()
        .any(|name| members.contains_key(*name))
    {
        report.error_with(Code::MissingExecutionTarget, "execution", "there is no target", hint());
    }
}

/// Whether a text is `*`, or a host followed by a port or by `*` as the port. Every host at every port is none.
fn is_host(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return text == "*" };
    let is_number = port.parse::<u16>().is_ok();
    if host == "*" {
        return is_number;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host);
    let name = host.strip_prefix("*.").unwrap_or(host);
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    !name.is_empty() && name.chars().all(fits) && (port == "*" || is_number)
}

fn sandbox(entry: &RegistryEntry<'_>, report: &mut Report) {
    let Some(value) = entry.plain("sandbox") else {
        return;
    };
    // Serde would read a list as the fields in their order, and the other rules would not apply.
    let parts = ["fs", "net", "env", "limits"].map(|name| (name, value.get(name)));
    let odd = parts
        .iter()
        .find(|(_, part)| part.is_some_and(|part| !part.is_object() && !part.is_null()));
    if !value.is_object() || odd.is_some() {
        let path = odd.map_or_else(|| "sandbox".to_owned(), |(name, _)| format!("sandbox.{name}"));
        report.error(Code::InvalidSandbox, &path, "expected an object");
        return;
    }
    let hosts = value.get("net").and_then(|net| net.get("hosts")).and_then(Value::as_array);
    for (at, host) in hosts.into_iter().flatten().enumerate() {
        if host.as_str().is_some_and(|host| !is_host(host)) {
            let path = format!("sandbox.net.hosts.{at}");
            let message = "expected a host with its port, such as `api.example.com:443`";
            report.error(Code::InvalidSandbox, &path, message);
        }
    }
    if let Err(error) = serde_path_to_error::deserialize::<_, SandboxProfile>(value) {
        let inner = error.path().to_string();
        let path = if inner == "." { "sandbox".to_owned() } else { format!("sandbox.{inner}") };
        let message = error.into_inner().to_string();
        // `invalid type: string "…", expected u64` repeats the value; the part from `expected` on does
        // not.
        let message = match message.find("expected") {
            Some(at) if message.starts_with("invalid") => {
                message.get(at..).unwrap_or_default().to_owned()
            }
            _ => message,
        };
        report.error(Code::InvalidSandbox, &path, message);
    }
}

/// Reports unknown keys: first the near misses, which are errors, then the others.
fn unknown_keys(entry: &RegistryEntry<'_>, report: &mut Report) {
    let top: Vec<&str> = fields::TOP
        .iter()
        .flat_map(|field| [field.canonical, field.snake])
        .chain([fields::TIMEOUT_MS, fields::ANNOTATIONS, fields::SHOWN])
        .collect();
    let idempotency: Vec<&str> =
        fields::IDEMPOTENCY.iter().flat_map(|field| [field.canonical, field.snake]).collect();
    type Part<'p> = (Option<&'p Map<String, Value>>, &'p str, &'p [&'p str]);
    let parts: [Part<'_>; 5] = [
        (Some(entry.members), "", &top),
        (entry.object("capabilities"), "capabilities", &fields::CAPABILITIES),
        (entry.object("execution"), "execution", &fields::EXECUTION),
        (entry.object("policy"), "policy", &fields::POLICY),
        (entry.object("idempotency"), "idempotency", &idempotency),
    ];
    type Unknown<'p> = (String, &'p String, Option<&'p str>, &'p [&'p str]);
    let mut unknown: Vec<Unknown<'_>> = Vec::new();
    for (members, parent, known) in parts {
        for key in members.into_iter().flat_map(Map::keys) {
            // A key that is rejected as a secret is not reported again as unknown.
            if known.contains(&key.as_str()) || names_a_secret(key) {
                continue;
            }
            let path = if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
            let meant = known.iter().find(|known| near_miss(key, known)).copied();
            unknown.push((path, key, meant, known));
        }
    }
    for (path, key, meant, _) in &unknown {
        if let Some(near) = meant {
            report.error_with(
                Code::MisspelledField,
                path,
                format!("`{}` is not a field; is `{near}` meant?", shown(key)),
                format!("write `{near}`"),
            );
        }
    }
    for (path, key, meant, known) in &unknown {
        if meant.is_none() {
            let near = nearest(key, known.iter().copied());
            let message = format!("`{}` is not a field that this version knows", shown(key));
            let hint = near.map(|near| format!("did you mean `{near}`?"));
            report.warning(Code::UnknownField, path, message, hint);
        }
    }
}
