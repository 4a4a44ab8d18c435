use toolbooth_contracts::Guard;

use super::*;

#[test]
fn operations_become_contracts_that_the_guard_takes() {
    let document = json!({
        "openapi": "3.0.3",
        "paths": {
            "/pets/{petId}": {
                "parameters": [{"name": "petId", "in": "path", "required": true, "schema": {"type": "string"}}],
                "get": {"operationId": "pets.show", "summary": "Shows a pet.",
                    "parameters": [{"name": "fields", "in": "query", "schema": {"type": "string", "nullable": true}},
                        {"name": "X-Api-Key", "in": "header", "schema": {"type": "string"}}],
                    "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}}},
                "patch": {"requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}}
            },
            "/upload": {"post": {"operationId": "upload", "requestBody": {"content": {"image/png": {}}}}}
        },
        "components": {"schemas": {"Pet": {"type": "object", "properties": {
            "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": true},
            "parent": {"$ref": "#/components/schemas/Pet"}}}}}
    });
    let out = operations(&document, "shop").unwrap();
    let ids: Vec<&str> = out.contracts.iter().map(|c| c["toolId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["shop.pets_show", "shop.patch__pets__petId", "shop.upload"]);
    for contract in &out.contracts {
        let error = Guard::default().validate_entry(contract);
        assert!(error.is_ok(), "{error:?}\n{contract:#}");
    }
    let show = &out.contracts[0];
    assert_eq!(show["execution"], json!({"endpointRef": "shop", "target": "GET /pets/{petId}"}));
    assert_eq!(show["idempotency"]["mode"], "safe-retry");
    assert_eq!(show["inputSchema"]["required"], json!(["petId"]));
    assert_eq!(show["inputSchema"]["properties"]["fields"]["type"], json!(["string", "null"]));
    let pet = &out.contracts[1]["inputSchema"]["$defs"]["Pet"];
    assert_eq!(pet["properties"]["age"]["exclusiveMinimum"], 0);
    assert_eq!(pet["properties"]["parent"]["$ref"], "#/$defs/Pet");
    assert_eq!(out.notices.len(), 2, "{:?}", out.notices);
    assert!(operations(&json!({"swagger": "2.0"}), "x").is_err());
}

#[test]
fn names_in_dependent_schemas_are_no_keywords() {
    let document = json!({
        "openapi": "3.1.0",
        "paths": {"/a": {"post": {"operationId": "a", "requestBody": {"content": {"application/json": {"schema": {
            "type": "object",
            "dependentSchemas": {
                "xml": {"$ref": "#/components/schemas/Own"},
                "enum": {"$ref": "#/components/schemas/Own"}
            }
        }}}}}}},
        "components": {"schemas": {"Own": {"type": "object"}}}
    });
    let out = operations(&document, "shop").unwrap();
    let dependent = &out.contracts[0]["inputSchema"]["properties"]["body"]["dependentSchemas"];
    let reference = json!({"$ref": "#/$defs/Own"});
    assert_eq!(*dependent, json!({"xml": reference, "enum": reference}));
}

#[test]
fn words_of_yaml_are_read_as_yaml_1_2_has_them() {
    let text = "openapi: 3.1.0\npaths:\n  /c/{x}/{y}:\n    get:\n      operationId: on\n      parameters:\n\
        \x20       - {name: x, in: path, required: true, schema: {enum: [de, no, on, y, 012, 1_000, 7, true]}}\n\
        \x20       - {name: y, in: path, required: true}\n  /missing/{z}:\n    get: {}\n";
    let found = operations(&document(text.as_bytes()).unwrap(), "d").unwrap();
    let missing = &found.contracts[1]["inputSchema"];
    assert_eq!(
        (&missing["properties"]["z"]["type"], &missing["required"]),
        (&json!("string"), &json!(["z"]))
    );
    let contract = &found.contracts[0];
    assert_eq!(contract["toolId"], "d.on");
    let properties = &contract["inputSchema"]["properties"];
    let words = json!(["de", "no", "on", "y", "012", "1_000", 7, true]);
    assert_eq!(properties["x"]["enum"], words);
    assert!(properties.get("y").is_some(), "{properties}");
    assert!(found.notices.iter().any(|notice| notice.contains("`{z}`")), "{:?}", found.notices);
}
