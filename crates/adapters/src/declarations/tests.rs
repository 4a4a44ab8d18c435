use super::*;

fn declaration() -> Declaration {
    Declaration {
        wire_name: "os_create_task".into(),
        tool_id: "os.create_task".into(),
        title: None,
        description: Some("Creates a task.".into()),
        parameters: json!({"type": "object", "required": ["title"], "properties": {
            "title": {"type": "string"}, "tags": {"type": "array", "items": {"type": "object", "properties": {"n": {"enum": [1]}}}}}}),
        output_schema: Some(json!({"type": "object"})),
        annotations: None,
        extra: Map::new(),
    }
}

#[test]
fn each_provider_gets_its_form() {
    let all = [declaration()];
    let gemini = Gemini.render(&all);
    assert_eq!(gemini.document["functionDeclarations"][0]["name"], "os_create_task");
    assert_eq!(gemini.findings.len(), 1, "the output schema is not lost silently");
    let chat = OpenAi { responses: false, strict: false }.render(&all).document;
    assert_eq!(chat[0]["function"]["parameters"]["required"], json!(["title"]));
    let flat = OpenAi { responses: true, strict: false }.render(&all).document;
    assert_eq!(
        (&flat[0]["type"], &flat[0]["name"]),
        (&json!("function"), &json!("os_create_task"))
    );
    let anthropic = Anthropic.render(&all).document;
    assert!(anthropic[0]["input_schema"].is_object());
    assert!(Mcp.render(&all).document["tools"][0]["outputSchema"].is_object());
}

#[test]
fn what_strict_mode_cannot_say_is_told() {
    let mut declared = declaration();
    declared.output_schema = None;
    declared.parameters = json!({"type": "object", "properties": {
        "a/b": {"oneOf": [{"type": "string"}, {"type": "integer", "not": {"const": 1}}]},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"description": "anything"},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}]}}});
    let rendered = OpenAi { responses: true, strict: true }.render(&[declared]);
    let told: Vec<&str> = rendered.findings.iter().map(|finding| finding.path.as_str()).collect();
    assert_eq!(
        told,
        [
            "/properties/a~1b/oneOf",
            "/properties/a~1b/oneOf/1/not",
            "/properties/map/additionalProperties",
            "/properties/any",
            "/properties/pair/prefixItems",
        ]
    );
    let parameters = &rendered.document[0]["parameters"];
    assert_eq!(parameters["properties"]["a/b"]["anyOf"][0]["anyOf"][0], json!({"type": "string"}));
}

/// A strict model sends nulls for optional properties. Without them the arguments are those that
/// the tool would otherwise receive.
#[test]
fn nulls_that_strict_mode_made_possible_are_dropped_again() {
    use toolbooth_contracts::declaration::without_widened_nulls;
    let declared = declaration();
    let sent = json!({"title": "x", "tags": null});
    assert_eq!(without_widened_nulls(&declared.parameters, sent), json!({"title": "x"}));
    let sent = json!({"title": "x", "tags": [{"n": null}]});
    assert_eq!(
        without_widened_nulls(&declared.parameters, sent),
        json!({"title": "x", "tags": [{}]})
    );
}

#[test]
fn strict_mode_requires_everything_and_makes_optional_nullable() {
    let strict = OpenAi { responses: false, strict: true }.render(&[declaration()]).document;
    let parameters = &strict[0]["function"]["parameters"];
    assert_eq!(parameters["required"], json!(["title", "tags"]));
    assert_eq!(parameters["additionalProperties"], json!(false));
    assert_eq!(parameters["properties"]["tags"]["type"], json!(["array", "null"]));
    let inner = &parameters["properties"]["tags"]["items"];
    assert_eq!(inner["properties"]["n"], json!({"anyOf": [{"enum": [1]}, {"type": "null"}]}));
}
