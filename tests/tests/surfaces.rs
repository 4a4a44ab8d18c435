//! Tests what each caller sees and may do on every surface of the gateway: a table of all HTTP routes
//! and MCP methods. A route or method that is not in the table fails.
//!
//! Path: 1. Doc: policy.md#callers

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbooth_tests::issuer::Issuer;
use toolbooth_tests::mcp::{
    ACCEPT, Answer, JSON, LEGACY, MODERN, initialize, modern, modern_headers, request, send_at,
};
use toolbooth_tests::{Place, RunningGateway, repository};

/// Tools, prompts and resources of the server `box`.
const BOX: &str = r#"{
    "tools": [{"name": "wave", "inputSchema": {"type": "object"}},
              {"name": "melt", "inputSchema": {"type": "object"}}],
    "prompts": [{"name": "greet"}, {"name": "blame"}],
    "resources": [{"uri": "file:///notes/a", "name": "a"}, {"uri": "file:///vault/plan", "name": "b"}]
}"#;

const RULES: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"nines\") @approval(\"one\")
forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression == \"9*9\" };
";

/// Some callers, with their tokens.
struct Callers {
    gateway: RunningGateway,
    place: Place,
    all: Vec<(&'static str, String)>,
    /// A queued call, a receipt and an agent log of `intern`.
    call: String,
    receipt: String,
    log: String,
    /// An approval that `intern` has requested.
    approval: String,
}

impl Callers {
    fn new() -> Self {
        let (place, issuer) = (Place::new(), Issuer::start());
        let script = repository().join("tests/clients/fickle_server.py");
        let text = std::fs::read_to_string(script).expect("the server");
        place.write("box.json", BOX).write("box.py", &text).write("rules.cedar", RULES);
        place.write(
            "toolbooth.toml",
            &format!(
                "[lock]\nmode = \"off\"\n[proxy]\nworkers = 1\n\
                 [servers.box]\ncommand = \"python3\"\nargs = [\"box.py\", \"box.json\", \"tell\"]\n\
                 sandbox = \"none\"\n\
                 [policy]\nrules = \"rules.cedar\"\n\
                 [toolsets.work]\ntools = [\"calculator\", \"box.wave\"]\n\
                 [auth.issuers.own]\nissuer = \"{}\"\n\
                 [callers.interns]\nmatch = [\"group:interns\"]\ngrants = [\"*\"]\n\
                 tools = [\"calculator\", \"read_result\", \"box.wave\", \"box.greet\", \"box.file:///notes/*\"]\n\
                 [results.tools]\n\"box.wave\" = 4\n\
                 [callers.ops]\nmatch = [\"key:ops\"]\ntools = [\"*\"]\ngrants = [\"*\"]\noperate = true\n\
                 [callers.box]\nmatch = [\"jwt:{}#bob\"]\ntools = [\"box.*\"]\ngrants = [\"*\"]\n",
                issuer.url, issuer.url
            ),
        );
        let key = |arguments: &[&str]| {
            let (made, _) = place.json(&[&["keys", "create"], arguments].concat());
            made["key"].as_str().expect("a key").to_owned()
        };
        let mut all = vec![
            ("intern", key(&["intern", "--group", "interns"])),
            ("ops", key(&["ops"])),
            ("stranger", key(&["stranger"])),
        ];
        let gateway = place.serve();
        all.insert(2, ("bob", issuer.token(&issuer.claims(&gateway.url()))));
        let mut own = Self {
            gateway,
            place,
            all,
            call: String::new(),
            receipt: String::new(),
            log: String::new(),
            approval: String::new(),
        };
        own.prepare();
        own
    }

    fn token(&self, name: &str) -> &str {
        &self.all.iter().find(|(own, _)| *own == name).expect("a caller").1
    }

