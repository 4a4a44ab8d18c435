//! A set of rules as its files state it, before it is bound to tools.
//!
//! Path: 5. Doc: policy.md#rules

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cedar_policy::{PolicySet, Schema, ValidationMode, ValidationWarning, Validator};
use data_encoding::HEXLOWER;
use miette::Diagnostic;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::json::canonical;

use super::cases::{self, Case};
use super::history::HistoryWindows;
use super::reads::Reads;
use super::schema;
use super::scope::Group;
use super::source::{self, RULES_MAX, Rule, RuleFile, offset};
use crate::error::EngineError;
use crate::rule_finding::{Location, RuleCode, RuleFinding};

/// The stack on which rules are read.
const STACK_BYTES: usize = 256 << 20;

/// A set of rules. It judges nothing before it is bound to tools.
#[derive(Debug)]
pub struct RuleSet {
    pub(super) rules: Vec<Rule>,
    pub(super) cases: Vec<Case>,
    /// The windows over earlier calls that rules can read.
    pub(super) windows: HistoryWindows,
    by_id: HashMap<String, usize>,
    /// The rules that name a tool.
    pub(super) by_tool: HashMap<String, Vec<usize>>,
    /// The groups of tools that rules mention, in their scopes or conditions.
    pub(super) groups: BTreeMap<String, Group>,
    /// The files by their names, for places in findings.
    texts: HashMap<String, String>,
    warnings: Vec<RuleFinding>,
    pub(super) version: String,
    /// The files and windows as they were given.
    pub(super) bundle: Value,
}

impl RuleSet {
    /// Reads a set of rules, which can read these windows, and validates those that name no tool.
    ///
    /// # Errors
    /// All findings, if one of them is an error.
    pub fn read(
        files: &[RuleFile],
        windows: &HistoryWindows,
    ) -> Result<Arc<Self>, Vec<RuleFinding>> {
        Self::read_all(files, windows, false)
    }

    /// As [`RuleSet::read`]. A `recorded` set is read as it was in force, even if its rules name impossible callers
    /// or tools.
    pub(super) fn read_all(
        files: &[RuleFile],
        windows: &HistoryWindows,
        recorded: bool,
    ) -> Result<Arc<Self>, Vec<RuleFinding>> {
        // The language reads nested conditions by recursion.
        on_large_stack(|| Self::read_here(files, windows, recorded)).unwrap_or_else(|| {
            let location = Location::of(files.first().map_or("rules", |file| &file.name), "", 0);
            Err(vec![RuleFinding::new(RuleCode::Syntax, location, "the rules cannot be read")])
        })
    }

