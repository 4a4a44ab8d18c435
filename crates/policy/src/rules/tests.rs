//! Tests of rules: what is refused and where, what is decided, and what happens as tools change.

mod diff;
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
use crate::{EngineError, Grant, Item};

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
    let found = match RuleSet::read(&[file(text)], &HistoryWindows::default()) {
        Err(findings) => findings,
        Ok(set) => bind(&set, &[pay(), read()]).findings,
    };
    found.iter().map(|finding| format!("{} {finding}", finding.code.as_str())).collect()
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

#[test]
fn findings_have_their_place_and_a_correction() {
    let pay = |condition: &str| {
        format!(
            "// Ä\n@id(\"a\")\npermit (principal, action == Action::\"pay.send\", resource)\n\
             when {{ {condition} }};"
        )
    };
    let any = |condition: &str| {
        format!("@id(\"a\")\nforbid (principal, action, resource)\nwhen {{ {condition} }};")
    };
    let all = "permit (principal, action, resource);";
    for (text, code, place, words) in [
        ("permit (principal, action, resource)".to_owned(), "invalid-rule", "1:37", "end of input"),
        (format!("@id(\"a\")\n{all}\n\n{all}"), "invalid-annotation", "4:1", "@id(\"a-name\")"),
        (
            format!("@id(\"a\") @reson(\"x\")\n{all}"),
            "invalid-annotation",
            "1:1",
            "`@reason` meant",
        ),
        (format!("@id(\"a\") @approval(\"all\")\n{all}"), "invalid-annotation", "1:1", "`\"two\"`"),
        (format!("@id(\"a\")\n{all}\n@id(\"a\")\n{all}"), "invalid-annotation", "3:1", ":1:1"),
        (
            "@id(\"a\")\npermit (principal == ?principal, action, resource);".to_owned(),
            "invalid-rule",
            "1:1",
            "template",
        ),
        (pay("context.args.cent > 5"), "mistyped-rule", "4:8", "`cents`"),
        (pay("context.args.cents > 5"), "mistyped-rule", "4:8", "`context.args has cents &&"),
        (pay("context.args.note == \"x\""), "mistyped-rule", "4:8", "`/note`"),
        (pay("context.args.to > 5"), "mistyped-rule", "4:8", "Long"),
        (any("context.args has to"), "mistyped-rule", "1:1", "names its tools"),
        (any("context has args && context.args has to"), "mistyped-rule", "1:1", "names its tools"),
        (pay("!(context.args has cent)"), "mistyped-rule", "2:1", "`cents` meant"),
        (pay("!(context.args has note)"), "mistyped-rule", "2:1", "its schema names no type"),
        (
            format!("@id(\"a\") {}", all.replace("action,", "action == Action::\"call\",")),
            "invalid-annotation",
            "1:1",
            "`action in Action::\"call\"`",
        ),
        (
            "@id(\"a\") permit (principal, action == Action::\"a.b\", resource == Tool::\"c.d\");"
                .to_owned(),
            "invalid-annotation",
            "1:1",
            "never applies",
        ),
        (
            format!("{PERMIT}@id(\"a\") forbid (principal is Tool, action, resource);"),
            "impossible-rule",
            "2:1",
            "never applies",
        ),
        (any("resource.category == \"llm\""), "mistyped-rule", "3:8", "`resource is Tool`"),
        (pay("principal in Grup::\"x\""), "mistyped-rule", "4:21", "`Group`"),
        (
            pay("x").replace("pay.send", "pay.sent").replace(" when { x }", ""),
            "unbound-rule",
            "2:1",
            "`pay.send` meant",
        ),
        (
            pay("context.claimed has epicId && context.claimed.epicId == \"x\""),
            "claimed-context",
            "2:1",
            "says of itself",
        ),
        (pay("false"), "impossible-rule", "2:1", "never"),
        (any("true").replace("permit", "forbid"), "no-permit", "1:1", "every call is denied"),
        (String::new(), "no-permit", "1:1", "every call is denied"),
    ] {
        let text = text.replace("\nwhen { x }", "");
        let found = findings(&text);
        let start = format!("{code} main.cedar:{place}: ");
        let fits = found.iter().any(|one| one.starts_with(&start) && one.contains(words));
        assert!(fits && found.len() == 1, "{text}\n{start}{words}\n{found:#?}");
    }
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
        error.starts_with("!a rule cannot be evaluated") && error.contains("overflow"),
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
fn rules_that_are_nested_too_deeply_are_refused() {
    let of = |condition: &str| {
        let text =
            format!("@id(\"a\") permit (principal, action, resource) when {{ {condition} }};");
        RuleSet::read(&[file(&text)], &HistoryWindows::default())
    };
    // The deepest that are read are judged, also with a small stack.
    let chain = |count: usize| format!("true{}", " && true".repeat(count));
    let ifs = format!("{}true", "if true then true else ".repeat(2_500));
    let small = || {
        // Forbids are evaluated in groups where they are not so deep.
        let text = format!(
            "@id(\"a\") forbid (principal, action, resource) when {{ {ifs} }};\n\
             @id(\"b\") forbid (principal, action, resource) when {{ {ifs} }};"
        );
        let set = set(&text);
        let binding = bind(&set, &[pay()]);
        let item = Item { kind: ItemKind::Prompt, server: "s", id: "s.p" };
        let judge = || {
            let denied = decided(Ask::new(pay(), json!({})).of(&*binding.engine));
            let (caller, claimed) = (Identity::local(), CallContext::default());
            let question = ItemQuestion {
                caller: &caller,
                grants: &[],
                item: &item,
                claimed: &claimed,
                at: "2026-05-01T12:00:00.000Z",
            };
            (denied, decided(binding.engine.judge_item(&question)))
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            thread.spawn_scoped(scope, judge).unwrap().join().unwrap()
        })
    };
    assert_eq!(small(), ("-a".to_owned(), "-a".to_owned()));
    for deep in [chain(990), ifs.clone()] {
        let set = of(&deep).unwrap_or_else(|findings| panic!("{findings:?}"));
        let binding = bind(&set, &[pay()]);
        let _ = decided(Ask::new(pay(), json!({})).of(&*binding.engine));
        let other = of(&deep.replacen("true", "false", 1)).unwrap();
        assert_eq!(set.differences(&other).changed[0].parts, ["conditions"]);
    }
    let sets = format!("{}1{} == [1]", "[".repeat(200), "]".repeat(200));
    let attributes = format!("principal{} == 1", ".name".repeat(2_100));
    for (deep, told) in [
        (chain(1_001), "2000 operators"),
        (attributes, "2000 operators"),
        (sets, "100 brackets"),
        ("x".repeat(70_000), "65536 bytes"),
    ] {
        let found = of(&deep).unwrap_err();
        assert!(found[0].message.contains(told), "{told}: {found:?}");
    }
    // A semicolon in a text or in a comment ends no rule, and brackets there are none.
    let parts = format!("{}\";\" == \"a\"{}", "(".repeat(60), ")".repeat(60));
    let two =
        format!("{}\"//\" != \"\\\"(;\" && // ;\n {parts} {}", "(".repeat(60), ")".repeat(60));
    assert!(of(&two).unwrap_err()[0].message.contains("100 brackets"), "{:?}", of(&two));
    let texts =
        format!("\"{}\\\\\" != \"{}\" // {}\n", "(".repeat(200), "[;".repeat(200), "(".repeat(200));
    assert!(of(&texts).is_ok(), "{:?}", of(&texts));
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
fn cases_are_run_when_the_rules_are_loaded() {
    let rules = "@id(\"all\") permit (principal, action, resource);\n\
                 @id(\"large\") forbid (principal, action == Action::\"pay.send\", resource)\n\
                 when { context.args has cents && context.args.cents > 100 };\n\
                 @id(\"guests\") @approval(\"one\") forbid (principal in Group::\"guests\", action, resource);\n";
    let run = |cases: &str| -> Vec<String> {
        let cases = Some(("main.cases.toml".to_owned(), cases.to_owned()));
        let found =
            match RuleSet::read(&[RuleFile { cases, ..file(rules) }], &HistoryWindows::default()) {
                Err(findings) => findings,
                Ok(set) => bind(&set, &[pay(), read()]).findings,
            };
        found.iter().map(|finding| format!("{} {finding}", finding.code.as_str())).collect()
    };
    let good = "[[case]]\nname = \"small\"\ntool = \"pay.send\"\nargs = { cents = 100 }\n\
                decision = \"permit\"\nmatch = [\"all\"]\nnot_match = [\"large\"]\n\
                [[case]]\nname = \"large\"\ntool = \"pay.send\"\nargs = { cents = 101 }\n\
                decision = \"deny\"\nmatch = [\"all\", \"large\"]\n\
                [[case]]\nname = \"guest\"\ncaller = \"key:bob\"\ngroups = [\"guests\"]\n\
                tool = \"files.read\"\ndecision = \"approval\"\n";
    assert_eq!(run(good), Vec::<String>::new());
    for (from, to, told) in [
        (
            "decision = \"permit\"",
            "decision = \"deny\"",
            "failed-case main.cases.toml:1:1: the case `small` fails: `deny` is expected, and it is `permit` by `all`",
        ),
        (
            "not_match = [\"large\"]",
            "not_match = [\"all\"]",
            "failed-case main.cases.toml:1:1: the case `small` fails: `all` applies",
        ),
        (
            "match = [\"all\", \"large\"]",
            "match = [\"guests\"]",
            "failed-case main.cases.toml:8:1: the case `large` fails: `guests` does not apply; these do: all, large",
        ),
        (
            "tool = \"files.read\"",
            "tool = \"files.raed\"",
            "unbound-case main.cases.toml:14:1: the case `guest` is about `files.raed`, no known tool",
        ),
        (
            "decision = \"approval\"\n",
            "",
            "invalid-case main.cases.toml:14:1: the case `guest` expects nothing (write `decision`, `match` or `not_match`)",
        ),
        (
            "caller = \"key:bob\"",
            "caller = \"bob\"",
            "invalid-case main.cases.toml:14:1: the case `guest` has a caller that is no name: `bob`",
        ),
        ("groups", "group", "invalid-case main.cases.toml:17:1: unknown field `group`"),
    ] {
        let found = run(&good.replace(from, to));
        assert!(found.len() == 1 && found[0].starts_with(told), "{told}\n{found:#?}");
    }
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
