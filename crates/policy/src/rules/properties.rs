//! Property tests of random rule sets: the permitted effect of adding or removing a rule, and the
//! independence of a decision from rules outside the tool's slice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Policy, PolicySet, Request, RestrictedExpression,
};
use proptest::prelude::*;
use serde_json::json;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::history::{History, WindowSeen};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, Guard, Identity, ToolPattern};

use super::bind::BoundRules;
use super::evaluation::Condition;
use super::grouped::GroupedRules;
use super::parties::Parties;
use super::source::RuleFile;
use super::{HistoryWindow, HistoryWindows, RuleSet, Within, entities};
use crate::engine::{EngineTool, PolicyEngine, Question, Verdict};
use crate::error::EngineError;

/// The tools of the rules.
fn tools() -> Vec<ToolContract> {
    ["pay.send", "pay.refund", "files.read"]
        .into_iter()
        .map(|id| {
            let entry = json!({
                "name": id, "description": "A tool.", "output_schema": {},
                "execution": { "localRuntimeId": "x" },
                "policy": { "timeoutMs": 1_000, "trustLevel": "trusted", "readOnly": id == "files.read" },
                "permissions": if id == "files.read" { vec!["read:files"] } else { vec!["move:money"] },
                "input_schema": { "type": "object", "properties": { "n": { "type": "integer" } } },
            });
            Guard::default().validate_entry(&entry).unwrap()
        })
        .collect()
}

/// A scope and whether it names tools, so that arguments can be read.
const SCOPES: [(&str, bool); 12] = [
    ("action in Action::\"read\", resource == Tool::\"pay.refund\"", true),
    (
        "action in [Action::\"write\", Action::\"files.read\"], resource == Tool::\"files.read\"",
        true,
    ),
    ("action, resource", false),
    ("action in Action::\"write\", resource", false),
    ("action in Action::\"pay.*\", resource", false),
    ("action in Action::\"category:function\", resource", false),
    ("action in [Action::\"category:llm\", Action::\"permission:read:files\"], resource", false),
    ("action in Action::\"permission:move:money\", resource", false),
    ("action == Action::\"pay.send\", resource", true),
    ("action in [Action::\"pay.send\", Action::\"files.read\"], resource", true),
    ("action, resource == Tool::\"pay.refund\"", true),
    ("action, resource is Prompt", false),
];
/// Conditions of all rules.
const PLAIN: [&str; 9] = [
    "true",
    "principal in Group::\"a\"",
    "principal.name == \"key:b\"",
    "!(principal.kind == \"key\")",
    "context.time < datetime(\"2026-06-01\")",
    "context.time > datetime(\"2026-06-01\") && principal.kind != \"local\"",
    "context.claimed has agentId && context.claimed.agentId == \"a\"",
    "context.claimed has turnIndex && context.claimed.turnIndex < 3",
    // Overflows for every caller.
    "9223372036854775807 + 1 > 0 || principal.name == \"key:x\"",
];
/// Conditions of rules that name tools.
const TYPED: [&str; 4] = [
    "context.args has n && context.args.n > 5",
    "context.args has n && context.args.n < 100",
    "context.args has n && context.args.n + 1 > 0",
    "context.args has n && context.args.n > 5 && context.claimed has agentId",
];

/// Conditions of rules that name tools and read a window. The last one overflows with a long window.
const HISTORIC: [&str; 4] = [
    "context.history.h.count > 2",
    "context.history.h.sum.lessThan(decimal(\"5.0\"))",
    "context.history.h.count < 9 && principal.name == \"key:b\"",
    "context.history.h.count + 9223372036854775800 > 0",
];

/// The content of the window `h`: the number of calls and their sum in ten thousandths.
const SEEN: [(u64, i128); 3] = [(0, 0), (3, 70_000), (9, 10)];

fn history((count, sum): (u64, i128)) -> History {
    let seen = WindowSeen { count, sum, since_ms: None };
    History::from([("h".to_owned(), seen)])
}

/// Declares the window `h`.
fn windows() -> HistoryWindows {
    let window = HistoryWindow {
        tool: ToolPattern::try_from("pay.*".to_owned()).unwrap(),
        length: Duration::from_secs(60),
        sum: Some("/n".to_owned()),
        within: Within::Caller,
    };
    HistoryWindows::new(BTreeMap::from([("h".to_owned(), window)])).unwrap()
}

