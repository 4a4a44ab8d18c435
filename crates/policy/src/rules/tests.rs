//! Tests of rules: findings and their locations, decisions, and the effect of changed tools.

mod argument_findings;
mod cases;
mod diff;
mod findings;
mod history;

use std::sync::Arc;

use serde_json::{Value, json};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::port::ItemKind;
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, CallerKind, Guard, Identity};

use super::*;
use crate::engine::{Binding, EngineTool, ItemQuestion, PolicyEngine, Question, Verdict};
use crate::{EngineError, Grant, Item, RuleSeverity};

fn tool(id: &str, properties: &Value, more: &Value) -> ToolContract {
    let mut entry = json!({
        "name": id, "description": "A tool.", "output_schema": {},
        "execution": { "localRuntimeId": "x" }, "permissions": ["write:money"],
        "input_schema": { "type": "object", "properties": properties, "required": ["to"] },
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        entry[name] = value.clone();
    }
    Guard::default().validate_entry(&entry).unwrap()
}

fn pay() -> ToolContract {
    tool(
        "pay.send",
        &json!({
            "to": { "type": "string" }, "amount": { "type": "number" },
            "cents": { "type": "integer" }, "note": {},
        }),
        &json!({}),
    )
}

fn read() -> ToolContract {
    let policy = json!({ "timeoutMs": 1_000, "trustLevel": "trusted", "readOnly": true });
    tool("files.read", &json!({ "to": { "type": "string" } }), &json!({ "policy": policy }))
}

fn file(text: &str) -> RuleFile {
    RuleFile { name: "main.cedar".into(), text: text.into(), cases: None }
}

fn set(text: &str) -> Arc<RuleSet> {
    RuleSet::read(&[file(text)], &HistoryWindows::default())
        .unwrap_or_else(|findings| panic!("{findings:?}"))
}

/// The findings of a set that is not accepted, or that does not fit the tools.
fn findings(text: &str) -> Vec<String> {
    told(&file(text), &HistoryWindows::default())
}

/// The errors and warnings about a file of rules.
fn told(file: &RuleFile, windows: &HistoryWindows) -> Vec<String> {
    let found = match RuleSet::read(std::slice::from_ref(file), windows) {
        Err(findings) => findings,
        Ok(set) => bind(&set, &[pay(), read()]).findings,
    };
    let told = found.iter().filter(|finding| finding.code.severity() != RuleSeverity::Note);
    told.map(|finding| format!("{} {finding}", finding.code.as_str())).collect()
}

fn bind(engine: &dyn PolicyEngine, tools: &[ToolContract]) -> Binding {
    let tools: Vec<(&ToolContract, String)> =
        tools.iter().map(|tool| (tool, serde_json::to_string(tool).unwrap())).collect();
    let tools: Vec<EngineTool<'_>> =
        tools.iter().map(|(contract, digest)| EngineTool { contract, digest }).collect();
    engine.bind(&tools).expect("rules are bound")
}

/// A question, with defaults.
struct Ask {
    tool: ToolContract,
    caller: Identity,
    grants: Vec<Grant>,
    arguments: Value,
    claimed: CallContext,
    at: &'static str,
}

impl Ask {
    fn new(tool: ToolContract, arguments: Value) -> Self {
        Self {
            tool,
            caller: Identity::local(),
            grants: Vec::new(),
            arguments,
            claimed: CallContext::default(),
            at: "2026-05-01T12:00:00.000Z",
        }
    }

    fn of(self, engine: &dyn PolicyEngine) -> Result<Verdict, EngineError> {
        engine.judge(&self.question())
    }

    fn question(&self) -> Question<'_> {
        Question {
            caller: &self.caller,
            grants: &self.grants,
            contract: &self.tool,
            arguments: &self.arguments,
            trust: TrustLevel::Trusted,
            claimed: &self.claimed,
            at: self.at,
        }
    }
}