    /// Makes a queued call of `intern`, and waits until it has run.
    fn prepare(&mut self) {
        let body = r#"{"toolId":"calculator","args":{"expression":"1"}}"#;
        let queued = self.http("intern", "POST", "/v1/calls", body, &[("Prefer", "respond-async")]);
        self.call = queued.json()["callId"].as_str().expect("an id").to_owned();
        let ended = || {
            let path = format!("/v1/calls/{}", self.call);
            let call = self.http("intern", "GET", &path, "", &[]).json();
            call["result"]["receiptId"].as_str().map(str::to_owned)
        };
        toolbooth_tests::waiting::until("the call has run", || ended().is_some());
        self.receipt = ended().expect("a receipt");
        let body = r#"{"toolId":"calculator","args":{"expression":"9*9"}}"#;
        let asked = self.http("intern", "POST", "/v1/calls", body, &[]).json();
        self.approval = asked["details"]["approvalId"].as_str().expect("an id").to_owned();
        let logs = self.http("ops", "GET", "/v1/agent-logs", "", &[]).json();
        self.log = logs["logs"][0]["id"].as_str().expect("a log").to_owned();
    }

    fn http(
        &self,
        caller: &str,
        method: &str,
        path: &str,
        body: &str,
        more: &[(&str, &str)],
    ) -> Reply {
        let bearer = format!("Bearer {}", self.token(caller));
        let mut headers = vec![("Authorization", bearer.as_str()), JSON, ACCEPT];
        headers.extend(more);
        let mut answer =
            send_at(&self.gateway.address, path, method, &headers, body.as_bytes()).answer();
        let (status, head) = (answer.status, std::mem::take(&mut answer.head));
        let bytes = match head.iter().any(|line| line == "content-type: text/event-stream") {
            // The first message; a stream of changes does not end.
            true => answer.event().map(|event| event.to_string()).unwrap_or_default(),
            false => String::from_utf8(answer.bytes()).expect("text"),
        };
        Reply { status, head, body: bytes }
    }

    /// Sends a message of the modern era.
    fn modern(&self, caller: &str, path: &str, method: &str, params: Value) -> Reply {
        let message = modern(1, method, params);
        let headers = modern_headers(&message);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.http(caller, "POST", path, &message.to_string(), &headers)
    }

    /// Begins a session of the legacy era; returns its id.
    fn session(&self, caller: &str) -> String {
        let message = initialize(0, LEGACY).to_string();
        let begun = self.http(caller, "POST", "/mcp", &message, &[]);
        let line = begun.head.iter().find_map(|line| line.strip_prefix("mcp-session-id: "));
        line.expect("a session").to_owned()
    }

