//! Tests of rules that read windows over earlier calls.

use std::collections::BTreeMap;
use std::time::Duration;

use toolbooth_contracts::history::{History, WindowSeen};

use super::*;

/// Declares the windows `paid` (sums of `pay.*`), `reads` (of files) and `told` (of an epic).
fn windows() -> HistoryWindows {
    let of = |tool: &str, sum: Option<&str>, within| HistoryWindow {
        tool: toolbooth_contracts::ToolPattern::try_from(tool.to_owned()).unwrap(),
        length: Duration::from_secs(86_400),
        sum: sum.map(str::to_owned),
        within,
    };
    let all = [
        ("paid", of("pay.*", Some("/amount"), Within::Caller)),
        ("reads", of("files.read", None, Within::Caller)),
        ("told", of("files.read", None, Within::Epic)),
    ];
    let all = all.map(|(name, window)| (name.to_owned(), window));
    HistoryWindows::new(BTreeMap::from(all)).unwrap()
}

/// The warnings of a window over tools, with the tools `pay.send` and `files.read`.
fn told_of(tool: &str, sum: Option<&str>, text: &str) -> Vec<String> {
    let window = HistoryWindow {
        tool: toolbooth_contracts::ToolPattern::try_from(tool.to_owned()).unwrap(),
        length: Duration::from_secs(60),
        sum: sum.map(str::to_owned),
        within: Within::Caller,
    };
    told(&file(text), &HistoryWindows::new(BTreeMap::from([("own".to_owned(), window)])).unwrap())
}

#[test]
fn a_window_that_counts_no_known_tool_or_cannot_sum_is_told() {
    let text = format!(
        "{}@id(\"limit\") forbid (principal, action == Action::\"pay.send\", resource)\n\
         when {{ context.history.own.count > 1 }};",
        PERMIT
    );
    for (tool, sum, expected) in [
        ("pay.*", None, None),
        ("*", None, None),
        ("pay.send", Some("/amount"), None),
        ("pay.send", Some("/cents"), None),
        // It may be a number.
        ("pay.send", Some("/note"), None),
        (
            "pya.*",
            None,
            Some(
                "the window `own` counts `pya.*`, which is no known tool (is `tool = \"pay.*\"` meant?)",
            ),
        ),
        (
            "pay.sent",
            None,
            Some(
                "the window `own` counts `pay.sent`, which is no known tool (is `tool = \"pay.send\"` meant?)",
            ),
        ),
        (
            "elsewhere.*",
            None,
            Some(
                "the window `own` counts `elsewhere.*`, which is no known tool (it counts from the time when such a tool appears)",
            ),
        ),
        (
            "pay.*",
            Some("/amout"),
            Some(
                "the window `own` cannot count the calls of `pay.send`: it has no argument `/amout`, so the policy denies them (is `sum = \"/amount\"` meant?)",
            ),
        ),
        (
            "pay.*",
            Some("/to"),
            Some(
                "the window `own` cannot count the calls of `pay.send`: its argument `/to` is no number, so the policy denies them",
            ),
        ),
        (
            "*",
            Some("/missing/part"),
            Some(
                "the window `own` cannot count the calls of `files.read`, nor those of 1 more tools: it has no argument `/missing/part`, so the policy denies them",
            ),
        ),
    ] {
        let found = told_of(tool, sum, &text);
        let location = "unbound-window main.cedar:2:1: ";
        match expected {
            None => assert_eq!(found, Vec::<String>::new(), "{tool} {sum:?}"),
            Some(words) => assert!(
                found.len() == 1 && found[0].starts_with(&format!("{location}{words}")),
                "{tool} {sum:?}\n{found:#?}"
            ),
        }
    }
    // A window that no rule reads denies too, where it cannot sum.
    let unread = told_of("pay.*", Some("/to"), PERMIT);
    assert!(
        unread.len() == 1 && unread[0].starts_with("unbound-window main.cedar:1:1: "),
        "{unread:?}"
    );
    // What a set was bound to before is told as well.
    let unbound = bind(&set(PERMIT), &[pay(), read()]).engine.bind(&[]);
    assert!(unbound.is_some_and(|binding| binding.findings.is_empty()));
}

fn bound(text: &str) -> Binding {
    let set = RuleSet::read(&[file(text)], &windows());
    let set = set.unwrap_or_else(|findings| panic!("{findings:?}"));
    bind(&set, &[pay(), read()])
}

fn refused(text: &str) -> Vec<String> {
    told(&file(text), &windows())
}

