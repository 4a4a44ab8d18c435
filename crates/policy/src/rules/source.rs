//! Reads files of rules: the rules with their annotations and locations, or findings.
//!
//! Doc: policy.md#rules

use std::collections::BTreeSet;
use std::str::FromStr;

use cedar_policy::pst::{self, StaticPolicy, Template};
use cedar_policy::{ActionConstraint, Effect, Policy, PolicyId, PolicySet};
use data_encoding::HEXLOWER;
use miette::Diagnostic;
use sha2::{Digest, Sha256};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::id::nearest;

use super::evaluation;
use super::literals::{Impossible, Literals};
use super::reads::Reads;
use super::scope::{Group, Scope, actions, id_of};
use crate::engine::ApprovalNeed;
use crate::rule_finding::{Location, RuleCode, RuleFinding};

/// Maximum length of a file of rules or cases, in bytes.
pub const RULE_FILE_BYTES_MAX: usize = 4 << 20;
/// Maximum number of rules in a set.
pub(super) const RULES_MAX: usize = 20_000;
/// Maximum length of one rule, in bytes.
const RULE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of operators and dots in one rule, and of brackets within one another: the language reads,
/// and gives up, conditions by recursion.
const OPERATORS_MAX: usize = 2_000;
const NESTED_MAX: usize = 100;
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
    pub(super) annotations: Annotations,
    /// SHA-256 of its text with its annotations, in hex.
    pub(super) digest: String,
    pub(super) policy: Policy,
    /// The same for the tools that the scope is known to fit.
    pub(super) unscoped: Policy,
    pub(super) forbids: bool,
    pub(super) location: Location,
    pub(super) scope: Scope,
    pub(super) reads: Reads,
    /// The tools that its conditions name.
    pub(super) compared: BTreeSet<String>,
    /// The names of all actions in it.
    pub(super) actions: Vec<String>,
}

/// Reads the rules of a file; what is wrong goes to `findings`.
pub(super) fn rules(file: &RuleFile, findings: &mut Vec<RuleFinding>) -> Vec<Rule> {
    let mut unreadable = |offset: usize, message: String| {
        let location = Location::of(&file.name, &file.text, offset);
        findings.push(RuleFinding::new(RuleCode::Syntax, location, message));
    };
    if file.text.len() > RULE_FILE_BYTES_MAX {
        unreadable(0, format!("the file has more than {RULE_FILE_BYTES_MAX} bytes"));
        return Vec::new();
    }
    if let Err((offset, message)) = check_depth(&file.text) {
        unreadable(offset, message);
        return Vec::new();
    }
    let set = match PolicySet::from_str(&file.text) {
        Ok(set) => set,
        Err(errors) => {
            findings.extend(errors.iter().map(|error| syntax(file, error)));
            return Vec::new();
        }
    };
    for template in set.templates() {
        let name = template.annotation("id").map_or("a rule".to_owned(), |id| format!("`{id}`"));
        let offset = file.text.find(&template.to_string()).unwrap_or_default();
        unreadable(
            offset,
            format!("{name} is a template; a rule has no `?principal` and no `?resource`"),
        );
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
        rules.extend(rule(policy, Location::of(&file.name, &file.text, at), findings));
    }
    rules
}