    /// Sends a message in a session of the legacy era.
    fn legacy(&self, caller: &str, session: &str, method: &str, params: Value) -> Reply {
        let message = request(1, method, params).to_string();
        let headers = [("Mcp-Session-Id", session), ("MCP-Protocol-Version", LEGACY)];
        self.http(caller, "POST", "/mcp", &message, &headers)
    }
}

/// An answer.
struct Reply {
    status: u16,
    head: Vec<String>,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// Describes the answer: its status, its code, or what it lists.
    fn told(&self) -> String {
        let body = self.json();
        let mut told = self.status.to_string();
        if let Some(code) = body["code"].as_str() {
            return format!("{told} {code}");
        }
        if body["error"].is_object() {
            let code = body["error"]["data"]["code"].as_str().unwrap_or_default();
            return format!("{told} {} {code}", body["error"]["code"]).trim_end().to_owned();
        }
        if let Some(uris) = body["params"]["notifications"]["resourceSubscriptions"].as_array() {
            return format!("{told} {} subscribed", uris.len());
        }
        let result = if body["result"].is_object() { &body["result"] } else { &body };
        if result["isError"] == true {
            let code = result["_meta"]["toolbooth/errorCode"].as_str().unwrap_or("tool");
            told.push_str(&format!(" {code}"));
        }
        for (list, name) in [
            ("tools", if result["tools"][0]["toolId"].is_string() { "toolId" } else { "name" }),
            ("prompts", "name"),
            ("resources", "uri"),
            ("receipts", "receiptId"),
            ("logs", "id"),
            ("approvals", "approvalId"),
        ] {
            let Some(items) = result[list].as_array() else { continue };
            let names: Vec<&str> = items.iter().filter_map(|item| item[name].as_str()).collect();
            match list {
                "receipts" | "logs" | "approvals" => {
                    told.push_str(&format!(" {} {list}", names.len()))
                }
                _ => told.push_str(&format!(" [{}]", names.join(" "))),
            }
        }
        told
    }
}

/// Returns each surface with what each caller is told on it.
fn table(callers: &Callers) -> Vec<(String, Vec<String>)> {
    let mut rows = Vec::new();
    let mut row = |surface: &str, ask: &dyn Fn(&str) -> Reply| {
        let told = callers.all.iter().map(|(name, _)| ask(name).told()).collect();
        rows.push((surface.to_owned(), told));
    };
    let http = |caller: &str, method: &str, path: &str, body: &str| {
        callers.http(caller, method, path, body, &[])
    };
    for path in [
        "/healthz",
        "/readyz",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/{*resource}",
        "/v1/tools",
        "/v1/receipts",
        "/v1/receipts/{id}",
        "/v1/agent-logs",
        "/v1/agent-logs/{id}",
        "/v1/approvals",
        "/v1/approvals/{id}",
        "/v1/calls/{id}",
    ] {
        let id = match path {
            "/v1/receipts/{id}" => &callers.receipt,
            "/v1/agent-logs/{id}" => &callers.log,
            "/v1/approvals/{id}" => &callers.approval,
            _ => &callers.call,
        };
        let real = path.replace("{id}", id).replace("{*resource}", "mcp/work");
        row(&format!("GET {path}"), &|caller| http(caller, "GET", &real, ""));
    }
    let ended = format!("/v1/calls/{}", callers.call);
    row("DELETE /v1/calls/{id}", &|caller| http(caller, "DELETE", &ended, ""));
    let approval = format!("/v1/approvals/{}", callers.approval);
    row("POST /v1/approvals/{id}", &|caller| {
        http(caller, "POST", &approval, r#"{"decision":"approve"}"#)
    });
    row("GET /v1/tools?q", &|caller| http(caller, "GET", "/v1/tools?q=wave", ""));
    row("POST /v1/discover", &|caller| http(caller, "POST", "/v1/discover", ""));
    for tool in ["calculator", "box.wave", "box.melt", "nothing.there"] {
        let body = json!({ "toolId": tool, "args": { "expression": "1" } });
        let body = if tool == "calculator" { body } else { json!({ "toolId": tool }) }.to_string();
        row(&format!("POST /v1/calls {tool}"), &|caller| http(caller, "POST", "/v1/calls", &body));
        let more = [("Prefer", "respond-async")];
        row(&format!("POST /v1/calls {tool}, asynchronous"), &|caller| {
            callers.http(caller, "POST", "/v1/calls", &body, &more)
        });
    }
    let uri = |path: &str| json!({ "uri": format!("toolbooth+box:file:///{path}") });
    let listen =
        json!({ "notifications": { "resourceSubscriptions": [uri("vault/plan")["uri"]] } });
    let complete = |name: &str| {
        json!({ "ref": { "type": "ref/prompt", "name": name },
            "argument": { "name": "a", "value": "" } })
    };
    let methods: Vec<(&str, Vec<(&str, Value)>)> = vec![
        ("server/discover", vec![("", json!({}))]),
        ("tools/list", vec![("", json!({}))]),
        (
            "tools/call",
            ["box_wave", "box_melt", "nothing"]
                .map(|name| (name, json!({ "name": name, "arguments": {} })))
                .into(),
        ),
        ("prompts/list", vec![("", json!({}))]),
        (
            "prompts/get",
            ["box_greet", "box_blame", "nothing"]
                .map(|name| (name, json!({ "name": name })))
                .into(),
        ),
        ("resources/list", vec![("", json!({}))]),
        ("resources/templates/list", vec![("", json!({}))]),
        (
            "resources/read",
            ["notes/a", "vault/plan", "nothing"].map(|path| (path, uri(path))).into(),
        ),
        (
            "completion/complete",
            ["box_greet", "box_blame", "nothing"].map(|name| (name, complete(name))).into(),
        ),
        ("subscriptions/listen", vec![("vault/plan", listen)]),
    ];
    for path in ["/mcp", "/mcp/{toolset}"] {
        let real = path.replace("{toolset}", "work");
        for (method, asks) in &methods {
            for (what, params) in asks {
                row(format!("POST {path} {MODERN} {method} {what}").trim_end(), &|caller| {
                    callers.modern(caller, &real, method, params.clone())
                });
            }
        }
    }
    let sessions: Vec<(&str, String)> =
        callers.all.iter().map(|(name, _)| (*name, callers.session(name))).collect();
    let session = |caller: &str| {
        let found = sessions.iter().find(|(name, _)| *name == caller);
        found.expect("a session").1.clone()
    };
    let mut older = methods;
    older.retain(|(method, _)| !matches!(*method, "server/discover" | "subscriptions/listen"));
    older.extend([
        ("ping", vec![("", json!({}))]),
        ("logging/setLevel", vec![("", json!({ "level": "error" }))]),
        (
            "resources/subscribe",
            ["notes/a", "vault/plan", "nothing"].map(|path| (path, uri(path))).into(),
        ),
        (
            "resources/unsubscribe",
            ["notes/a", "vault/plan", "nothing"].map(|path| (path, uri(path))).into(),
        ),
    ]);
    row(&format!("POST /mcp {LEGACY} initialize"), &|caller| {
        http(caller, "POST", "/mcp", &initialize(0, LEGACY).to_string())
    });
    for (method, asks) in &older {
        for (what, params) in asks {
            row(format!("POST /mcp {LEGACY} {method} {what}").trim_end(), &|caller| {
                callers.legacy(caller, &session(caller), method, params.clone())
            });
        }
    }
    // The session of `intern`.
    let own = session("intern");
    row("POST /mcp, the session of intern", &|caller| {
        callers.legacy(caller, &own, "ping", json!({}))
    });
    for method in ["GET", "DELETE"] {
        for path in ["/mcp", "/mcp/{toolset}"] {
            let real = path.replace("{toolset}", "work");
            row(&format!("{method} {path}, no session"), &|caller| http(caller, method, &real, ""));
        }
    }
    let headers = [("Mcp-Session-Id", own.as_str()), ("MCP-Protocol-Version", LEGACY)];
    let delete = |caller: &str| callers.http(caller, "DELETE", "/mcp", "", &headers);
    let told = ["ops", "bob", "stranger", "intern"].map(|caller| delete(caller).told());
    let [ops, bob, stranger, intern] = told;
    rows.push(("DELETE /mcp, the session of intern".to_owned(), vec![intern, ops, bob, stranger]));
    rows
}

/// Returns the routes that the HTTP door has, from its source: method and path.
fn routes() -> BTreeSet<String> {
    let source = |name: &str| {
        let path = repository().join("crates/server/src/http").join(name);
        std::fs::read_to_string(path).expect("a source")
    };
    let text = format!("{}{}", source("mod.rs"), source("resource.rs"))
        .replace("WELL_KNOWN,", "\"/.well-known/oauth-protected-resource\",")
        .replace("&format!(\"{WELL_KNOWN}", "\"/.well-known/oauth-protected-resource")
        .replace("{{", "{")
        .replace("}}", "}");
    let mut found = BTreeSet::new();
    for route in text.split(".route(").skip(1) {
        let mut parts = route.split('"');
        let path = parts.nth(1).expect("a path");
        let rest = parts.next().expect("a handler");
        let rest = rest.split("\n").next().unwrap_or_default();
        let methods: &[&str] = match () {
            () if rest.contains("any(") => &["GET", "POST", "DELETE"],
            () if rest.contains(".delete(") => &["GET", "DELETE"],
            () if rest.contains("post(") => &["POST"],
            () => &["GET"],
        };
        found.extend(methods.iter().map(|method| format!("{method} {path}")));
    }
    found
}

/// Returns the methods of MCP that the doors answer, from their source.
fn methods() -> BTreeSet<String> {
    let folder = repository().join("crates/server/src/mcp");
    let mut found = BTreeSet::from(["ping".to_owned(), "initialize".to_owned()]);
    let namespaces = [
        "server",
        "tools",
        "prompts",
        "resources",
        "completion",
        "logging",
        "subscriptions",
        "tasks",
        "roots",
        "sampling",
        "elicitation",
    ];
    for file in std::fs::read_dir(folder).expect("the sources") {
        let path = file.expect("a file").path();
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("a source");
        for word in text.split('"') {
            let is_method = word.split_once('/').is_some_and(|(space, name)| {
                namespaces.contains(&space)
                    && !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_alphabetic() || c == '/')
            });
            if is_method {
                found.insert(word.to_owned());
            }
        }
    }
    found
}

#[test]
fn each_caller_sees_and_does_what_its_set_says_on_every_surface() {
    let callers = Callers::new();
    let rows = table(&callers);
    let names: Vec<&str> = callers.all.iter().map(|(name, _)| *name).collect();
    let mut text = String::new();
    for (surface, told) in &rows {
        text.push_str(&format!("{surface}\n"));
        for (name, told) in names.iter().zip(told) {
            text.push_str(&format!("    {name:<9} {told}\n"));
        }
    }
    let golden = repository().join("tests/fixtures/surfaces.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).expect("is written");
    }
    let known = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = text.lines().zip(known.lines()).position(|(one, other)| one != other);
    assert_eq!(text.len(), known.len(), "line {differs:?} of {}:\n{text}", golden.display());
    assert!(differs.is_none(), "line {differs:?} of {}:\n{text}", golden.display());
    for route in routes() {
        let has = |surface: &str| {
            surface
                .strip_prefix(route.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',', '?']))
        };
        assert!(rows.iter().any(|(surface, _)| has(surface)), "`{route}` is not in the table");
    }
    for method in methods() {
        let has = |surface: &str| surface.split(' ').any(|word| word == method);
        assert!(rows.iter().any(|(surface, _)| has(surface)), "`{method}` is not in the table");
    }
    callers.gateway.stop();
    callers.place.assert_sound();
}