    fn read_here(
        files: &[RuleFile],
        windows: &HistoryWindows,
        recorded: bool,
    ) -> Result<Arc<Self>, Vec<RuleFinding>> {
        let mut findings = Vec::new();
        let (mut rules, mut cases) = (Vec::new(), Vec::new());
        for file in files {
            rules.extend(source::rules(file, &mut findings));
            if let Some((name, text)) = &file.cases {
                cases.extend(cases::read(name, text, windows, &mut findings));
            }
        }
        findings.retain(|finding| !recorded || finding.code != RuleCode::ImpossibleName);
        if rules.len() > RULES_MAX {
            let location = Location::of(files.first().map_or("rules", |file| &file.name), "", 0);
            let message = format!("there are more than {RULES_MAX} rules");
            return Err(vec![RuleFinding::new(RuleCode::Syntax, location, message)]);
        }
        let mut known: HashMap<&str, &Location> = HashMap::new();
        for rule in &rules {
            if let Some(other) = known.insert(rule.id(), &rule.location) {
                let message = format!("another rule, at {other}, has the id `{}` too", rule.id());
                findings.push(
                    RuleFinding::new(RuleCode::Annotation, rule.location.clone(), message)
                        .hint("give each rule an id of its own"),
                );
            }
        }
        let mut by_tool: HashMap<String, Vec<usize>> = HashMap::new();
        let mut groups = BTreeMap::new();
        let by_id: HashMap<String, usize> =
            rules.iter().enumerate().map(|(at, rule)| (rule.id().to_owned(), at)).collect();
        for (index, rule) in rules.iter().enumerate() {
            for tool in &rule.scope.tools {
                by_tool.entry(tool.clone()).or_default().push(index);
            }
            for name in &rule.actions {
                groups.extend(Group::parse(name).map(|group| (name.clone(), group)));
            }
            // In a `has` test, Cedar treats an undeclared member as missing.
            if let Some(name) = windows.undeclared(&rule.reads) {
                let message =
                    format!("`{}` reads the window `{name}`, which is not declared", rule.id());
                let finding = RuleFinding::new(RuleCode::Type, rule.location.clone(), message);
                findings.push(match nearest(&name, windows.names()) {
                    Some(near) => finding.hint(format!("did you mean `{near}`?")),
                    None => finding.hint(format!("declare it in `[policy.history.{name}]`")),
                });
            }
            if let Some((window, claim)) = windows.claimed(&windows.read_by(&rule.reads)) {
                let message = format!(
                    "`{}` reads the window `{window}`, which counts by the {claim} that the agent \
                     states",
                    rule.id()
                );
                findings.push(
                    RuleFinding::new(RuleCode::ClaimedContext, rule.location.clone(), message)
                        .hint("an agent that states another one begins a new window"),
                );
            }
            let claims = rule.reads.of("claimed").is_some();
            if claims && !rule.forbids {
                let message =
                    format!("the permit `{}` depends on what the agent says of itself", rule.id());
                findings.push(RuleFinding::new(
                    RuleCode::ClaimedContext,
                    rule.location.clone(),
                    message,
                ));
            }
        }
        // Rules that cannot be read are not in the set, and have findings of their own.
        if !findings.iter().any(|finding| finding.code.is_error()) {
            findings.extend(cases.iter().filter_map(|case| unknown_rule(case, &by_id)));
        }
        let texts = files.iter().map(|file| (file.name.clone(), file.text.clone())).collect();
        let bundle = bundle(files, windows);
        let version = HEXLOWER.encode(&Sha256::digest(canonical(&bundle)));
        let (warnings, windows) = (Vec::new(), windows.clone());
        let mut set = Self {
            rules,
            cases,
            windows,
            by_id,
            by_tool,
            groups,
            texts,
            warnings,
            version,
            bundle,
        };
        if !findings.iter().any(|finding| finding.code.is_error()) {
            findings.extend(set.general_findings());
        }
        if findings.is_empty() {
            findings.extend(set.permits_nothing(files));
        }
        match findings.iter().any(|finding| finding.code.is_error()) {
            true => Err(findings),
            false => {
                set.warnings = findings;
                Ok(Arc::new(set))
            }
        }
    }

