//! Tests the import of clients' configurations and of OpenAPI documents, and the undo of an import.
//!
//! Doc: importing.md, importing.md#clients, importing.md#secrets, importing.md#install,
//! importing.md#openapi

use serde_json::{Value, json};
use toolbooth_tests::{Place, binary};

fn read(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.path().join(name)).unwrap()
}

fn configured(place: &Place) -> toml::Table {
    toml::from_str(&read(place, "toolbooth.toml")).unwrap()
}

/// Returns a place that is its own home folder.
fn home() -> Place {
    let place = Place::new();
    let path = place.path().display().to_string();
    place.env("HOME", &path)
}

#[test]
fn the_gateway_itself_is_left_out() {
    let place = home();
    place.write("toolbooth.toml", "[http]\nlisten = \"127.0.0.1:7800\"\n");
    place.write(
        ".mcp.json",
        r#"{"mcpServers": {
            "door": {"type": "http", "url": "http://127.0.0.1:7800/mcp"},
            "set": {"type": "http", "url": "http://localhost:7800/mcp/desk"},
            "child": {"command": "/opt/toolbooth", "args": ["--config", "x.toml", "stdio"]},
            "other": {"type": "http", "url": "http://127.0.0.1:7717/mcp"}}}"#,
    );
    let (done, exit) = place.json(&["import", "claude", "--no-try"]);
    assert_eq!((exit, &done["added"]), (0, &json!(["servers.other"])), "{done}");
}