/// Checks that no rule is nested too deeply, by its text.
///
/// # Errors
/// Where the rule begins that is, and how.
fn check_depth(text: &str) -> Result<(), (usize, String)> {
    let (mut bytes, mut operators, mut nested) = (0_usize, 0_usize, 0_usize);
    let mut part = Part::Code;
    let mut before = 0;
    // Where the rule begins, once its first character is found.
    let mut start = None;
    for (at, byte) in text.bytes().enumerate() {
        let is_code = part == Part::Code;
        bytes += usize::from(part != Part::Comment);
        part = part.after(before, byte);
        // An escaped character ends nothing, and escapes nothing.
        before = if part == Part::Text && before == b'\\' { 0 } else { byte };
        match byte {
            _ if !is_code => (),
            b';' => (bytes, operators, nested, start) = (0, 0, 0, None),
            b'(' | b'[' | b'{' => nested += 1,
            b')' | b']' | b'}' => nested = nested.saturating_sub(1),
            b'.' | b'&' | b'|' | b'+' | b'-' | b'*' | b'!' => operators += 1,
            _ => (),
        }
        if part != Part::Comment && !matches!(byte, b';' | b'/') && !byte.is_ascii_whitespace() {
            start.get_or_insert(at);
        }
        let too_large = if bytes > RULE_BYTES_MAX {
            format!("a rule has more than {RULE_BYTES_MAX} bytes")
        } else if nested > NESTED_MAX {
            format!("a rule has more than {NESTED_MAX} brackets in one another")
        } else if operators > OPERATORS_MAX {
            format!("a rule has more than {OPERATORS_MAX} operators and dots")
        } else {
            continue;
        };
        return Err((start.unwrap_or_default(), too_large));
    }
    Ok(())
}

/// The part of a text of rules in which a character is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    /// A text in quotation marks.
    Text,
    /// From `//` to the end of the line.
    Comment,
}

impl Part {
    /// Returns the part after a character, by the one before it.
    fn after(self, before: u8, byte: u8) -> Self {
        match (self, before, byte) {
            (Self::Code, _, b'"') => Self::Text,
            (Self::Code, b'/', b'/') => Self::Comment,
            (Self::Text, escape, b'"') if escape != b'\\' => Self::Code,
            (Self::Comment, _, b'\n' | b'\r') => Self::Code,
            (part, ..) => part,
        }
    }
}

fn rule(policy: &Policy, location: Location, findings: &mut Vec<RuleFinding>) -> Option<Rule> {
    let annotations = annotations(policy, &location, findings)?;
    let id = &annotations.id;
    let mut wrong = |code, message: String, hint: &str| {
        findings.push(RuleFinding::new(code, location.clone(), message).hint(hint));
    };
    let unreadable = |error: &str, wrong: &mut dyn FnMut(RuleCode, String, &str)| {
        let message = format!("`{id}` cannot be read: {error}");
        wrong(RuleCode::Syntax, message, "write it in another way");
    };
    let body = match policy.to_pst() {
        Ok(policy) => policy,
        Err(error) => {
            unreadable(&error.to_string(), &mut wrong);
            return None;
        }
    };
    let reads = Reads::of_rule(body.body());
    let literals = Literals::of(policy, body.body());
    for Impossible { message, hint } in &literals.impossible {
        wrong(RuleCode::ImpossibleName, format!("in `{id}`, {message}"), hint);
    }
    let policy = policy.new_id(PolicyId::new(id));
    let unscoped = match without_scope(body.body()) {
        Ok(unscoped) => unscoped.new_id(PolicyId::new(id)),
        Err(error) => {
            unreadable(&error, &mut wrong);
            return None;
        }
    };
    if let ActionConstraint::Eq(action) = policy.action_constraint()
        && Group::parse(&id_of(&action)).is_some()
    {
        let message = format!("`{id}` never applies: {action} is a group");
        wrong(RuleCode::Annotation, message, &format!("write `action in {action}`"));
        return None;
    }
    let scope = Scope::of(&policy);
    if scope == Scope::default() {
        let message =
            format!("`{id}` never applies: no tool and no item fits its action and its resource");
        let hint = "name the same tool in both, or in one of them";
        wrong(RuleCode::Annotation, message, hint);
        return None;
    }
    if scope.is_general() && reads.of("args").is_some() {
        let message = "only a rule that names its tools can read arguments".to_owned();
        let hint = "write `action == Action::\"TOOL\"` or `action in [Action::\"TOOL\", …]`";
        wrong(RuleCode::Type, message, hint);
        return None;
    }
    let mut compared = literals.tools;
    if !scope.items {
        compared.extend(literals.ids);
    }
    Some(Rule {
        compared,
        forbids: policy.effect() == Effect::Forbid,
        digest: HEXLOWER.encode(&Sha256::digest(policy.to_string())),
        annotations,
        scope,
        actions: actions(&policy).into_iter().collect(),
        reads,
        location,
        policy,
        unscoped,
    })
}