#[derive(Debug, Clone)]
struct RandomRule {
    forbids: bool,
    scope: usize,
    condition: usize,
    approval: Option<&'static str>,
}

impl RandomRule {
    /// Returns the text of the rule, which reads windows only where `historic` says so.
    fn text(&self, id: usize, historic: bool) -> String {
        let (scope, named) = SCOPES[self.scope % SCOPES.len()];
        let conditions: Vec<&str> =
            PLAIN.iter().chain(TYPED.iter().filter(|_| named)).copied().collect();
        let conditions: Vec<&str> = match historic && named {
            true => conditions.into_iter().chain(HISTORIC).collect(),
            false => conditions,
        };
        let condition = conditions[self.condition % conditions.len()];
        let effect = if self.forbids { "forbid" } else { "permit" };
        let approval = self.approval.map(|by| format!("@approval(\"{by}\") ")).unwrap_or_default();
        format!("@id(\"r{id}\") {approval}{effect} (principal, {scope}) when {{ {condition} }};\n")
    }
}

fn rule() -> impl Strategy<Value = RandomRule> {
    let approval = prop_oneof![4 => Just(None), 1 => Just(Some("one")), 1 => Just(Some("two")), 1 => Just(Some("self"))];
    (any::<bool>(), 0..12_usize, 0..17_usize, approval).prop_map(
        |(forbids, scope, condition, approval)| RandomRule { forbids, scope, condition, approval },
    )
}

fn set(rules: &[RandomRule], historic: bool) -> Arc<RuleSet> {
    let text = rules.iter().enumerate().map(|(id, rule)| rule.text(id, historic)).collect();
    let file = RuleFile { name: "r.cedar".into(), text, cases: None };
    RuleSet::read(&[file], &windows()).unwrap()
}

/// The rules' answers to all questions, with each history of the window.
fn answers(rules: &[RandomRule]) -> Vec<Result<Verdict, EngineError>> {
    let tools = tools();
    let known: Vec<EngineTool<'_>> =
        tools.iter().map(|contract| EngineTool { contract, digest: "" }).collect();
    let engine = set(rules, true).bind(&known).unwrap().engine;
    let judge = |question: &Question<'_>| {
        let verdict = engine.judge(question);
        SEEN.map(|seen| match &verdict {
            Ok(Verdict::Depends(later)) => later.complete(&history(seen), None),
            verdict => verdict.clone(),
        })
    };
    questions(&tools, judge).into_iter().flatten().collect()
}