/// Replaces what differs from request to request: names, ids, digests, times and numbers.
fn plain(text: &str, name: &str) -> String {
    let text = text.replace(name, "NAME").replace(&name.replace('.', "_"), "NAME");
    let is_varying = |word: &str| {
        word.bytes().any(|b| b.is_ascii_digit())
            && word.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'-' | b'T' | b'Z' | b'.'))
    };
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') {
            word.push(c);
            continue;
        }
        out.push_str(if is_varying(&word) { "#" } else { &word });
        out.push(c);
        word.clear();
    }
    out
}

#[test]
fn what_is_hidden_is_answered_and_recorded_like_what_is_unknown() {
    let callers = Callers::new();
    let session = callers.session("intern");
    let modern = |method: &str, params: Value| callers.modern("intern", "/mcp", method, params);
    let legacy = |method: &str, params: Value| callers.legacy("intern", &session, method, params);
    // Each is asked with the name of a thing that is there and hidden, and with one that is not.
    type Ask<'c> = Box<dyn Fn(&str) -> Vec<Reply> + 'c>;
    let uri = |name: &str| json!({ "uri": format!("toolbooth+box:file:///vault/{name}") });
    let tool = |name: &str| json!({ "name": name.replace('.', "_"), "arguments": {"a": 1} });
    let prompt = |name: &str| json!({ "name": name.replace('.', "_") });
    let complete =
        |reference: Value| json!({ "ref": reference, "argument": { "name": "a", "value": "" } });
    let call = |name: &str, more: &[(&str, &str)]| {
        let body = json!({ "toolId": name, "args": {} }).to_string();
        callers.http("intern", "POST", "/v1/calls", &body, more)
    };
    let asks: Vec<(&str, [&str; 2], Ask<'_>)> = vec![
        ("POST /v1/calls", ["box.melt", "box.bend"], Box::new(|name| vec![call(name, &[])])),
        (
            "POST /v1/calls, asynchronous",
            ["box.melt", "box.bend"],
            Box::new(|name| {
                let queued = call(name, &[("Prefer", "respond-async")]);
                let id = queued.json()["callId"].as_str().expect("an id").to_owned();
                let path = format!("/v1/calls/{id}");
                let get = || callers.http("intern", "GET", &path, "", &[]);
                toolbooth_tests::waiting::until("the call ends", || {
                    get().json()["result"].is_object()
                });
                vec![queued, get()]
            }),
        ),
        (
            "GET /v1/tools?q",
            ["box.melt", "box.bend"],
            Box::new(|name| {
                let path = format!("/v1/tools?q={name}");
                vec![callers.http("intern", "GET", &path, "", &[])]
            }),
        ),
        (
            "tools/call",
            ["box.melt", "box.bend"],
            Box::new(|name| {
                vec![modern("tools/call", tool(name)), legacy("tools/call", tool(name))]
            }),
        ),
        (
            "prompts/get",
            ["box.blame", "box.shame"],
            Box::new(|name| {
                vec![modern("prompts/get", prompt(name)), legacy("prompts/get", prompt(name))]
            }),
        ),
        (
            "resources/read",
            ["plan", "plot"],
            Box::new(|name| {
                vec![modern("resources/read", uri(name)), legacy("resources/read", uri(name))]
            }),
        ),
        (
            "completion/complete of prompts",
            ["box.blame", "box.shame"],
            Box::new(|name| {
                let name = name.replace('.', "_");
                let asked = complete(json!({ "type": "ref/prompt", "name": name }));
                let method = "completion/complete";
                vec![modern(method, asked.clone()), legacy(method, asked)]
            }),
        ),
        (
            "completion/complete of resources",
            ["plan", "plot"],
            Box::new(|name| {
                let asked = complete(json!({ "type": "ref/resource", "uri": uri(name)["uri"] }));
                let method = "completion/complete";
                vec![modern(method, asked.clone()), legacy(method, asked)]
            }),
        ),
        (
            "resources/subscribe",
            ["plan", "plot"],
            Box::new(|name| {
                vec![
                    legacy("resources/subscribe", uri(name)),
                    legacy("resources/unsubscribe", uri(name)),
                ]
            }),
        ),
        (
            "subscriptions/listen",
            ["plan", "plot"],
            Box::new(|name| {
                let wanted = json!({ "resourceSubscriptions": [uri(name)["uri"]] });
                vec![modern("subscriptions/listen", json!({ "notifications": wanted }))]
            }),
        ),
    ];
    let count = |kind: &str| {
        let (all, _) = callers.place.json(&["audit", "query", "--limit", "100000"]);
        let all = all["events"].as_array().expect("events").clone();
        all.into_iter().filter(|event| event["event"] == kind).collect::<Vec<Value>>()
    };
    for (surface, names, ask) in asks {
        let mut told = Vec::new();
        for name in names {
            let before = count("UNKNOWN_TOOL").len();
            let replies = ask(name).into_iter().map(|reply| {
                let head = reply.head.join("\n");
                plain(&format!("{}\n{head}\n\n{}", reply.status, reply.body), name)
            });
            let replies: Vec<String> = replies.collect();
            let recorded: Vec<String> = count("UNKNOWN_TOOL")
                .split_off(before)
                .iter()
                .map(|event| plain(&event.to_string(), name))
                .collect();
            told.push((replies, recorded));
        }
        let [hidden, unknown] = told.as_slice() else { unreachable!("two names") };
        assert_eq!(hidden, unknown, "{surface}");
        let recorded = if surface.contains("?q") { 0 } else { 1 };
        assert!(hidden.1.len() >= recorded, "{surface}: {hidden:?}");
    }
}