impl Rule {
    pub(super) fn id(&self) -> &str {
        &self.annotations.id
    }

    /// Whether it applies to every question about the tools that its scope fits.
    pub(super) fn always_applies(&self) -> bool {
        evaluation::always_applies(&self.unscoped)
    }

    pub(super) fn approval(&self) -> Option<Approvers> {
        self.annotations.approval
    }

    /// Returns the approval that the rule asks for where it applies.
    pub(super) fn approval_need(&self) -> Option<ApprovalNeed> {
        let by = self.approval()?;
        let (rule, rule_digest) = (self.id().to_owned(), self.digest.clone());
        Some(ApprovalNeed { rule, rule_digest, by })
    }
}

/// The annotations of a rule.
#[derive(Debug, Clone)]
pub(super) struct Annotations {
    pub(super) id: String,
    pub(super) reason: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) approval: Option<Approvers>,
}

/// Reads the annotations of a rule; what is wrong goes to `findings`.
fn annotations(
    policy: &Policy,
    location: &Location,
    findings: &mut Vec<RuleFinding>,
) -> Option<Annotations> {
    const KNOWN: [&str; 4] = ["id", "reason", "owner", "approval"];
    let before = findings.len();
    let mut wrong = |message: String, hint: &str| {
        let finding = RuleFinding::new(RuleCode::Annotation, location.clone(), message);
        findings.push(finding.hint(hint));
    };
    for (name, text) in policy.annotations() {
        if !KNOWN.contains(&name) {
            let hint = match nearest(name, KNOWN) {
                Some(near) => format!("is `@{near}` meant?"),
                None => "write `@id`, `@reason`, `@owner` or `@approval`".to_owned(),
            };
            wrong(format!("`@{name}` is not an annotation of a rule"), &hint);
        } else if text.chars().count() > ANNOTATION_MAX {
            wrong(format!("`@{name}` has more than {ANNOTATION_MAX} characters"), "shorten it");
        }
    }
    let id = policy.annotation("id").filter(|id| !id.trim().is_empty());
    if id.is_none() {
        wrong("a rule has no `@id`".to_owned(), "write `@id(\"a-name\")` before it");
    }
    let asked = policy.annotation("approval");
    let approval = asked.and_then(Approvers::parse);
    if asked.is_some() && approval.is_none() {
        wrong(
            format!("`@approval` of `{}` names no approvers", id.unwrap_or_default()),
            "write `@approval(\"one\")`, `\"two\"` or `\"self\"`",
        );
    }
    let annotations = Annotations {
        id: id?.to_owned(),
        reason: policy.annotation("reason").map(str::to_owned),
        owner: policy.annotation("owner").map(str::to_owned),
        approval,
    };
    (findings.len() == before).then_some(annotations)
}

/// Returns a policy without the conditions of its scope on the action and on the type of the resource, which
/// cost as much as other conditions. Where it names a resource, both stay.
fn without_scope(rule: &Template) -> Result<Policy, String> {
    let mut body = rule.clone();
    if !matches!(body.resource, pst::ResourceConstraint::Eq(_)) {
        body.action = pst::ActionConstraint::Any;
        if matches!(body.resource, pst::ResourceConstraint::Is(_)) {
            body.resource = pst::ResourceConstraint::Any;
        }
    }
    let body = StaticPolicy::try_from(body).map_err(|error| error.to_string())?;
    Policy::from_pst(pst::Policy::Static(body)).map_err(|error| error.to_string())
}

/// Returns the finding of an error of the language.
fn syntax(file: &RuleFile, error: &dyn Diagnostic) -> RuleFinding {
    let offset = offset(error).unwrap_or_default();
    let location = Location::of(&file.name, &file.text, offset);
    let finding = RuleFinding::new(RuleCode::Syntax, location, error.to_string());
    match error.help() {
        Some(help) => finding.hint(help.to_string()),
        None => finding,
    }
}

/// Returns the byte of the text that an error is about.
pub(super) fn offset(error: &dyn Diagnostic) -> Option<usize> {
    error.labels()?.next().map(|label| label.offset())
}