fn questions<T>(tools: &[ToolContract], mut judge: impl FnMut(&Question<'_>) -> T) -> Vec<T> {
    let mut answers = Vec::new();
    let callers = [
        Identity::local(),
        Identity::named("key:b").unwrap(),
        Identity::named("key:c").unwrap().with_groups(vec!["a".into()]),
    ];
    let claims =
        CallContext { agent_id: Some("a".into()), turn_index: Some(2), ..CallContext::default() };
    let moments = [
        (CallContext::default(), "2026-01-01T00:00:00.000Z"),
        (claims, "2026-07-01T00:00:00.000Z"),
    ];
    for contract in tools {
        for caller in &callers {
            for arguments in [json!({}), json!({ "n": 7 }), json!({ "n": i64::MAX })] {
                for (claimed, at) in &moments {
                    answers.push(judge(&Question {
                        caller,
                        grants: &[],
                        contract,
                        arguments: &arguments,
                        trust: TrustLevel::Trusted,
                        claimed,
                        at,
                    }));
                }
            }
        }
    }
    answers
}

/// How much an answer allows: nothing, with an approval (the stricter the less), everything.
fn allows(answer: &Result<Verdict, EngineError>) -> usize {
    match answer {
        Err(_) | Ok(Verdict::Deny { .. }) => 0,
        Ok(Verdict::Depends(_)) => panic!("it is complete"),
        Ok(Verdict::Permit { approval: Some(need), .. }) => 3 - need.by as usize,
        Ok(Verdict::Permit { approval: None, .. }) => 4,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_forbid_more_and_a_permit_less_never_allow_more(
        rules in proptest::collection::vec(rule(), 0..7),
        more in rule(),
        less in 0..7_usize,
    ) {
        let before = answers(&rules);
        let mut further = rules.clone();
        further.push(RandomRule { forbids: true, ..more });
        for (before, after) in before.iter().zip(answers(&further)) {
            prop_assert!(allows(&after) <= allows(before), "{before:?} {after:?}");
        }
        let Some(removed) = rules.get(less).filter(|rule| !rule.forbids) else { return Ok(()) };
        // A permit that cannot be evaluated denies, so that without it more is allowed.
        let alone = answers(std::slice::from_ref(removed));
        let mut fewer = rules.clone();
        fewer.remove(less);
        for ((before, after), alone) in before.iter().zip(answers(&fewer)).zip(alone) {
            prop_assert!(alone.is_err() || allows(&after) <= allows(before), "{before:?} {after:?}");
        }
    }

    #[test]
    fn the_slice_of_a_tool_decides_as_the_whole_set(
        rules in proptest::collection::vec(rule(), 0..24),
    ) {
        let set = set(&rules, false);
        let whole = PolicySet::from_policies(
            (0..set.len()).map(|index| set.rule(index).policy.clone())
        ).unwrap();
        let tools = tools();
        let known: Vec<EngineTool<'_>> =
            tools.iter().map(|contract| EngineTool { contract, digest: "" }).collect();
        let bound = bound(&set, &known);
        let pairs = questions(&tools, |question| {
            (bound.applying(question), whole_answer(&bound, &whole, question, None))
        });
        for (slice, (decision, mut reasons, failed)) in pairs {
            match slice {
                Err(_) => prop_assert!(failed),
                Ok((slice, _)) => {
                    prop_assert!(!failed);
                    let denies = !slice.forbids.is_empty() || slice.permits.is_empty();
                    prop_assert_eq!(decision == Decision::Deny, denies);
                    let own = if slice.forbids.is_empty() { slice.permits } else { slice.forbids };
                    let mut own: Vec<String> =
                        own.iter().map(|index| set.rule(*index).id().to_owned()).collect();
                    own.sort();
                    reasons.sort();
                    prop_assert_eq!(own, reasons);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_slice_of_a_tool_decides_as_the_whole_set_with_windows(
        rules in proptest::collection::vec(rule(), 0..12),
    ) {
        let rules: Vec<RandomRule> =
            rules.into_iter().map(|rule| RandomRule { approval: None, ..rule }).collect();
        let own = answers(&rules);
        let set = set(&rules, true);
        let all = (0..set.len()).map(|index| set.rule(index).policy.clone());
        let whole = PolicySet::from_policies(all).unwrap();
        let tools = tools();
        let known: Vec<EngineTool<'_>> =
            tools.iter().map(|contract| EngineTool { contract, digest: "" }).collect();
        let bound = bound(&set, &known);
        let whole = questions(&tools, |question| {
            SEEN.map(|seen| whole_answer(&bound, &whole, question, Some(seen)))
        });
        for (own, (decision, _, failed)) in own.iter().zip(whole.into_iter().flatten()) {
            let expected = if failed || decision == Decision::Deny { 0 } else { 4 };
            prop_assert_eq!(allows(own), expected, "{:?}", own);
        }
    }
}

/// Forbids, by scope and conditions; the last one cannot be evaluated.
const FORBIDS: [&str; 12] = [
    "principal, action, resource) when { principal.name == \"key:b\" }",
    "principal, action, resource) when { principal in Group::\"a\" } unless { principal.kind == \"key\" }",
    "principal, action, resource) unless { principal.kind == \"key\" || principal.name like \"l*\" }",
    "principal, action, resource) when { principal.name == \"key:missing\" }",
    "principal, action, resource) when { principal.name != \"key:missing\" } unless { true }",
    "principal in Group::\"a\", action, resource)",
    "principal, action in Action::\"write\", resource) when { principal.kind == \"key\" }",
    "principal, action == Action::\"pay.send\", resource)",
    "principal, action, resource == Tool::\"pay.refund\")",
    "principal, action, resource)",
    "principal == Caller::\"key:b\", action, resource) when { principal.scopes.contains(\"x\") }",
    "principal, action, resource) when { principal.kind == \"key\" && 9223372036854775807 + 1 > 0 }",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rules_in_groups_decide_as_each_by_itself(
        // Most rules apply to no caller or to some, so that groups of all kinds occur.
        rules in proptest::collection::vec(
            prop_oneof![20 => 0..5_usize, 4 => 5..11_usize, 1 => Just(11_usize)], 0..40,
        ),
    ) {
        let text: String = rules.iter().enumerate()
            .map(|(id, form)| format!("@id(\"r{id}\") forbid ({};\n", FORBIDS[*form]))
            .collect();
        let file = RuleFile { name: "r.cedar".into(), text, cases: None };
        let set = RuleSet::read(&[file], &HistoryWindows::default()).unwrap();
        let rules = || (0..set.len()).map(|index| set.rule(index));
        // Those of tools have no scope; those of prompts and resources have theirs.
        let forms: [Vec<&Policy>; 2] =
            [rules().map(|rule| &rule.unscoped).collect(), rules().map(|rule| &rule.policy).collect()];
        for form in forms {
            let form = || form.iter().copied().enumerate();
            let whole: Vec<Condition> =
                form().map(|(index, rule)| Condition::of(index, rule)).collect();
            let grouped = GroupedRules::new(form());
            for contract in &tools() {
                for caller in [
                    Identity::local(),
                    Identity::named("key:b").unwrap(),
                    Identity::named("key:c").unwrap().with_groups(vec!["a".into()]),
                ] {
                    let groups = ["write"].into_iter();
                    let tool = entities::tool(contract, TrustLevel::Trusted, groups).unwrap();
                    let parties = Parties::new(&caller, &[], tool).unwrap();
                    let evaluation = parties.evaluation(Vec::new());
                    let (mut own, mut each) = (Vec::new(), Vec::new());
                    let text = |error: EngineError| error.to_string();
                    let failed = grouped.apply(&evaluation, &mut own).map_err(text);
                    prop_assert_eq!(&failed, &evaluation.apply(&whole, &mut each).map_err(text));
                    prop_assert!(failed.is_err() || own == each, "{:?} {:?}", own, each);
                }
            }
        }
    }
}

fn bound(set: &Arc<RuleSet>, tools: &[EngineTool<'_>]) -> BoundRules {
    BoundRules::of(set, tools, None)
}

/// Returns the decision of the language on the whole set, its reasons, and whether a rule failed.
fn whole_answer(
    bound: &BoundRules,
    whole: &PolicySet,
    question: &Question<'_>,
    seen: Option<(u64, i128)>,
) -> (Decision, Vec<String>, bool) {
    let tool = &bound.tools[question.contract.tool_id.as_str()];
    let caller = entities::caller(question.caller, &[]).unwrap();
    let groups = tool.groups.iter().map(String::as_str);
    let [resource, action] = entities::tool(question.contract, question.trust, groups).unwrap();
    let number = question.arguments.get("n").map(|n| n.as_i64().unwrap());
    let fields = number.map(|n| ("n".to_owned(), RestrictedExpression::new_long(n)));
    let record = RestrictedExpression::new_record(fields).unwrap();
    let windows = seen.map(|(count, sum)| {
        let sum = format!("{}.{:04}", sum / 10_000, sum % 10_000);
        let window = [
            ("count".to_owned(), RestrictedExpression::new_long(i64::try_from(count).unwrap())),
            ("sum".to_owned(), RestrictedExpression::new_decimal(sum)),
        ];
        let window = RestrictedExpression::new_record(window).unwrap();
        let all = RestrictedExpression::new_record([("h".to_owned(), window)]).unwrap();
        ("history".to_owned(), all)
    });
    let agent = question.claimed.agent_id.clone();
    let agent = agent.map(|agent| ("agentId".to_owned(), RestrictedExpression::new_string(agent)));
    let turn = question.claimed.turn_index.map(|turn| i64::try_from(turn).unwrap());
    let turn = turn.map(|turn| ("turnIndex".to_owned(), RestrictedExpression::new_long(turn)));
    let claimed = RestrictedExpression::new_record(agent.into_iter().chain(turn)).unwrap();
    let time = RestrictedExpression::new_datetime(question.at);
    let own = [("args", record), ("claimed", claimed), ("time", time)];
    let own = own.map(|(name, part)| (name.to_owned(), part));
    let parts = own.into_iter().chain(windows);
    let context = Context::from_pairs(parts).unwrap();
    let request = Request::new(caller.uid(), action.uid(), resource.uid(), context, None).unwrap();
    let entities = Entities::from_entities([caller, resource, action], None).unwrap();
    let answer = Authorizer::new().is_authorized(&request, whole, &entities);
    let reasons = answer.diagnostics().reason().map(ToString::to_string).collect();
    (answer.decision(), reasons, answer.diagnostics().errors().next().is_some())
}
