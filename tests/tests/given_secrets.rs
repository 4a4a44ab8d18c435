//! Tests where the values of imported servers are stored, and that no response, record or log contains
//! secrets among them.
//!
//! Doc: importing.md#secrets, execution.md#known-secrets

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use toolbooth_tests::Place;

/// Returns a place with a home folder inside it, and a client's file with one server.
fn place(env: &Value) -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path().join("home")).unwrap();
    let home = place.path().join("home").display().to_string();
    let place = place.env("HOME", &home);
    place.write("echo.py", SERVER);
    let echo = json!({ "command": "python3", "args": ["echo.py"], "env": env });
    place.write(".mcp.json", &json!({ "mcpServers": { "echo": echo } }).to_string());
    place
}

fn configured(place: &Place) -> (String, toml::Table) {
    let text = std::fs::read_to_string(place.path().join("toolbooth.toml")).unwrap();
    let config: toml::Table = toml::from_str(&text).unwrap();
    let env = config["servers"]["echo"]["env"].as_table().unwrap().clone();
    (text, env)
}

/// Common names of secrets, each with a value that does not look like a secret.
const NAMES: [&str; 30] = [
    "PGPASSWORD",
    "DB_PASS",
    "GITHUB_PAT",
    "OPENAI_KEY",
    "PASS",
    "AUTH",
    "SECRETS",
    "API_KEY",
    "ACCESS_TOKEN",
    "CLIENT_SECRET",
    "MYSQL_PWD",
    "REDIS_PASSWORD",
    "STRIPE_KEY",
    "JWT",
    "SESSION",
    "COOKIE",
    "PRIVATE_KEY",
    "PASSPHRASE",
    "CREDS",
    "CREDENTIALS",
    "TOKEN",
    "NPM_TOKEN",
    "PIN_CODE",
    "WEBHOOK",
    "SIGNING_SALT",
    "SMTP_PASS",
    "LICENSE_KEY",
    "BEARER",
    "SEED_PHRASE",
    "SENTRY_DSN",
];

#[test]
fn every_value_that_is_not_plainly_harmless_is_kept_apart() {
    let harmless = json!({
        "PORT": "8080", "DEBUG": "true", "RATIO": "0.5", "HOME_PAGE": "https://example.com/a?page=2",
        "BINARY": "/bin/sh", "FROM": "${FROM}", "LEVEL": "${LEVEL:-info}",
    });
    let ordinary = json!({ "MODE": "production", "MODEL": "gpt-4o-mini", "REGION": "eu-west-1" });
    let mut env = harmless.as_object().unwrap().clone();
    env.extend(ordinary.as_object().unwrap().clone());
    let secret = |number: usize| format!("hunter{number}-Zx");
    env.extend(NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), json!(secret(at)))));
    let place = place(&Value::Object(env));
    let (rehearsed, exit) = place.json(&["import", "claude", "--dry-run"]);
    assert_eq!(exit, 0, "{rehearsed}");
    assert!(!place.path().join(".toolbooth/secrets").exists(), "a rehearsal keeps nothing");
    assert!(
        rehearsed["notices"].to_string().contains("env.PGPASSWORD would be kept"),
        "{rehearsed}"
    );

    let (done, exit) = place.json(&["import", "claude", "--no-try"]);
    assert_eq!(exit, 0, "{done}");
    let (text, env) = configured(&place);
    assert!(!text.contains("hunter") && !done.to_string().contains("hunter"), "{text}");
    for (name, value) in harmless.as_object().unwrap() {
        assert_eq!(env[name].as_str(), value.as_str(), "{name}");
    }
    let kept = |name: &str| {
        let path = env[name]["secret_ref"].as_str().unwrap().strip_prefix("file:").unwrap();
        let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{path}");
        std::fs::read_to_string(path).unwrap()
    };
    for (at, name) in NAMES.iter().enumerate() {
        assert_eq!((kept(name), env[*name].get("mask")), (secret(at), None), "{name}");
    }
    for (name, value) in ordinary.as_object().unwrap() {
        assert_eq!(kept(name), value.as_str().unwrap(), "{name}");
        assert_eq!(env[name]["mask"].as_bool(), Some(false), "{name}");
    }
}