/// Judges a call as its claim does: `earlier` are count, sum in ten thousandths, and time since the last.
fn judged(engine: &dyn PolicyEngine, ask: &Ask, earlier: &[(&str, u64, i128)]) -> String {
    let seen = earlier.iter().map(|(name, count, sum)| {
        let since_ms = (*count > 0).then_some(60_000);
        ((*name).to_owned(), WindowSeen { count: *count, sum: *sum, since_ms })
    });
    let earlier: History = seen.collect();
    let open = ask.question();
    let verdict = match engine.judge(&open) {
        Ok(Verdict::Depends(verdict)) => {
            let counted = engine.counted(&open).unwrap();
            let windows = verdict.windows();
            let history = toolbooth_contracts::history::seen(windows, &counted, &earlier);
            verdict.complete(&history, None)
        }
        early => {
            return format!("early {}", decided(early));
        }
    };
    decided(verdict)
}

const LIMITED: &str = "\
    @id(\"all\") permit (principal, action, resource);\n\
    @id(\"daily\") forbid (principal, action in Action::\"pay.*\", resource)\n\
    when { context.history.paid.sum.greaterThan(decimal(\"500.0\")) };\n";

#[test]
fn a_sum_includes_the_call_that_is_judged() {
    let binding = bound(LIMITED);
    let engine = &*binding.engine;
    let paying = |amount: f64| Ask::new(pay(), json!({ "to": "x", "amount": amount }));
    assert_eq!(decided(paying(1.0).of(engine)), "?paid");
    for (earlier, amount, told) in [
        (0, 500.0, "+all"),
        (0, 500.0001, "-daily"),
        (4_999_999, 0.0001, "+all"),
        (4_999_999, 0.0002, "-daily"),
        (i128::from(i64::MAX) * 4, 1.0, "!the window `paid` is larger than rules can read"),
    ] {
        let got = judged(engine, &paying(amount), &[("paid", 1, earlier)]);
        assert_eq!(got, told, "{earlier} {amount}");
    }
    // A tool whose rules read no window depends on none, and is not counted.
    let reading = Ask::new(read(), json!({ "to": "x" }));
    assert_eq!(judged(engine, &reading, &[]), "early +all");
    let counted = engine.counted(&reading.question()).unwrap();
    assert_eq!(counted.len(), 2, "two windows count it, which no rule reads");
}

#[test]
fn a_call_without_an_exact_amount_cannot_be_counted() {
    let binding = bound(LIMITED);
    for arguments in [
        json!({ "to": "x" }),
        json!({ "to": "x", "amount": -5 }),
        json!({ "to": "x", "amount": 1.00001 }),
        json!({ "to": "x", "amount": "5" }),
    ] {
        let ask = Ask::new(pay(), arguments);
        let wrong = binding.engine.counted(&ask.question()).unwrap_err();
        assert_eq!(wrong.window, "paid");
        assert!(wrong.reason.contains("`/amount`"), "{}", wrong.reason);
    }
}

#[test]
fn what_windows_cannot_change_is_decided_before() {
    let text = "\
        @id(\"after-review\") permit (principal, action == Action::\"pay.send\", resource)\n\
        when { context.history.reads has since && context.history.reads.since < duration(\"1h\") };\n\
        @id(\"late\") @approval(\"one\") forbid (principal, action == Action::\"pay.send\", resource)\n\
        when { context.history.paid.count > 2 };\n\
        @id(\"guests\") forbid (principal in Group::\"guests\", action, resource);\n\
        @id(\"reads\") permit (principal, action == Action::\"files.read\", resource);\n";
    let binding = bound(text);
    let engine = &*binding.engine;
    let mut ask = Ask::new(pay(), json!({ "to": "x", "amount": 1 }));
    assert_eq!(judged(engine, &ask, &[]), "-no-rule");
    assert_eq!(judged(engine, &ask, &[("reads", 1, 0)]), "+after-review");
    let asks = judged(engine, &ask, &[("reads", 1, 0), ("paid", 2, 0)]);
    assert!(asks.starts_with("+after-review late"), "{asks}");
    ask.caller = Identity::named("key:g").unwrap().with_groups(vec!["guests".into()]);
    assert_eq!(judged(engine, &ask, &[("reads", 1, 0)]), "early -guests");
    // Nothing can permit it, whatever the windows hold.
    let text = "@id(\"few\") forbid (principal, action == Action::\"pay.send\", resource)\n\
                when { context.history.paid.count > 2 };\n";
    let ask = Ask::new(pay(), json!({ "to": "x", "amount": 1 }));
    assert_eq!(judged(&*bound(text).engine, &ask, &[]), "early -no-rule");
}