#[test]
fn a_large_result_is_read_by_its_caller_only() {
    let callers = Callers::new();
    let call = json!({ "name": "box_wave", "arguments": {} });
    let large = callers.modern("intern", "/mcp", "tools/call", call).json();
    let blocks = large["result"]["content"].as_array().expect("blocks");
    let link = blocks.iter().find(|block| block["type"] == "resource_link").expect("a link");
    let uri = link["uri"].as_str().expect("an address");
    let read = |caller: &str, uri: &str| {
        callers.modern(caller, "/mcp", "resources/read", json!({ "uri": uri }))
    };
    let own = read("intern", uri).json();
    assert_eq!(own["result"]["contents"][0]["text"], "called wave", "{own}");
    let nowhere = format!("{}0198f000-0000-7000-8000-000000000000", uri.split_at(uri.len() - 36).0);
    let by_tool = |caller: &str, uri: &str| {
        let call = json!({ "name": "read_result", "arguments": { "result": uri } });
        callers.modern(caller, "/mcp", "tools/call", call)
    };
    assert!(by_tool("intern", uri).body.contains("called wave"));
    // The operator reads it as a receipt, not as the result of another caller.
    for caller in ["ops", "bob", "stranger"] {
        for ask in [&read as &dyn Fn(&str, &str) -> Reply, &by_tool] {
            let (foreign, unknown) = (ask(caller, uri), ask(caller, &nowhere));
            assert!(!foreign.body.contains("called wave"), "{caller}: {}", foreign.body);
            assert_eq!(plain(&foreign.body, uri), plain(&unknown.body, &nowhere), "{caller}");
        }
    }
}