/// The rule that decides, with `+`, `-` or `!` and the rule that asks for an approval.
fn decided(verdict: Result<Verdict, EngineError>) -> String {
    match verdict {
        Ok(Verdict::Depends(verdict)) => {
            format!("?{}", verdict.windows().keys().cloned().collect::<Vec<_>>().join(","))
        }
        Ok(Verdict::Permit { rule, approval: None }) => format!("+{rule}"),
        Ok(Verdict::Permit { rule, approval: Some(need) }) => {
            format!("+{rule} {} {:?}", need.rule, need.by)
        }
        Ok(Verdict::Deny { rule, .. }) => format!("-{rule}"),
        Err(error) => format!("!{error}"),
    }
}

fn judged(text: &str, ask: Ask) -> String {
    let binding = bind(&set(text), std::slice::from_ref(&ask.tool));
    decided(ask.of(&*binding.engine))
}

const PERMIT: &str = "@id(\"all\") permit (principal, action, resource);\n";

#[test]
fn a_forbid_beats_every_permit_and_nothing_is_permitted_by_default() {
    let ask = |arguments: Value| Ask::new(pay(), arguments);
    assert_eq!(judged("", ask(json!({}))), "-no-rule");
    assert_eq!(judged(PERMIT, ask(json!({}))), "+all");
    let large = format!(
        "{PERMIT}@id(\"large\") @reason(\"At most 500.\") \
         forbid (principal, action == Action::\"pay.send\", resource) \
         when {{ context.args has amount && context.args.amount.greaterThan(decimal(\"500.0\")) }};"
    );
    for (amount, rule) in [
        ("500", "+all"),
        ("500.0001", "-large"),
        (
            "5.0000001e2",
            "!the argument `/amount` is no decimal with at most four digits after the point",
        ),
        ("1e400", "!the argument `/amount` is no decimal with at most four digits after the point"),
    ] {
        let arguments = serde_json::from_str(&format!("{{\"amount\": {amount}}}")).unwrap();
        assert_eq!(judged(&large, ask(arguments)), rule, "{amount}");
    }
    let binding = bind(&set(&large), &[pay()]);
    match ask(json!({ "amount": 501 })).of(&*binding.engine) {
        Ok(Verdict::Deny { reason, .. }) => assert_eq!(reason, "At most 500."),
        other => panic!("{other:?}"),
    }
    // An overflow is an error, and an error denies, whatever another rule permits.
    let overflow = format!(
        "{PERMIT}@id(\"sum\") permit (principal, action == Action::\"pay.send\", resource) \
         when {{ context.args has cents && context.args.cents + 1 > 0 }};"
    );
    assert_eq!(judged(&overflow, ask(json!({ "cents": 1 }))), "+all");
    let error = judged(&overflow, ask(json!({ "cents": i64::MAX })));
    assert!(
        error.starts_with("!the rule `sum` cannot be evaluated") && error.contains("overflow"),
        "{error}"
    );
}