#[test]
fn a_window_that_is_not_declared_refuses_the_rules() {
    let of = |condition: &str| {
        refused(&format!(
            "@id(\"a\") permit (principal, action == Action::\"pay.send\", resource)\n\
             when {{ {condition} }};"
        ))
    };
    for (condition, told) in [
        ("context.history.payed.count > 1", "did you mean `paid`?"),
        ("context.history.reads.sum.lessThan(decimal(\"1.0\"))", "sum"),
        ("context.history.paid.since < duration(\"1h\")", "since"),
    ] {
        let found = of(condition);
        let is_told = |finding: &String| finding.starts_with("mistyped-rule main.cedar:");
        assert!(found.iter().any(is_told) && found.concat().contains(told), "{found:#?}");
    }
    assert_eq!(of("context.history.paid.count > 1"), Vec::<String>::new());
    // Also where a rule only looks whether it is there.
    let found = of("context.history has reviews.since && context.history.reviews.count > 0");
    assert!(found.concat().contains("the window `reviews`, which is not declared"), "{found:#?}");
    let hidden = "@id(\"all\") permit (principal, action, resource);\n\
                  @id(\"never\") forbid (principal, action, resource) unless { context has history };";
    let set = RuleSet::read(&[file(hidden)], &HistoryWindows::default()).unwrap();
    let binding = bind(&set, &[read()]);
    let reading = Ask::new(read(), json!({ "to": "x" }));
    assert_eq!(judged(&*binding.engine, &reading, &[]), "early -never");
    // Prompts and resources have no windows.
    let every = "@id(\"a\") permit (principal, action, resource)\n\
                 when { context.history.paid.count < 9 };";
    let found = refused(every).concat();
    assert!(found.contains("write `resource is Tool` in its scope"), "{found}");
    let tools = every.replace("resource)", "resource is Tool)");
    assert_eq!(refused(&tools), Vec::<String>::new());
    let claimed = of("context.history.told.count < 9").concat();
    assert!(claimed.starts_with("claimed-context main.cedar:1:1"), "{claimed}");
}

#[test]
fn cases_state_the_earlier_calls() {
    let run = |cases: &str| -> Vec<String> {
        let cases = Some(("main.cases.toml".to_owned(), cases.to_owned()));
        told(&RuleFile { cases, ..file(LIMITED) }, &windows())
    };
    let good = "[[case]]\nname = \"over\"\ntool = \"pay.send\"\nargs = { to = \"x\", amount = 1 }\n\
                history.paid = { count = 2, sum = \"499.5000\", since_ms = 5 }\n\
                decision = \"deny\"\nmatch = [\"all\", \"daily\"]\n\
                [[case]]\nname = \"first\"\ntool = \"pay.send\"\nargs = { to = \"x\", amount = 1 }\n\
                decision = \"permit\"\nnot_match = [\"daily\"]\n\
                [[case]]\nname = \"none\"\ntool = \"pay.send\"\nargs = { to = \"x\" }\n\
                decision = \"deny\"\n";
    assert_eq!(run(good), Vec::<String>::new());
    for (from, to, told) in [
        ("499.5000", "499.0000", "the case `over` fails: `deny` is expected"),
        ("history.paid", "history.payed", "names a window that is not declared: `payed`"),
        ("\"499.5000\"", "\"499.5\"", "not an amount such as `12.5000`"),
    ] {
        let found = run(&good.replace(from, to));
        assert!(found.len() == 1 && found[0].contains(told), "{told}\n{found:#?}");
    }
}

#[test]
fn the_version_covers_the_windows() {
    let with = RuleSet::read(&[file(LIMITED)], &windows()).unwrap();
    let paid = HistoryWindow {
        tool: toolbooth_contracts::ToolPattern::try_from("pay.*".to_owned()).unwrap(),
        length: Duration::from_secs(60),
        sum: Some("/amount".to_owned()),
        within: Within::Caller,
    };
    let shorter = HistoryWindows::new(BTreeMap::from([("paid".to_owned(), paid)])).unwrap();
    let other = RuleSet::read(&[file(LIMITED)], &shorter).unwrap();
    assert_ne!(with.version(), other.version());
}

#[test]
fn only_windows_that_the_rules_read_are_told() {
    let binding = bound(LIMITED);
    let ask = Ask::new(pay(), json!({ "to": "x", "amount": 5 }));
    let Ok(Verdict::Depends(verdict)) = binding.engine.judge(&ask.question()) else {
        panic!("it depends on a window")
    };
    assert_eq!(verdict.windows().keys().collect::<Vec<_>>(), ["paid"]);
    // A recorded call may have read others.
    let seen = WindowSeen { count: 1, sum: 50_000, since_ms: None };
    let history = ["paid", "reads"].map(|name| (name.to_owned(), seen.clone())).into();
    let mut trace = Vec::new();
    assert!(matches!(verdict.complete(&history, Some(&mut trace)), Ok(Verdict::Permit { .. })));
    let told = trace.iter().filter(|line| line.starts_with("`history.")).count();
    assert!(told == 1 && trace[0].starts_with("`history.paid`"), "{trace:?}");
}
