//! Reads files of rules: the rules with their annotations and places, or what is wrong with them.
//!
//! Doc: policy.md#rules

use std::str::FromStr;

use cedar_policy::{Effect, Policy, PolicyId, PolicySet};
use miette::Diagnostic;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::id::nearest;

use super::reads::Reads;
use super::scope::{Scope, actions};
use crate::rule_finding::{Place, RuleCode, RuleFinding};

/// Maximum length of a file of rules or cases, in bytes.
pub const RULE_FILE_BYTES_MAX: usize = 4 << 20;
/// Maximum number of rules in a set.
const RULES_MAX: usize = 20_000;
/// Maximum length of the text of an annotation, in characters.
const ANNOTATION_MAX: usize = 500;

/// A file of rules, with the file of its cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFile {
    /// Its name in findings.
    pub name: String,
    /// Rules in the Cedar language.
    pub text: String,
    /// The name and the text of the file of its cases, in TOML.
    pub cases: Option<(String, String)>,
}

/// One rule.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) id: String,
    pub(super) policy: Policy,
    pub(super) forbids: bool,
    pub(super) reason: Option<String>,
    pub(super) approval: Option<Approvers>,
    pub(super) place: Place,
    pub(super) scope: Scope,
    pub(super) reads: Reads,
    /// The names of all actions in it.
    pub(super) actions: Vec<String>,
}

/// Reads the rules of a file; what is wrong goes to `findings`.
pub(super) fn rules(file: &RuleFile, findings: &mut Vec<RuleFinding>) -> Vec<Rule> {
    let whole =
        |code, message: String| RuleFinding::new(code, Place::of(&file.name, "", 0), message);
    if file.text.len() > RULE_FILE_BYTES_MAX {
        let message = format!("the file has more than {RULE_FILE_BYTES_MAX} bytes");
        findings.push(whole(RuleCode::Syntax, message));
        return Vec::new();
    }
    let set = match PolicySet::from_str(&file.text) {
        Ok(set) => set,
        Err(errors) => {
            findings.extend(errors.iter().map(|error| syntax(file, error)));
            return Vec::new();
        }
    };
    if set.num_of_policies() > RULES_MAX {
        findings.push(whole(RuleCode::Syntax, format!("there are more than {RULES_MAX} rules")));
        return Vec::new();
    }
    if let Some(template) = set.templates().next() {
        let message = format!("`{}` is a template; a rule has no `?principal`", template.id());
        findings.push(whole(RuleCode::Syntax, message));
    }
    // The language numbers the policies of a text in their order.
    let mut policies: Vec<(usize, &Policy)> = set
        .policies()
        .map(|policy| {
            let id: &str = policy.id().as_ref();
            (id.strip_prefix("policy").and_then(|n| n.parse().ok()).unwrap_or(usize::MAX), policy)
        })
        .collect();
    policies.sort_by_key(|(number, _)| *number);
    let mut from = 0;
    let mut rules = Vec::new();
    for (_, policy) in policies {
        let own = policy.to_string();
        let rest = file.text.get(from..).unwrap_or_default();
        let at = from + rest.find(&own).unwrap_or_default();
        from = at + own.len();
        rules.extend(rule(file, policy, Place::of(&file.name, &file.text, at), findings));
    }
    rules
}

fn rule(
    file: &RuleFile,
    policy: &Policy,
    place: Place,
    findings: &mut Vec<RuleFinding>,
) -> Option<Rule> {
    let mut wrong = |message: String, hint: &str| {
        let finding = RuleFinding::new(RuleCode::Annotation, place.clone(), message);
        findings.push(finding.hint(hint));
    };
    const KNOWN: [&str; 4] = ["id", "reason", "owner", "approval"];
    let mut is_whole = true;
    for (name, text) in policy.annotations() {
        if !KNOWN.contains(&name) {
            let hint = match nearest(name, KNOWN) {
                Some(near) => format!("is `@{near}` meant?"),
                None => "write `@id`, `@reason`, `@owner` or `@approval`".to_owned(),
            };
            wrong(format!("`@{name}` is no annotation of a rule"), &hint);
            is_whole = false;
        } else if text.chars().count() > ANNOTATION_MAX {
            wrong(format!("`@{name}` has more than {ANNOTATION_MAX} characters"), "shorten it");
            is_whole = false;
        }
    }
    let Some(id) = policy.annotation("id").filter(|id| !id.trim().is_empty()) else {
        wrong("a rule has no `@id`".to_owned(), "write `@id(\"a-name\")` before it");
        return None;
    };
    let approval = match policy.annotation("approval").map(Approvers::parse) {
        None => None,
        Some(Some(approvers)) => Some(approvers),
        Some(None) => {
            wrong(
                format!("`@approval` of `{id}` names no approvers"),
                "write `@approval(\"one\")`, `\"two\"` or `\"self\"`",
            );
            return None;
        }
    };
    let body = match policy.to_pst() {
        Ok(policy) => policy,
        Err(error) => {
            wrong(format!("`{id}` cannot be read: {error}"), "write it in another way");
            return None;
        }
    };
    let reads = Reads::of_rule(body.body());
    let policy = policy.new_id(PolicyId::new(id));
    let rule = Rule {
        id: id.to_owned(),
        forbids: policy.effect() == Effect::Forbid,
        reason: policy.annotation("reason").map(str::to_owned),
        approval,
        scope: Scope::of(&policy),
        actions: actions(&policy).into_iter().collect(),
        reads,
        place,
        policy,
    };
    debug_assert!(!file.name.is_empty(), "findings name the file");
    is_whole.then_some(rule)
}

/// Returns the finding of an error of the language.
fn syntax(file: &RuleFile, error: &dyn Diagnostic) -> RuleFinding {
    let offset = offset(error).unwrap_or_default();
    let place = Place::of(&file.name, &file.text, offset);
    let finding = RuleFinding::new(RuleCode::Syntax, place, error.to_string());
    match error.help() {
        Some(help) => finding.hint(help.to_string()),
        None => finding,
    }
}

/// Returns the byte of the text that an error is about.
pub(super) fn offset(error: &dyn Diagnostic) -> Option<usize> {
    error.labels()?.next().map(|label| label.offset())
}