#[test]
fn each_client_is_understood() {
    let place = home();
    let here = place.path().canonicalize().unwrap().display().to_string();
    place.write(
        ".mcp.json",
        r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "server-files", "--token", "hunter2"], "env": {"API_KEY": "hunter3", "LEVEL": "${LEVEL:-info}"}},
            "far": {"type": "http", "url": "https://example.com/mcp?api_key=hunter4", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Api-Key": "hunter5"}},
            "old": {"type": "sse", "url": "https://example.com/sse"}}}"#,
    );
    let (done, exit) = place.json(&["import", "claude", "--no-try", "--secrets", "env"]);
    assert_eq!(
        (exit, &done["added"]),
        (0, &json!(["servers.far", "servers.files", "servers.old"])),
        "{done}"
    );
    let text = read(&place, "toolbooth.toml");
    assert!(!text.contains("hunter") && !done.to_string().contains("hunter"), "{text}");
    let config = configured(&place);
    let server = |name: &str| config["servers"][name].clone();
    assert_eq!(server("files")["env"]["API_KEY"]["secret_ref"].as_str(), Some("env:API_KEY"));
    assert_eq!(server("files")["env"]["LEVEL"].as_str(), Some("${LEVEL:-info}"));
    assert_eq!(server("files")["args"][3].as_str(), Some("${FILES_TOKEN}"));
    assert_eq!(
        server("far")["url"].as_str(),
        Some("https://example.com/mcp?api_key=${FAR_API_KEY}")
    );
    assert_eq!(server("far")["headers"]["Authorization"].as_str(), Some("Bearer ${TOKEN}"));
    assert_eq!(
        server("far")["headers"]["X-Api-Key"]["secret_ref"].as_str(),
        Some("env:FAR_X_API_KEY")
    );
    assert_eq!(server("old")["enabled"].as_bool(), Some(false));
    // A second import overwrites nothing.
    let (again, _) = place.json(&["import", "claude", "--no-try"]);
    assert_eq!(
        (&again["added"], again["kept"].as_array().unwrap().len()),
        (&json!([]), 3),
        "{again}"
    );

    place.write(
        ".vscode/mcp.json",
        "{\n  // comments are fine\n  \"inputs\": [{\"id\": \"key-of-x\", \"type\": \"promptString\", \"password\": true}],\n  \"servers\": {\"x\": {\"command\": \"node\", \"args\": [\"${workspaceFolder}/x.js\"], \"env\": {\"KEY\": \"${input:key-of-x}\", \"P\": \"${env:PATH}\"}},},\n}\n",
    );
    let (done, exit) = place.json(&["import", "vscode", "--no-try"]);
    assert_eq!((exit, &done["added"]), (0, &json!(["servers.x"])), "{done}");
    let x = configured(&place)["servers"]["x"].clone();
    assert_eq!(x["args"][0].as_str(), Some(format!("{here}/x.js").as_str()));
    assert_eq!(
        (x["env"]["KEY"].as_str(), x["env"]["P"].as_str()),
        (Some("${KEY_OF_X}"), Some("${PATH}"))
    );

    place.write(
        ".codex/config.toml",
        "model = \"m\"\n[mcp_servers.docs]\ncommand = \"docs-server\"\nenv_vars = [\"DOCS_HOME\"]\nenabled_tools = [\"search\"]\ndisabled_tools = [\"rm\"]\nstartup_timeout_sec = 7\ntool_timeout_sec = 1.5\n[mcp_servers.web]\nurl = \"https://example.com/mcp\"\nbearer_token_env_var = \"WEB_TOKEN\"\nenv_http_headers = { X-Team = \"TEAM\" }\n",
    );
    assert_eq!(place.json(&["import", "codex", "--no-try"]).1, 0);
    let config = configured(&place);
    let docs = &config["servers"]["docs"];
    assert_eq!(docs["env"]["DOCS_HOME"].as_str(), Some("${DOCS_HOME}"));
    assert_eq!(
        (docs["startup_timeout_ms"].as_integer(), docs["timeout_ms"].as_integer()),
        (Some(7000), Some(1500))
    );
    assert_eq!((docs["tools"][0].as_str(), docs["deny"][0].as_str()), (Some("search"), Some("rm")));
    let headers = &config["servers"]["web"]["headers"];
    assert_eq!(headers["Authorization"].as_str(), Some("Bearer ${WEB_TOKEN}"));
    assert_eq!(headers["X-Team"].as_str(), Some("${TEAM}"));

    place.write(
        ".gemini/settings.json",
        r#"{"mcpServers": {"g": {"httpUrl": "https://example.com/g", "timeout": 600, "trust": true, "includeTools": ["a"], "excludeTools": ["b"]}, "h": {"command": "h"}},
            "mcp": {"excluded": ["h"]}, "tools": {"discoveryCommand": "bin/list --all", "callCommand": "bin/call"}}"#,
    );
    let (done, exit) = place.json(&["import", "gemini", "--no-try"]);
    assert_eq!(
        (exit, &done["added"]),
        (0, &json!(["commands.gemini", "servers.g", "servers.h"])),
        "{done}"
    );
    assert!(done["notices"][0].as_str().unwrap().contains("trust"), "{done}");
    let config = configured(&place);
    assert_eq!(config["commands"]["gemini"]["call_command"][0].as_str(), Some("bin/call"));
    assert_eq!(config["servers"]["g"]["timeout_ms"].as_integer(), Some(600));
    assert_eq!(config["servers"]["h"]["enabled"].as_bool(), Some(false), "the client excludes it");

    place.write(
        ".cursor/mcp.json",
        r#"{"mcpServers": {"c": {"command": "./serve", "env": {"A": "${userHome}/x"}}}}"#,
    );
    assert_eq!(place.json(&["import", "cursor", "--no-try"]).1, 0);
    assert_eq!(configured(&place)["servers"]["c"]["env"]["A"].as_str(), Some("${HOME}/x"));

    for (name, text) in [
        ("bad.json", "{\"mcpServers\": "),
        ("none.json", "{}"),
        ("odd.json", r#"{"mcpServers": {"a": 5}}"#),
    ] {
        place.write(name, text);
        let (failure, exit) = place.json(&["import", "claude", "--no-try", name]);
        assert!(exit == 1 || exit == 2, "{failure}");
        assert!(failure["error"]["path"].as_str().unwrap().contains(name), "{failure}");
    }
}

