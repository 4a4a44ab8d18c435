//! Loads registry files in both dialects, all or nothing, with findings that name line and column.
//!
//! The functions accept text and open no file.
//!
//! Doc: registry.md#the-file

use std::collections::{HashMap, HashSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use toolbooth_contracts::finding::ContractFinding;
use toolbooth_contracts::json::{self, JsonFault, JsonFaultKind, Step};
use toolbooth_contracts::{Guard, Severity};

use crate::parallel;
use crate::tool::{RegisteredTool, Source};

/// The major version of registry files that this build reads.
pub const VERSION_MAJOR: u64 = 1;
/// The version that this build writes.
pub const VERSION: &str = "1.0.0";

/// A registry file without tools.
pub const EMPTY: &str = "{\n  \"version\": \"1.0.0\",\n  \"tools\": []\n}\n";

/// The form of a registry file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RegistryFile {
    /// Semantic version of the format.
    pub version: String,
    /// The contracts, in either dialect.
    pub tools: Vec<toolbooth_contracts::ToolContract>,
}

/// One error or warning about a registry file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileFinding {
    /// An error rejects the file; a warning does not.
    pub severity: Severity,
    /// Stable code of the contract guard or of the registry file.
    pub code: String,
    /// Dotted path within the entry, or within the file if the finding is about the file.
    pub path: String,
    /// Index of the entry, from 0; null if the finding is about the file.
    pub tool_index: Option<usize>,
    /// The id of the entry, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The finding as a sentence.
    pub message: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// A rejected file, with all its findings in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The findings; at least one is an error.
    pub findings: Vec<FileFinding>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error);
        let first = errors.clone().next();
        write!(f, "the registry has {} error(s)", errors.count())?;
        if let Some(first) = first {
            write!(
                f,
                ", the first at {}:{}:{}: {}",
                first.file, first.line, first.column, first.message
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejected {}

/// A loaded file.
#[derive(Debug)]
pub struct Loaded {
    /// Its tools, in file order.
    pub tools: Vec<RegisteredTool>,
    /// Its warnings, in file order.
    pub warnings: Vec<FileFinding>,
}

/// Loads `text`; `file` is its name in findings.
///
/// # Errors
/// All findings, if at least one is an error. Nothing is loaded then.
pub fn load(text: &[u8], file: &str, guard: &Guard) -> Result<Loaded, Rejected> {
    let breaks = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
    let mut reading = Reading { text, file, lines, entries: Vec::new(), findings: Vec::new() };
    let tools = reading.tools(guard);
    let mut findings = reading.findings;
    // The sort is stable: findings about the file come first, then those of each entry, in the
    // guard's order.
    findings.sort_by_key(|finding| finding.tool_index.map_or(0, |index| index + 1));
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(Rejected { findings });
    }
    Ok(Loaded { tools, warnings: findings })
}

/// Appends entries to the text of a registry file. Returns the new text and the number of added
/// entries. The existing text stays unchanged; entries with an id that the file already has are
/// skipped.
///
/// # Errors
/// All findings, if the file is rejected as it is, or would be rejected with the entries.
pub fn with_entries(
    text: &[u8],
    file: &str,
    entries: &[Value],
    guard: &Guard,
) -> Result<(String, usize), Rejected> {
    let before = load(text, file, guard)?;
    let known: HashSet<&str> = before.tools.iter().map(|tool| tool.id().as_str()).collect();
    let fresh: Vec<&Value> =
        entries.iter().filter(|entry| id_of(entry).is_none_or(|id| !known.contains(id))).collect();
    let (mut list, mut last) = (0, None);
    let _ = json::parse_observed(text, &mut |path, _, at| match path {
        [Step::Key(key)] if key == "tools" => list = at,
        [Step::Key(key), Step::Index(_)] if key == "tools" => last = Some(at),
        _ => (),
    });
    // After the last entry, or after the opening bracket of an empty list.
    let at = match last {
        Some(start) => {
            let rest = text.get(start..).unwrap_or_default();
            let mut documents = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
            let _ = documents.next();
            start + documents.byte_offset()
        }
        None => list + 1,
    };
    let mut added = String::new();
    for (index, entry) in fresh.iter().enumerate() {
        if last.is_some() || index > 0 {
            added.push(',');
        }
        let shown = serde_json::to_string_pretty(entry).unwrap_or_default();
        added.push_str("\n    ");
        added.push_str(&shown.replace('\n', "\n    "));
    }
    if last.is_none() && !fresh.is_empty() {
        added.push_str("\n  ");
    }
    let mut out = text.to_vec();
    out.splice(at..at, added.into_bytes());
    load(&out, file, guard)?;
    // `load` rejects text that is not UTF-8, so the conversion replaces nothing.
    Ok((String::from_utf8_lossy(&out).into_owned(), fresh.len()))
}

struct Reading<'t> {
    text: &'t [u8],
    file: &'t str,
    /// Byte offsets at which lines begin.
    lines: Vec<usize>,
    /// Byte offsets of the entries.
    entries: Vec<usize>,
    findings: Vec<FileFinding>,
}