#[test]
fn groups_callers_tools_and_time_are_what_they_are() {
    let finance = Identity::named("key:bob").unwrap().with_groups(vec!["finance".into()]);
    let permits = |rule: &str, tool: ToolContract, change: &dyn Fn(&mut Ask)| {
        let mut ask = Ask::new(tool, json!({ "to": "b" }));
        change(&mut ask);
        judged(&format!("@id(\"r\") permit (principal, action, resource) {rule};"), ask) == "+r"
    };
    let as_is = |_: &mut Ask| ();
    let in_scope = |scope: &str, tool: ToolContract| {
        judged(&format!("@id(\"r\") permit {scope};"), Ask::new(tool, json!({}))) == "+r"
    };
    let by_finance = |ask: &mut Ask| ask.caller = finance.clone();
    let grants = |ask: &mut Ask| ask.grants = vec![Grant::parse("write:*").unwrap()];
    assert!(permits("when { principal in Group::\"finance\" }", pay(), &by_finance));
    assert!(!permits("when { principal in Group::\"finance\" }", pay(), &as_is));
    assert!(permits("when { principal.kind == \"local\" }", pay(), &as_is));
    assert!(permits("when { principal.grants.contains(\"write:*\") }", pay(), &grants));
    assert!(!permits("when { principal.grants.contains(\"write:*\") }", pay(), &as_is));
    let late = "when { context.time > datetime(\"2026-05-01T11:59:59.999Z\") }";
    assert!(permits(late, pay(), &as_is));
    let claims = "when { context.claimed has agentId && context.claimed.agentId == \"a\" }";
    assert!(permits(claims, pay(), &|ask| ask.claimed.agent_id = Some("a".into())));
    assert!(!permits(claims, pay(), &as_is));
    for (action, in_pay, in_read) in [
        ("Action::\"call\"", true, true),
        ("Action::\"read\"", false, true),
        ("Action::\"write\"", true, false),
        ("Action::\"pay.*\"", true, false),
        ("Action::\"category:function\"", true, true),
        ("Action::\"permission:write:money\"", true, true),
        ("[Action::\"read\", Action::\"pay.send\"]", true, true),
        ("[Action::\"use:prompts\", Action::\"pay.send\"]", true, false),
    ] {
        let scope = format!("(principal, action in {action}, resource)");
        assert_eq!(in_scope(&scope, pay()), in_pay, "{scope}");
        assert_eq!(in_scope(&scope, read()), in_read, "{scope}");
    }
    assert!(in_scope("(principal, action, resource == Tool::\"pay.send\")", pay()));
    assert!(!in_scope("(principal, action, resource is Prompt)", pay()));
    let facts = "(principal, action, resource is Tool) when { resource.readOnly && \
                 resource.trust == \"trusted\" && resource.source == \"local:x\" && \
                 resource.permissions.contains(\"write:money\") && resource.id like \"files.*\" }";
    assert!(in_scope(facts, read()) && !in_scope(facts, pay()));
    let named_read = tool("read", &json!({ "to": { "type": "string" } }), &json!({}));
    assert!(in_scope("(principal, action == Action::\"tool:read\", resource)", named_read.clone()));
    assert!(!in_scope("(principal, action == Action::\"files.read\", resource)", named_read));
}

#[test]
fn an_approval_is_asked_for_by_a_forbid_always_and_by_a_permit_alone() {
    let rule = |id: &str, by: &str, effect: &str| {
        format!("@id(\"{id}\") @approval(\"{by}\") {effect} (principal, action, resource);\n")
    };
    let judged = |text: &str| judged(text, Ask::new(pay(), json!({})));
    assert_eq!(judged(&rule("ask", "one", "permit")), "+ask ask One");
    assert_eq!(judged(&format!("{PERMIT}{}", rule("ask", "one", "permit"))), "+all");
    assert_eq!(judged(&format!("{PERMIT}{}", rule("ask", "two", "forbid"))), "+all ask Two");
    assert_eq!(judged(&rule("ask", "two", "forbid")), "-no-rule");
    let both = format!("{}{}", rule("least", "self", "permit"), rule("most", "one", "permit"));
    assert_eq!(judged(&both), format!("+least least {:?}", Approvers::Caller));
    let three = format!("{both}{}", rule("stop", "two", "forbid"));
    assert_eq!(judged(&three), "+least stop Two");
    let plain = "@id(\"never\") forbid (principal, action, resource);";
    assert_eq!(judged(&format!("{three}{plain}")), "-never");
    let told = findings(&format!("{PERMIT}{}", rule("ask", "one", "permit")));
    assert!(told.len() == 1 && told[0].starts_with("approval-bypassed main.cedar:2:1"), "{told:?}");
}

#[test]
fn a_scope_holds_as_it_is_written() {
    for (scope, rule) in [
        ("action in Action::\"read\", resource == Tool::\"pay.send\"", "-no-rule"),
        ("action in Action::\"write\", resource == Tool::\"pay.send\"", "+r"),
        (
            "action in [Action::\"read\", Action::\"a.b\"], resource == Tool::\"pay.send\"",
            "-no-rule",
        ),
        ("action == Action::\"tool:pay.send\", resource", "-no-rule"),
    ] {
        let text = format!("@id(\"r\") permit (principal, {scope});");
        assert_eq!(judged(&text, Ask::new(pay(), json!({}))), rule, "{scope}");
    }
}