#[test]
fn a_client_is_pointed_at_toolbooth_and_back() {
    let place = home();
    let original = "{\n  // my editor\n  \"servers\": {\"files\": {\"command\": \"sh\", \"env\": {\"API_KEY\": \"hunter2\"}}},\n  \"other\": [1, 2]\n}\n";
    place.write(".vscode/mcp.json", original);
    let (planned, _) = place.json(&["import", "vscode", "--dry-run"]);
    assert_eq!(planned["added"], json!(["servers.files"]));
    assert!(!place.path().join("toolbooth.toml").exists(), "nothing is written for a rehearsal");
    let (done, exit) = place.json(&["import", "vscode", "--no-try", "--install", "--force"]);
    assert_eq!(exit, 0, "{done}");
    let backup = done["backup"].as_str().unwrap();
    assert_eq!(read(&place, backup), original);
    let installed = read(&place, ".vscode/mcp.json");
    assert!(installed.contains("// my editor") && !installed.contains("hunter2"), "{installed}");
    let value: Value = serde_json::from_str(&installed.replace("// my editor", "")).unwrap();
    let own = &value["servers"]["toolbooth"];
    assert_eq!(
        (&own["command"], &value["other"]),
        (&json!(binary()), &json!([1, 2])),
        "{installed}"
    );
    // The client's new command line starts this gateway.
    let arguments: Vec<&str> =
        own["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(place.run(&arguments).status.code(), Some(0), "{arguments:?}");
    // A gateway that is its own server would start itself endlessly.
    let (again, exit) = place.json(&["import", "vscode", "--no-try"]);
    assert_eq!((exit, &again["error"]["code"]), (1, &json!("nothing-to-import")), "{again}");
    let (undone, exit) = place.json(&["import", "vscode", "--undo"]);
    assert_eq!(exit, 0, "{undone}");
    assert_eq!(read(&place, ".vscode/mcp.json"), original);
    assert_eq!(place.json(&["import", "vscode", "--undo"]).1, 2, "there is no other backup");

    place.write(
        ".codex/config.toml",
        "model = \"m\" # mine\n[mcp_servers.a]\ncommand = \"a\"\n[mcp_servers.a.env]\nX = \"1\"\n",
    );
    assert_eq!(place.json(&["import", "codex", "--no-try", "--install", "--force"]).1, 0);
    let installed: toml::Table = toml::from_str(&read(&place, ".codex/config.toml")).unwrap();
    assert_eq!(
        installed["mcp_servers"].as_table().unwrap().keys().collect::<Vec<_>>(),
        ["toolbooth"]
    );
    assert!(read(&place, ".codex/config.toml").contains("# mine"));
    assert_eq!(place.json(&["import", "codex", "--undo"]).1, 0);
    assert!(read(&place, ".codex/config.toml").contains("[mcp_servers.a]"));
}

#[test]
fn operations_of_an_openapi_document_become_contracts() {
    let place = Place::new();
    place.write(
        "shop.yaml",
        "openapi: 3.1.0\ninfo: {title: Shop, version: '1'}\npaths:\n  /orders/{id}:\n    get:\n      operationId: getOrder\n      summary: Shows an order.\n      parameters:\n        - {name: id, in: path, required: true, schema: {type: integer, maximum: 9007199254740993}}\n      responses:\n        '200':\n          description: ok\n          content:\n            application/json:\n              schema: {$ref: '#/components/schemas/Order'}\n    delete:\n      operationId: dropOrder\n      responses: {}\ncomponents:\n  schemas:\n    Order:\n      type: object\n      properties:\n        id: {type: integer}\n",
    );
    let output = place.run(&["import", "openapi", "shop.yaml", "--endpoint", "shop"]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["tools"][0]["toolId"], "shop.getOrder", "{printed}");
    let (written, exit) =
        place.json(&["import", "openapi", "shop.yaml", "--endpoint", "shop", "--write"]);
    assert_eq!((exit, &written["written"]["tools"]), (0, &json!(2)), "{written}");
    let (checked, exit) = place.json(&["check"]);
    assert_eq!((exit, &checked["ok"]), (0, &json!(true)), "{checked}");
    assert!(read(&place, "tools.registry.json").contains("9007199254740993"), "every digit");
    let (coverage, _) = place.json(&["coverage"]);
    let row = coverage["tools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["toolId"] == "shop.dropOrder")
        .unwrap()
        .clone();
    assert_eq!(row["state"], "not_configured", "{row}");
    place.write("bomb.yaml", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n");
    let (failure, exit) = place.json(&["import", "openapi", "bomb.yaml", "--endpoint", "x"]);
    assert_eq!(exit, 2, "{failure}");
}
