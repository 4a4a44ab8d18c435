//! Tests the findings about arguments that rules cannot read, or can read as decimals only.
//!
//! Doc: policy.md#findings

use super::*;

fn argument_findings(text: &str, tool: ToolContract) -> Vec<(String, Option<String>, String)> {
    let found = bind(&set(text), &[tool, read()]).findings;
    found
        .into_iter()
        .map(|own| (own.code.as_str().to_owned(), own.tool.clone(), own.to_string()))
        .collect()
}

fn order() -> ToolContract {
    let properties = json!({
        "to": { "type": "string" }, "amount": { "type": "number" }, "any": {},
        "free": { "type": "object", "additionalProperties": { "type": "string" } },
        "items": { "type": "array", "items": { "type": "number" } },
        "cents": { "type": "integer" },
        "open": { "type": "object" },
        "closed": { "type": "object", "additionalProperties": false },
        "part": {
            "type": "object",
            "properties": { "own": { "type": "string" } },
            "anyOf": [{ "properties": { "own": { "const": "x" }, "more": { "type": "string" } } }],
        },
    });
    tool("shop.order", &properties, &json!({}))
}

#[test]
fn arguments_that_rules_cannot_read_are_told_of_tools_whose_arguments_they_read() {
    let rule = |condition: &str| {
        format!(
            "{PERMIT}@id(\"own\") forbid (principal, action == Action::\"shop.order\", resource) when {{ {condition} }};\n"
        )
    };
    let found = argument_findings(&rule("context.args.to == \"x\""), order());
    let [(code, tool, told)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((code.as_str(), tool.as_deref()), ("unreadable-argument", Some("shop.order")));
    assert!(
        told.starts_with("main.cedar:2:1: rules cannot read these arguments: `/any` ("),
        "{told}"
    );
    assert!(told.contains("`/free/*` (members without a name in the schema)"), "{told}");
    assert!(told.contains("`/open/*` (members without a name in the schema)"), "{told}");
    assert!(told.contains("`/part/more` (its schema is composed by `anyOf`)"), "{told}");
    assert!(!told.contains("`/part/own`") && !told.contains("`/closed"), "{told}");
    // A rule that reads no argument is not concerned by them.
    assert!(argument_findings(&rule("principal.name == \"key:x\""), order()).is_empty());

    let decimals = "context.args has amount && context.args.amount.lessThan(decimal(\"1.0\")) && \
                    context.args has items && context.args.items.contains(decimal(\"1.0\"))";
    let found = argument_findings(&rule(decimals), order());
    let told: Vec<&str> = found
        .iter()
        .filter(|(code, ..)| code == "decimal-argument")
        .map(|(.., told)| told.as_str())
        .collect();
    assert_eq!(told.len(), 2, "{found:?}");
    assert!(told[0].contains("`own` reads the argument `/amount` as a decimal"), "{told:?}");
    assert!(told[1].contains("`/items/*`"), "{told:?}");
}

#[test]
fn many_unreadable_arguments_are_counted() {
    let mut properties = json!({ "to": { "type": "string" } });
    for number in 0..25 {
        properties[format!("any{number:02}")] = json!({});
    }
    let text = format!(
        "{PERMIT}@id(\"own\") forbid (principal, action == Action::\"shop.many\", resource) when {{ context.args.to == \"x\" }};\n"
    );
    let found = argument_findings(&text, tool("shop.many", &properties, &json!({})));
    assert!(found[0].2.contains("`/any19` ") && !found[0].2.contains("any20"), "{found:?}");
    assert!(found[0].2.ends_with(", 5 more"), "{found:?}");
}

#[test]
fn rules_that_always_apply_decide_without_a_question() {
    // What does not apply to every question is evaluated.
    for (text, expected) in [
        (PERMIT.to_owned(), "+all"),
        (format!("{PERMIT}@id(\"no\") forbid (principal, action, resource is Tool);\n"), "-no"),
        (String::new(), "-no-rule"),
        (
            "@id(\"two\") @approval(\"two\") permit (principal, action in Action::\"call\", resource);\n".to_owned(),
            "+two two Two",
        ),
        (format!("{PERMIT}@id(\"no\") forbid (principal == Caller::\"local\", action, resource);\n"), "-no"),
        (format!("{PERMIT}@id(\"no\") forbid (principal == Caller::\"key:x\", action, resource);\n"), "+all"),
        (
            format!("{PERMIT}@id(\"no\") forbid (principal, action == Action::\"pay.send\", resource == Tool::\"pay.send\");\n"),
            "-no",
        ),
        (format!("{PERMIT}@id(\"no\") forbid (principal, action, resource) when {{ false }};\n"), "+all"),
        (format!("{PERMIT}@id(\"no\") forbid (principal, action == Action::\"files.read\", resource);\n"), "+all"),
    ] {
        assert_eq!(judged(&text, Ask::new(pay(), json!({ "to": "x" }))), expected, "{text}");
    }
}

#[test]
fn many_decimal_arguments_are_told_once_and_counted() {
    let mut properties = json!({ "to": { "type": "string" } });
    let mut conditions = Vec::new();
    for number in 0..25 {
        let name = format!("amount{number:02}");
        properties[&name] = json!({ "type": "number" });
        conditions.push(format!(
            "context.args has {name} && context.args.{name}.lessThan(decimal(\"1.0\"))"
        ));
    }
    let when = conditions.join(" && ");
    let rule = |id: &str| {
        format!(
            "@id(\"{id}\") forbid (principal, action == Action::\"shop.order\", resource) when {{ {when} }};\n"
        )
    };
    let text = format!("{PERMIT}{}{}", rule("one"), rule("two"));
    let found = argument_findings(&text, tool("shop.order", &properties, &json!({})));
    assert_eq!(found.len(), 21, "{found:?}");
    assert!(found.iter().all(|(code, ..)| code == "decimal-argument"), "{found:?}");
    assert!(found[..20].iter().all(|(.., told)| told.contains("`one` reads")), "{found:?}");
    assert!(found[20].2.contains("5 more arguments of the tool are read as decimals"), "{found:?}");
}

#[test]
fn names_that_many_references_lead_to_are_bounded() {
    let named: serde_json::Map<String, Value> =
        (0..2_000).map(|n| (format!("n{n}"), json!({ "type": "string" }))).collect();
    let properties: serde_json::Map<String, Value> =
        (0..2_000).map(|n| (format!("p{n}"), json!({ "$ref": "#/$defs/many" }))).collect();
    let many = json!({ "type": "object", "anyOf": [{ "properties": named }] });
    let schema = json!({ "type": "object", "properties": properties, "$defs": { "many": many } });
    let left_out = arguments::ArgumentTypes::of(&schema).left_out.len();
    assert!((2_000..15_000).contains(&left_out), "{left_out}");
}
