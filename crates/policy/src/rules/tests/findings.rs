//! Tests the findings of refused rules, and their locations.
//!
//! Doc: policy.md#findings

use super::*;

#[test]
fn findings_have_a_location_and_a_correction() {
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
    for (text, code, location, words) in [
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
            "\n@id(\"a\")\npermit (principal == ?principal, action, resource);".to_owned(),
            "invalid-rule",
            "2:1",
            "`a` is a template",
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
        (any("principal == Caller::\"Local\""), "impossible-name", "1:1", "is `local` meant?"),
        (any("principal == Caller::\"ci\""), "impossible-name", "1:1", "is `key:ci` meant?"),
        (
            any("principal in Caller::\"group:x\""),
            "impossible-name",
            "1:1",
            "write `principal in Group::\"x\"`",
        ),
        (any("principal in Group::\"group:x\""), "impossible-name", "1:1", "write `Group::\"x\"`"),
        (
            any("true").replace("(principal,", "(principal == Caller::\"a b\","),
            "impossible-name",
            "1:1",
            "callers are `local`, `operator`",
        ),
        (any("principal.name == \"operatr\""), "impossible-name", "1:1", "is `operator` meant?"),
        (
            any("!([\"kye\", \"jwt\"].contains(principal.kind))"),
            "impossible-name",
            "1:1",
            "is `\"key\"` meant?",
        ),
        (
            pay("\"untrustd\" != resource.trust"),
            "impossible-name",
            "2:1",
            "is `\"untrusted\"` meant?",
        ),
        (pay("resource.category == \"mail\""), "impossible-name", "2:1", "one of these: llm, tts"),
        (
            format!("{PERMIT}{}", any("resource == Tool::\"pay.sned\"")),
            "unbound-rule",
            "2:1",
            "names `pay.sned`, which is no known tool (is `pay.send` meant?)",
        ),
        (
            format!(
                "{PERMIT}@id(\"a\") forbid (principal, action, resource is Tool)\n\
                 when {{ resource.id == \"pay.sned\" }};"
            ),
            "unbound-rule",
            "2:1",
            "is `pay.send` meant?",
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
            format!(
                "{PERMIT}@id(\"a\") forbid (principal, action in Action::\"pya.*\", resource);"
            ),
            "unbound-rule",
            "2:1",
            "in which no known tool is (is `pay.*` meant?)",
        ),
        (
            any("true").replace("action,", "action in Action::\"permission:write:mony\",")
                + "\n"
                + PERMIT,
            "unbound-rule",
            "1:1",
            "`permission:write:money` meant",
        ),
        (
            any("true").replace("action,", "action in Action::\"category:lmm\",") + "\n" + PERMIT,
            "unbound-rule",
            "1:1",
            "`category:llm` meant",
        ),
        (
            format!(
                "{PERMIT}@id(\"a\") forbid (principal, action, resource)\n\
                 when {{ action in Action::\"category:llm\" }};"
            ),
            "unbound-rule",
            "2:1",
            "applies when such a tool appears",
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
        let start = format!("{code} main.cedar:{location}: ");
        let fits = found.iter().any(|one| one.starts_with(&start) && one.contains(words));
        assert!(fits && found.len() == 1, "{text}\n{start}{words}\n{found:#?}");
    }
}

#[test]
fn many_tools_are_checked_at_once_as_each_by_itself() {
    let id = |n: usize| format!("many.t{n:03}");
    let tools: Vec<ToolContract> = (0..210)
        .map(|n| tool(&id(n), &json!({ "to": { "type": "string" } }), &json!({})))
        .collect();
    // Each seventh rule reads an argument that its tool does not have.
    let rules: String = (0..tools.len())
        .map(|n| {
            let argument = if n % 7 == 0 { "too" } else { "to" };
            let tool = id(n);
            format!(
                "@id(\"r{n}\") forbid (principal, action == Action::\"{tool}\", resource)\n\
                 when {{ context.args.{argument} == \"x\" }};\n"
            )
        })
        .collect();
    let set = set(&rules);
    let together = bind(&set, &tools);
    assert_eq!(together.failures.len(), 30);
    assert!(together.failures.keys().eq((0..210).step_by(7).map(id).collect::<Vec<_>>().iter()));
    for (n, contract) in tools.iter().enumerate() {
        let alone = bind(&set, std::slice::from_ref(contract));
        let id = contract.tool_id.as_str();
        assert_eq!(alone.failures.get(id), together.failures.get(id), "{n}");
        let own = |binding: &Binding| -> Vec<String> {
            let own = binding.findings.iter().filter(|finding| finding.tool.as_deref() == Some(id));
            own.map(ToString::to_string).collect()
        };
        assert_eq!(own(&alone), own(&together), "{n}");
        assert_eq!(own(&alone).is_empty(), n % 7 != 0, "{n}");
    }
}

#[test]
fn rules_that_are_nested_too_deeply_are_refused() {
    let text = |condition: &str| {
        format!("@id(\"a\") permit (principal, action, resource) when {{ {condition} }};")
    };
    let of = |condition: &str| RuleSet::read(&[file(&text(condition))], &HistoryWindows::default());
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
        assert_eq!(found[0].location.line, 1);
        let behind = format!("{PERMIT}// ;\n\n {}", text(&deep));
        let found = RuleSet::read(&[file(&behind)], &HistoryWindows::default()).unwrap_err();
        assert_eq!((found[0].location.line, found[0].location.column), (4, 2), "{found:?}");
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
fn groups_that_have_tools_or_may_be_empty_are_not_told() {
    for group in ["pay.*", "read", "write", "call", "permission:write:money", "category:function"] {
        let text = format!(
            "{PERMIT}@id(\"a\") forbid (principal, action in Action::\"{group}\", resource)\n\
             when {{ principal.name == \"key:x\" }};"
        );
        assert_eq!(findings(&text), Vec::<String>::new(), "{group}");
    }
    let only_read = bind(
        &set(&format!(
            "{PERMIT}@id(\"a\") forbid (principal, action in Action::\"write\", resource);"
        )),
        &[read()],
    );
    assert!(only_read.findings.is_empty(), "{:?}", only_read.findings);
}

#[test]
fn a_verdict_does_not_depend_on_the_stack_of_its_thread() {
    let terms: Vec<String> = (0..400).map(|n| format!("context.args.cents == {n}")).collect();
    let text = format!(
        "@id(\"a\") permit (principal, action == Action::\"pay.send\", resource)\n\
         when {{ context.args has cents && ({}) }};",
        terms.join(" || ")
    );
    let set = set(&text);
    let binding = bind(&set, &[pay()]);
    for (cents, verdict) in [(399, "+a"), (400, "-no-rule")] {
        for stack in [512 << 10, 2 << 20, 64 << 20] {
            let judge = || decided(Ask::new(pay(), json!({ "cents": cents })).of(&*binding.engine));
            let own = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(stack);
                thread.spawn_scoped(scope, judge).unwrap().join().unwrap()
            });
            assert_eq!(own, verdict, "{cents} with a stack of {stack}");
        }
    }
}