/// A server that returns the values that it received, in many forms.
const SERVER: &str = r#"
import base64, json, os, sys, urllib.parse
token, level = os.environ.get("SERVICE_TOKEN", ""), os.environ.get("LEVEL", "")
forms = {
    "plain": token,
    "base64": base64.b64encode(token.encode()).decode(),
    "within": base64.urlsafe_b64encode(("user:" + token + "!").encode()).decode(),
    "url": "https://x.example/?k=" + urllib.parse.quote(token, safe=""),
    "form": urllib.parse.urlencode({"k": token}),
    "json": json.dumps({"k": token}),
    "twice": json.dumps(json.dumps({"k": token})),
    "level": "the level is " + level,
}
print("starting with", token, json.dumps(token), file=sys.stderr, flush=True)
tools = [{"name": name, "description": "Gives.", "inputSchema": {"type": "object"}} for name in [*forms, "member", "fails", "take"]]
tools.append({"name": "listed", "description": "Knows " + token, "inputSchema": {"type": "object"}})
for line in sys.stdin:
    asked = json.loads(line)
    method, result, error = asked.get("method"), None, None
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call":
        name = asked["params"]["name"]
        print("calling with", token, file=sys.stderr, flush=True)
        if name == "fails":
            error = {"code": -32000, "message": "no access with " + forms["url"]}
        elif name == "member":
            result = {"content": [], "structuredContent": {token: {"deep": [forms["base64"]]}}}
        elif name == "take":
            result = {"content": [{"type": "text", "text": "taken"}]}
        else:
            result = {"content": [{"type": "text", "text": forms.get(name, "")}]}
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    answer.update({"result": result} if result is not None else {"error": error or {"code": -32601, "message": "no such method"}})
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn what_a_program_was_given_comes_back_in_no_answer_record_or_log() {
    let secret = "hunter2/Zx+\"q\" 9&é";
    let place = place(&json!({ "SERVICE_TOKEN": secret, "LEVEL": "information" }));
    let (done, exit) = place.json(&["import", "claude", "--yes"]);
    assert_eq!(exit, 0, "{done}");
    // These are the first part of the secret and its Base64 at each offset; every form contains one of them.
    let tells = |text: &str| {
        ["hunter2", "aHVudGVyMi", "h1bnRlcj", "odW50ZXIy"].iter().any(|part| text.contains(part))
    };
    let (listed, _) = place.json(&["list"]);
    assert!(!tells(&listed.to_string()), "{listed}");
    let names = ["plain", "base64", "within", "url", "form", "json", "twice", "member", "fails"];
    for name in names {
        let tool = format!("echo.{name}");
        let output = place.run(&["call", &tool, "--args", "{}", "--format", "json"]);
        let told = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!tells(&told), "{name}: {told}");
        assert!(told.contains("SERVICE_TOKEN") || name == "fails", "{name}: {told}");
    }
    // A harmless value remains visible.
    let (level, _) = place.json(&["call", "echo.level", "--args", "{}"]);
    assert!(level.to_string().contains("the level is information"), "{level}");
    // Arguments of any caller are recorded, so the secret is masked in them too.
    let arguments = json!({ "note": secret, "key": "cafe" }).to_string();
    let (taken, exit) = place.json(&["call", "echo.take", "--args", &arguments]);
    assert_eq!(exit, 0, "{taken}");
    let (logs, _) = place.json(&["logs", "query"]);
    let (events, _) = place.json(&["audit", "query"]);
    let (receipts, _) = place.json(&["receipts", "list"]);
    assert!(logs["logs"].as_array().unwrap().len() > names.len(), "{logs}");
    assert!(logs.to_string().contains("[redacted]"), "{logs}");
    for records in [&logs, &events, &receipts] {
        assert!(!tells(&records.to_string()), "{records}");
    }
    place.assert_sound();
}
