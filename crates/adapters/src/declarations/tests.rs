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

#[test]
fn what_a_provider_refuses_at_the_top_is_left_out_and_told() {
    let mut declared = declaration();
    declared.output_schema = None;
    declared.description = Some("x".repeat(1_025));
    declared.parameters = json!({"oneOf": [{"required": ["a"]}, {"required": ["größe"]}],
        "properties": {"a": {"type": "string", "format": "uri", "default": "x"},
            "größe": {"oneOf": [{"type": "integer"}, {"type": "string"}]}}});
    let all = [declared];
    let told = |rendered: &RenderedDeclarations| -> Vec<String> {
        rendered.findings.iter().map(|finding| finding.path.clone()).collect()
    };
    let chat = OpenAi { responses: false, strict: false }.render(&all);
    assert_eq!(told(&chat), ["/description", "/oneOf"]);
    let parameters = &chat.document[0]["function"]["parameters"];
    assert_eq!(parameters["type"], "object");
    assert!(parameters.get("oneOf").is_none());
    assert!(parameters["properties"]["größe"]["oneOf"].is_array(), "beneath it is left alone");
    assert!(chat.document[0]["function"].get("strict").is_none());
    let flat = OpenAi { responses: true, strict: false }.render(&all);
    assert_eq!(flat.document[0]["strict"], false);
    let strict = OpenAi { responses: false, strict: true }.render(&all);
    assert_eq!(
        told(&strict),
        [
            "/description",
            "/oneOf",
            "/properties/a/format",
            "/properties/a/default",
            "/properties/größe/oneOf",
        ]
    );
    let a = &strict.document[0]["function"]["parameters"]["properties"]["a"];
    assert_eq!(a, &json!({"type": ["string", "null"]}));
    let anthropic = Anthropic.render(&all);
    assert_eq!(told(&anthropic), ["/properties/größe", "/oneOf"]);
    assert!(anthropic.document[0]["input_schema"].get("oneOf").is_none());
    // An object without properties has an empty list of them.
    let mut none = declaration();
    none.parameters = json!({"type": "object"});
    let chat = OpenAi { responses: false, strict: false }.render(&[none]);
    assert_eq!(chat.document[0]["function"]["parameters"]["properties"], json!({}));
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