    /// Returns the findings that do not refuse the set.
    #[must_use]
    pub fn warnings(&self) -> &[RuleFinding] {
        &self.warnings
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule, so that everything is denied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the finding of a set without a permit.
    fn permits_nothing(&self, files: &[RuleFile]) -> Option<RuleFinding> {
        let location = Location::of(files.first().map_or("rules", |file| &file.name), "", 0);
        let message = "no rule permits anything, so every call is denied";
        let hint =
            "write `@id(\"all\") permit (principal, action, resource);`, or permits for some tools";
        let permits = self.rules.iter().any(|rule| !rule.forbids);
        (!permits).then(|| RuleFinding::new(RuleCode::NoPermit, location, message).hint(hint))
    }

    /// Validates the rules that are about more than the tools that they name.
    fn general_findings(&self) -> Vec<RuleFinding> {
        let general: Vec<usize> =
            (0..self.rules.len()).filter(|index| self.rule(*index).scope.is_general()).collect();
        let mentioned = self.mentioned(&general);
        let [grouped, others] = [true, false]
            .map(|in_groups| schema::of_any(&self.windows, &mentioned, in_groups))
            .map(|schema| self.validate(&general, schema, &[]));
        let mut findings: Vec<RuleFinding> = Vec::new();
        for finding in grouped.iter().chain(&others) {
            let is = |known: &RuleFinding| {
                known.location == finding.location && known.code == finding.code
            };
            // A rule about a group looks impossible where the group is empty.
            let holds =
                finding.code.is_error() || (grouped.iter().any(is) && others.iter().any(is));
            if holds && !findings.iter().any(is) {
                findings.push(about_items(finding.clone()));
            }
        }
        findings
    }

    /// Returns the index of a rule.
    pub(super) fn index(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Returns the names of all actions in some rules.
    pub(super) fn mentioned(&self, rules: &[usize]) -> BTreeSet<String> {
        rules.iter().flat_map(|index| self.rule(*index).actions.iter().cloned()).collect()
    }

    pub(super) fn rule(&self, index: usize) -> &Rule {
        #[expect(clippy::indexing_slicing, reason = "indices are made from this list")]
        &self.rules[index]
    }

    /// Validates some rules in a schema. `arguments` are the names of the arguments, for corrections.
    pub(super) fn validate(
        &self,
        rules: &[usize],
        schema: Result<Schema, EngineError>,
        arguments: &[&str],
    ) -> Vec<RuleFinding> {
        let set = PolicySet::from_policies(rules.iter().map(|i| self.rule(*i).policy.clone()));
        let (schema, set) = match (schema, set) {
            (Ok(schema), Ok(set)) => (schema, set),
            (schema, set) => {
                let error = schema.err().map(|error| error.to_string());
                let error = error.or(set.err().map(|error| error.to_string()));
                let location = rules.first().map(|index| self.rule(*index).location.clone());
                let location = location.unwrap_or_else(|| Location::of("rules", "", 0));
                let message =
                    format!("the rules cannot be validated: {}", error.unwrap_or_default());
                return vec![RuleFinding::new(RuleCode::Type, location, message)];
            }
        };
        let result = Validator::new(schema).validate(&set, ValidationMode::Strict);
        let mut findings = Vec::new();
        for error in result.validation_errors() {
            let location = self.location(error.policy_id().as_ref(), error);
            let message = sentence(&error.to_string());
            let unknown = between(&message, "attribute `", "`");
            let known = arguments.iter().copied().chain(self.windows.names());
            let near = unknown.and_then(|name| nearest(name, known));
            let help = near
                .map(|near| format!("is `{near}` meant?"))
                .or_else(|| error.help().map(|help| help.to_string()));
            let finding = RuleFinding::new(RuleCode::Type, location, message);
            findings.push(match help {
                Some(help) => finding.hint(help),
                None => finding,
            });
        }
        for warning in result.validation_warnings() {
            if let ValidationWarning::ImpossiblePolicy(_) = warning {
                let id: &str = warning.policy_id().as_ref();
                let location = self.location(id, warning);
                let message = format!("the rule `{id}` never applies");
                findings.push(RuleFinding::new(RuleCode::ImpossibleRule, location, message));
            }
        }
        findings
    }

    /// Returns the place that an error of the language is about, in the file of a rule.
    fn location(&self, id: &str, error: &dyn Diagnostic) -> Location {
        let Some(rule) = self.index(id).map(|index| self.rule(index)) else {
            return Location::of("rules", "", 0);
        };
        match (offset(error), self.texts.get(&rule.location.file)) {
            (Some(offset), Some(text)) => Location::of(&rule.location.file, text, offset),
            _ => rule.location.clone(),
        }
    }

    /// Returns the members of the context that some rules read.
    pub(super) fn reads(&self, rules: &[usize]) -> Reads {
        let mut reads = Reads::default();
        rules.iter().for_each(|index| reads.add_all(&self.rule(*index).reads));
        reads
    }
}

/// Returns the finding of a case that expects something of a rule that is not in the set.
fn unknown_rule(case: &Case, rules: &HashMap<String, usize>) -> Option<RuleFinding> {
    let Case { location, fields } = case;
    let mut expected = fields.applying.iter().chain(&fields.not_match);
    let unknown = expected.find(|id| !rules.contains_key(*id))?;
    let message = format!("the case `{}` names `{unknown}`, which is no rule", fields.name);
    let finding = RuleFinding::new(RuleCode::CaseSyntax, location.clone(), message);
    Some(match nearest(unknown, rules.keys().map(String::as_str)) {
        Some(near) => finding.hint(format!("is `{near}` meant?")),
        None => finding,
    })
}

/// Does work that recurses deeply; `None` if it cannot be done.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        builder.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

/// Returns the finding of a general rule with the correction that fits it.
fn about_items(finding: RuleFinding) -> RuleFinding {
    let has = |text: &str| finding.message.contains(text);
    let about_items = ["type `Prompt`", "type `Resource`", "use:prompts", "read:resources"];
    match about_items.into_iter().any(has) {
        true => finding.hint(
            "the rule is about prompts and resources too; write `resource is Tool` in its scope",
        ),
        false => finding,
    }
}

/// Returns the message of a validation error without the words that name the rule, which its place does.
fn sentence(message: &str) -> String {
    match message.split_once("`, ").filter(|(before, _)| before.starts_with("for policy `")) {
        Some((_, rest)) => rest.to_owned(),
        None => message.to_owned(),
    }
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split_once(after).map(|(inner, _)| inner)
}

/// Returns the files, with their cases, and the windows, as a document.
fn bundle(files: &[RuleFile], windows: &HistoryWindows) -> Value {
    let file = |file: &RuleFile| {
        let cases = file.cases.as_ref().map(|(name, text)| json!({ "name": name, "text": text }));
        json!({ "name": file.name, "text": file.text, "cases": cases })
    };
    let files: Vec<Value> = files.iter().map(file).collect();
    json!({ "language": "cedar", "files": files, "windows": windows.document() })
}