#[test]
fn a_record_that_is_compared_has_no_members_that_rules_cannot_see() {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } },
        "required": ["city"] });
    let tool = tool("pay.send", &json!({ "to": city }), &json!({}));
    let rule = "@id(\"r\") permit (principal, action == Action::\"pay.send\", resource) \
                when { context.args.to == {\"city\": \"Berlin\"} };";
    let ask = |to: Value| judged(rule, Ask::new(tool.clone(), json!({ "to": to })));
    assert_eq!(ask(json!({ "city": "Berlin" })), "+r");
    assert_eq!(ask(json!({ "city": "Rome" })), "-no-rule");
    assert!(ask(json!({ "city": "Berlin", "account": "x" })).starts_with("!the argument `/to`"));
}

#[test]
fn a_tool_that_the_rules_do_not_fit_is_refused_alone() {
    let text = format!(
        "{PERMIT}@id(\"cents\") forbid (principal, action == Action::\"pay.send\", resource) \
         when {{ context.args has cents && context.args.cents > 100 }};"
    );
    let set = set(&text);
    let first = bind(&set, &[read()]);
    assert!(first.failures.is_empty(), "unknown so far");
    let other = tool("pay.send", &json!({ "cents": { "type": "string" } }), &json!({}));
    let wrong = bind(&*first.engine, &[read(), other.clone()]);
    let reason = wrong.failures.get("pay.send").unwrap();
    assert!(reason.contains("main.cedar:2:") && reason.contains("Long"), "{reason}");
    let ask = |tool: ToolContract| Ask::new(tool, json!({ "cents": 5 }));
    assert!(decided(ask(other).of(&*wrong.engine)).starts_with('!'));
    assert_eq!(decided(ask(read()).of(&*wrong.engine)), "+all");
    // The tool is checked again when its contract changes.
    let right = bind(&*wrong.engine, &[read(), pay()]);
    assert!(right.failures.is_empty());
    assert_eq!(decided(ask(pay()).of(&*right.engine)), "+all");
    let dear = Ask::new(pay(), json!({ "cents": 101 }));
    assert_eq!(decided(dear.of(&*right.engine)), "-cents");
    // A tool that is not there, and rules that were never bound, judge nothing.
    assert!(decided(ask(pay()).of(&*first.engine)).starts_with('!'));
    assert!(decided(ask(pay()).of(&set)).starts_with('!'));
}

#[test]
fn an_approval_is_bound_to_all_rules_that_ask() {
    let need = |text: &str| {
        let binding = bind(&set(text), &[pay()]);
        match Ask::new(pay(), json!({})).of(&*binding.engine) {
            Ok(Verdict::Permit { approval: Some(need), .. }) => need,
            other => panic!("an approval is needed: {other:?}"),
        }
    };
    let ask = |id: &str, by: &str, reason: &str| {
        format!(
            "@id(\"{id}\") @reason(\"{reason}\") @approval(\"{by}\")\n\
             forbid (principal, action == Action::\"pay.send\", resource);\n"
        )
    };
    let (one, two) = (ask("one", "one", "a"), ask("two", "two", "b"));
    let both = need(&format!("{PERMIT}{one}{two}"));
    assert_eq!((both.rule.as_str(), both.by), ("two", Approvers::Two));
    // What does not ask does not count, and each rule that asks does.
    let more = "@id(\"more\") permit (principal, action, resource);";
    assert_eq!(need(&format!("{PERMIT}{one}{two}{more}")), both);
    for other in [
        two.clone(),
        format!("{one}{}", ask("two", "two", "c")),
        format!("{}{two}", ask("one", "one", "c")),
        format!("{}{two}", ask("other", "one", "a")),
    ] {
        assert_ne!(need(&format!("{PERMIT}{other}")).rule_digest, both.rule_digest, "{other}");
    }
}