impl Callers {
    /// Begins a stream of the changes that are wanted; returns it after its acknowledgement.
    fn listen(&self, caller: &str, wanted: &Value) -> Answer {
        let message = modern(1, "subscriptions/listen", json!({ "notifications": wanted }));
        let own = modern_headers(&message);
        let bearer = format!("Bearer {}", self.token(caller));
        let mut headers = vec![("Authorization", bearer.as_str()), JSON, ACCEPT];
        headers.extend(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let body = message.to_string();
        let sent = send_at(&self.gateway.address, "/mcp", "POST", &headers, body.as_bytes());
        let mut stream = sent.answer();
        let first = stream.event().expect("an acknowledgement");
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        stream
    }

    /// Changes the list of the server `box`.
    fn change(&self, from: &str, to: &str) {
        let list = self.place.path().join("box.json");
        let text = std::fs::read_to_string(&list).expect("a list");
        let draft = self.place.path().join("draft.json");
        std::fs::write(&draft, text.replace(from, to)).expect("is written");
        std::fs::rename(draft, list).expect("is renamed");
    }
}

#[test]
fn a_change_is_told_to_the_callers_that_see_it() {
    let callers = Callers::new();
    let wanted = json!({ "toolsListChanged": true, "promptsListChanged": true });
    let listen = |caller: &str| callers.listen(caller, &wanted);
    let (mut intern, mut ops, mut bob) = (listen("intern"), listen("ops"), listen("bob"));
    let told = "notifications/tools/list_changed";
    // `melt` is hidden from the intern.
    callers.change("\"name\": \"melt\",", "\"name\": \"melt\", \"description\": \"Melts.\",");
    assert_eq!(ops.event().expect("a change")["method"], told);
    assert_eq!(bob.event().expect("a change")["method"], told);
    callers.change("\"name\": \"wave\",", "\"name\": \"wave\", \"description\": \"Waves.\",");
    for stream in [&mut intern, &mut ops, &mut bob] {
        assert_eq!(stream.event().expect("a change")["method"], told);
    }
    callers.gateway.stop();
    for mut stream in [intern, ops, bob] {
        let rest: Vec<Value> = std::iter::from_fn(|| stream.event()).collect();
        assert!(rest.iter().all(|message| message["method"] != told), "{rest:?}");
    }
}

#[test]
fn an_update_is_told_to_the_sessions_that_subscribed() {
    const NOTES: &str = "toolbooth+box:file:///notes/a";
    const VAULT: &str = "toolbooth+box:file:///vault/plan";
    let callers = Callers::new();
    let listen = |caller: &str, uris: &[&str]| {
        let wanted = json!({ "resourceSubscriptions": uris, "promptsListChanged": true });
        callers.listen(caller, &wanted)
    };
    let mut both = listen("ops", &[NOTES, VAULT]);
    let mut others = [
        (listen("ops", &[]), None),
        (listen("bob", &[VAULT]), Some(VAULT)),
        // The vault is hidden from the intern.
        (listen("intern", &[NOTES, VAULT]), Some(NOTES)),
        (listen("stranger", &[NOTES, VAULT]), None),
    ];
    callers.change("\"name\": \"melt\",", "\"name\": \"melt\", \"title\": \"Melt\",");
    let updated = |event: &Value| {
        assert_eq!(event["method"], "notifications/resources/updated", "{event}");
        event["params"]["uri"].as_str().expect("a uri").to_owned()
    };
    let told: BTreeSet<String> =
        (0..2).map(|_| updated(&both.event().expect("an update"))).collect();
    assert_eq!(told, BTreeSet::from([NOTES.to_owned(), VAULT.to_owned()]));
    for (stream, expected) in &mut others {
        if let Some(uri) = expected {
            assert_eq!(updated(&stream.event().expect("an update")), *uri);
        }
    }
    callers.gateway.stop();
    for (mut stream, _) in others {
        let rest: Vec<Value> = std::iter::from_fn(|| stream.event()).collect();
        let updates = rest.iter().filter(|event| {
            event["method"].as_str().is_some_and(|method| method.contains("updated"))
        });
        assert_eq!(updates.count(), 0, "{rest:?}");
    }
}