impl Reading<'_> {
    fn tools(&mut self, guard: &Guard) -> Vec<RegisteredTool> {
        let mut entries = Vec::new();
        let parsed = json::parse_all_faults(self.text, &mut |path, _, at| {
            if let [Step::Key(key), Step::Index(_)] = path
                && key == "tools"
            {
                entries.push(at);
            }
        });
        self.entries = entries;
        let (root, faults, readable) = match parsed {
            Ok((root, faults)) => (root, faults, true),
            Err(faults) => (Value::Null, faults, false),
        };
        for fault in faults {
            self.fault(&fault, &root);
        }
        if !readable {
            return Vec::new();
        }
        let Some(entries) = self.root(&root) else {
            return Vec::new();
        };
        let mut tools = Vec::with_capacity(entries.len());
        let mut seen: HashMap<String, usize> = HashMap::new();
        let examined = examine_all(entries, guard);
        for (index, (entry, examined)) in entries.iter().zip(examined).enumerate() {
            match examined {
                Ok((tool, warnings)) => {
                    for finding in warnings {
                        self.entry_finding(index, entry, finding);
                    }
                    tools.push(tool);
                }
                Err(findings) => {
                    for finding in findings {
                        self.entry_finding(index, entry, finding);
                    }
                }
            }
            if let Some(id) = id_of(entry) {
                match seen.get(id) {
                    Some(first) => self.duplicate(index, entry, id, *first),
                    None => {
                        seen.insert(id.to_owned(), index);
                    }
                }
            }
        }
        tools
    }

    fn root<'v>(&mut self, root: &'v Value) -> Option<&'v Vec<Value>> {
        let Some(members) = root.as_object() else {
            let message = "expected an object with `version` and `tools`";
            self.file_finding("invalid-registry-root", "root", message, None, &[]);
            return None;
        };
        let hint = || Some(format!("write \"version\": \"{VERSION}\""));
        let at = [key("version")];
        match members.get("version").and_then(Value::as_str).and_then(major) {
            Some(VERSION_MAJOR) => (),
            Some(_) => {
                let message =
                    format!("this build reads version {VERSION_MAJOR}, the file has another");
                self.file_finding("unsupported-version", "version", &message, hint(), &at);
            }
            None => {
                let message = "expected the semantic version of the format, such as 1.0.0";
                self.file_finding("invalid-registry-root", "version", message, hint(), &at);
            }
        }
        for name in members.keys() {
            if !matches!(name.as_str(), "version" | "tools" | "$schema") {
                let message =
                    format!("`{}` is not a field that this version knows", name.escape_debug());
                let path = [key(name)];
                self.push(
                    Severity::Warning,
                    "unknown-field",
                    name,
                    None,
                    None,
                    message,
                    None,
                    &path,
                    0,
                );
            }
        }
        let tools = members.get("tools").and_then(Value::as_array);
        if tools.is_none() {
            let message = "expected the list `tools`";
            self.file_finding("invalid-registry-root", "tools", message, None, &[key("tools")]);
        }
        tools
    }

    fn fault(&mut self, fault: &JsonFault, root: &Value) {
        let code = match fault.kind {
            JsonFaultKind::Syntax | JsonFaultKind::NotUtf8 => "invalid-json",
            JsonFaultKind::DuplicateKey => "duplicate-key",
            _ => "not-json-safe",
        };
        let (index, path) = match fault.path.as_slice() {
            [Step::Key(tools), Step::Index(index), rest @ ..] if tools == "tools" => {
                (Some(*index), rest)
            }
            whole => (None, whole),
        };
        let entry = index.and_then(|index| root.get("tools").and_then(|tools| tools.get(index)));
        let (line, column) = self.line_column(fault.offset.min(self.text.len()));
        self.findings.push(FileFinding {
            severity: Severity::Error,
            code: code.to_owned(),
            path: json::dotted(path),
            tool_index: index,
            tool_id: entry.and_then(id_of).map(str::to_owned),
            message: fault.message.clone(),
            hint: None,
            file: self.file.to_owned(),
            line,
            column,
        });
    }

    fn duplicate(&mut self, index: usize, entry: &Value, id: &str, first: usize) {
        let name = if entry.get("toolId").is_some() { "toolId" } else { "name" };
        let (line, _) = self.span(self.entries.get(first).copied().unwrap_or(0), &[key(name)]);
        let message = format!("the id `{id}` stands at entry {first} (line {line}) already");
        let at = self.entries.get(index).copied().unwrap_or(0);
        let hint = Some("give one of them another id, or remove it".to_owned());
        let (severity, code) = (Severity::Error, "duplicate-tool-id");
        self.push(severity, code, name, Some(index), Some(id), message, hint, &[key(name)], at);
    }

    fn entry_finding(&mut self, index: usize, entry: &Value, finding: ContractFinding) {
        let at = self.entries.get(index).copied().unwrap_or(0);
        let steps = resolve(entry, &finding.path);
        let ContractFinding { severity, code, path, message, hint } = finding;
        let id = id_of(entry);
        self.push(severity, code.as_str(), &path, Some(index), id, message, hint, &steps, at);
    }

    fn file_finding(
        &mut self,
        code: &str,
        path: &str,
        message: &str,
        hint: Option<String>,
        at: &[Step],
    ) {
        self.push(Severity::Error, code, path, None, None, message.to_owned(), hint, at, 0);
    }

    #[expect(clippy::too_many_arguments, reason = "one place builds every finding")]
    fn push(
        &mut self,
        severity: Severity,
        code: &str,
        path: &str,
        tool_index: Option<usize>,
        tool_id: Option<&str>,
        message: String,
        hint: Option<String>,
        steps: &[Step],
        from: usize,
    ) {
        let (line, column) = self.span(from, steps);
        self.findings.push(FileFinding {
            severity,
            code: code.to_owned(),
            path: path.to_owned(),
            tool_index,
            tool_id: tool_id.map(str::to_owned),
            message,
            hint,
            file: self.file.to_owned(),
            line,
            column,
        });
    }

    /// Line and column of the member at `steps` of the value that begins at `from`.
    fn span(&self, from: usize, steps: &[Step]) -> (usize, usize) {
        let value = self.text.get(from..).unwrap_or_default();
        let inner = if steps.is_empty() { None } else { json::locate(value, steps, true) };
        let start = if steps.is_empty() || inner.is_none() {
            value.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
        } else {
            0
        };
        self.line_column(from + inner.unwrap_or(start))
    }

    /// Line and column of a byte, from 1; the column counts characters.
    fn line_column(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|line| self.lines.get(line)).copied().unwrap_or(0);
        let (_, column) =
            json::line_column(self.text.get(start..).unwrap_or_default(), offset - start);
        (line.max(1), column)
    }
}