#[test]
fn prompts_and_resources_are_judged_by_the_rules_about_them() {
    let judged = |text: &str, kind, id: &str| {
        let binding = bind(&set(text), &[]);
        decided(binding.engine.judge_item(&ItemQuestion {
            caller: &Identity::local(),
            grants: &[],
            item: &Item { kind, server: "s", id },
            claimed: &CallContext::default(),
            at: "2026-01-01T00:00:00.000Z",
        }))
    };
    assert_eq!(judged(PERMIT, ItemKind::Prompt, "s.greet"), "+all");
    assert_eq!(judged("", ItemKind::Resource, "s.file:///a"), "-no-rule");
    let notes = "@id(\"notes\") permit (principal, action == Action::\"read:resources\", resource) \
                 when { resource.id like \"s.file:///notes/*\" && resource.server == \"s\" };";
    assert_eq!(judged(notes, ItemKind::Resource, "s.file:///notes/a"), "+notes");
    assert_eq!(judged(notes, ItemKind::Template, "s.file:///secret/a"), "-no-rule");
    assert_eq!(judged(notes, ItemKind::Prompt, "s.file:///notes/a"), "-no-rule");
    let tools = "@id(\"tools\") permit (principal, action in Action::\"call\", resource);";
    assert_eq!(judged(tools, ItemKind::Prompt, "s.greet"), "-no-rule");
}

#[test]
fn the_version_is_that_of_the_texts() {
    let version = |text: &str| set(text).version().to_owned();
    assert_eq!(version(PERMIT), version(PERMIT));
    assert_ne!(version(PERMIT), version(""));
    let binding = bind(&set(PERMIT), &[pay()]);
    assert_eq!(binding.engine.version(), version(PERMIT));
}

#[test]
fn each_question_about_a_tool_is_judged_with_its_own_caller_and_trust() {
    let text = "\
        @id(\"kind\") permit (principal, action, resource) when { principal.kind == \"local\" };\n\
        @id(\"group\") permit (principal in Group::\"a\", action, resource);\n\
        @id(\"scope\") permit (principal, action, resource) when { principal.scopes.contains(\"s\") };\n\
        @id(\"grant\") permit (principal, action, resource) when { principal.grants.contains(\"write:*\") };\n\
        @id(\"trust\") forbid (principal, action, resource is Tool) when { resource.trust == \"untrusted\" };\n";
    let tool = pay();
    let binding = bind(&set(text), std::slice::from_ref(&tool));
    let grant = [Grant::parse("write:*").unwrap()];
    let key = || Identity::named("key:k").unwrap();
    let asked: [(Identity, &[Grant], TrustLevel, &str); 7] = [
        (key(), &[], TrustLevel::Trusted, "-no-rule"),
        (key().with_groups(vec!["a".into()]), &[], TrustLevel::Trusted, "+group"),
        (key().with_scopes(vec!["s".into()]), &[], TrustLevel::Trusted, "+scope"),
        (key(), &grant, TrustLevel::Trusted, "+grant"),
        (key(), &grant, TrustLevel::Untrusted, "-trust"),
        (Identity { kind: CallerKind::Local, ..key() }, &[], TrustLevel::Trusted, "+kind"),
        (Identity::named("key:other").unwrap(), &[], TrustLevel::Trusted, "-no-rule"),
    ];
    let (arguments, claimed) = (json!({ "to": "x" }), CallContext::default());
    // Each after each other, and twice in a row.
    let pairs = asked.iter().flat_map(|one| asked.iter().map(move |other| [one, other])).flatten();
    for (caller, grants, trust, expected) in pairs {
        let question = Question {
            caller,
            grants,
            contract: &tool,
            arguments: &arguments,
            trust: *trust,
            claimed: &claimed,
            at: "2026-05-01T12:00:00.000Z",
        };
        assert_eq!(decided(binding.engine.judge(&question)), *expected, "{caller:?}");
    }
}