/// Minimum number of entries per thread; a thread for fewer costs more than it saves.
const ENTRIES_PER_THREAD_MIN: usize = 500;

/// A tool with its warnings, or all findings about its entry.
type Examined = Result<(RegisteredTool, Vec<ContractFinding>), Vec<ContractFinding>>;

/// Examines each entry with the guard, in their order. The guard is pure, so several threads share
/// the entries of a large file.
fn examine_all(entries: &[Value], guard: &Guard) -> Vec<Examined> {
    let one = |entry: &Value| {
        let mut guarded = guard.examine(entry)?;
        let warnings = std::mem::take(&mut guarded.warnings);
        Ok((RegisteredTool::new(guarded, Source::File), warnings))
    };
    parallel::map(entries, ENTRIES_PER_THREAD_MIN, one)
}

fn key(name: &str) -> Step {
    Step::Key(name.to_owned())
}

fn id_of(entry: &Value) -> Option<&str> {
    entry.get("toolId").or_else(|| entry.get("name")).and_then(Value::as_str)
}

fn major(version: &str) -> Option<u64> {
    let core = version.split(['-', '+']).next()?;
    let parts: Vec<u64> = core
        .split('.')
        .map(|part| {
            let is_number = part.len() < 10 && part.bytes().all(|byte| byte.is_ascii_digit());
            let is_plain = is_number && (part == "0" || !part.starts_with('0'));
            is_plain.then(|| part.parse().ok()).flatten()
        })
        .collect::<Option<_>>()?;
    match parts.as_slice() {
        [major, _, _] => Some(*major),
        _ => None,
    }
}

/// The steps of a dotted path, as far as `entry` has them, so a missing field is located at its
/// parent. Keys may contain dots, so the keys of `entry` decide how the path is split.
fn resolve(entry: &Value, path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut here = entry;
    let mut rest = if path == "root" { "" } else { path };
    while !rest.is_empty() {
        let next = match here {
            Value::Object(members) => members
                .iter()
                .filter(|(name, _)| {
                    let after = rest.strip_prefix(name.as_str());
                    after.is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
                })
                .max_by_key(|(name, _)| name.len())
                .map(|(name, value)| (Step::Key(name.clone()), value, name.len())),
            Value::Array(items) => rest.strip_prefix('[').and_then(|inner| {
                let (index, _) = inner.split_once(']')?;
                let number = index.parse::<usize>().ok()?;
                Some((Step::Index(number), items.get(number)?, index.len() + 2))
            }),
            _ => None,
        };
        let Some((step, value, length)) = next else {
            break;
        };
        steps.push(step);
        here = value;
        rest = rest.get(length..).unwrap_or_default();
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    steps
}

#[cfg(test)]
mod tests;
