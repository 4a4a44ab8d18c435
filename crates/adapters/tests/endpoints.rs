//! Tests HTTP endpoints against servers on loopback: requests, responses, limits, and destinations.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_adapters::OwnDoors;
use toolbooth_adapters::endpoint::{
    Endpoint, EndpointSettings, IDEMPOTENCY_HEADER, Operations, Plan, RequestTemplate,
};
use toolbooth_adapters::net_guard::{Guard, Resolver, refusal};
use toolbooth_adapters::secrets::Setting;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Conversation, Effect, ErrorCode, ExecutionLog, Executor, ToolOutput};

use crate::calls;

/// A server that responds with the result of `answer` to each request of each connection.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (log, count, answer) = (Arc::clone(&seen), Arc::clone(&connections), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    while let Some(request) = read_request(&mut stream) {
                        let reply = answer(&request);
                        log.lock().unwrap().push(request);
                        if stream.write_all(&reply).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen, connections }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn read_request(stream: &mut std::net::TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_lowercase().strip_prefix("content-length:").map(str::to_owned)
                })
                .and_then(|length| length.trim().parse::<usize>().ok())
                .unwrap_or_default();
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => bytes.extend_from_slice(&chunk[..count]),
            _ => return None,
        }
    }
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len())
        .into_bytes();
    out.extend_from_slice(body);
    out
}

fn json_reply(body: &Value) -> Vec<u8> {
    reply("200 OK", "content-type: application/json\r\n", body.to_string().as_bytes())
}

fn settings(plan: Plan, guard: Guard) -> EndpointSettings {
    EndpointSettings {
        name: "test".to_owned(),
        plan,
        headers: Vec::new(),
        guard,
        redirects: 0,
        response_bytes_max: 100_000,
        connect_timeout: Duration::from_secs(5),
        idempotency_header: IDEMPOTENCY_HEADER,
        authorities: None,
    }
}

fn get(url: &str) -> Plan {
    Plan::Template(Box::new(RequestTemplate::parse(None, url, &[], None).unwrap()))
}

async fn call(
    endpoint: &Endpoint,
    arguments: Value,
) -> (Result<ToolOutput, ExecutionError>, ExecutionLog) {
    call_target(endpoint, "t.t", arguments).await
}

async fn call_target(
    endpoint: &Endpoint,
    target: &str,
    arguments: Value,
) -> (Result<ToolOutput, ExecutionError>, ExecutionLog) {
    execute(endpoint, target, arguments).await
}

async fn execute(
    endpoint: &dyn Executor,
    target: &str,
    arguments: Value,
) -> (Result<ToolOutput, ExecutionError>, ExecutionLog) {
    let execution = json!({"endpointRef": "test", "target": target});
    let policy = json!({"timeoutMs": 5_000, "trustLevel": "trusted"});
    let contract = calls::contract(execution, json!({"policy": policy}));
    let dispatch = calls::dispatch(contract, &arguments.to_string());
    let execution_log = dispatch.execution_log.clone();
    let (conversation, _cancel) = Conversation::detached();
    (calls::answered(endpoint.execute(dispatch, conversation).await), execution_log)
}

async fn a_template_asks_and_its_answer_is_data() {
    let server = Server::start(|_| json_reply(&json!({"n": 12_345_678_901_234_567_890_u64})));
    let template = RequestTemplate::parse(
        Some("post"),
        &server.url("/v1/{city}"),
        &[("q".to_owned(), "{q}".to_owned())],
        None,
    );
    let plan = Plan::Template(Box::new(template.unwrap()));
    let endpoint = Endpoint::new(EndpointSettings {
        headers: vec![("X-Key".to_owned(), "value".into())],
        ..settings(plan, Guard::new(true))
    });
    for _ in 0..3 {
        let (answer, _) = call(&endpoint, json!({"city": "a/b", "q": "x y", "rest": 1})).await;
        let data = answer.unwrap().payload.structured_content.unwrap();
        assert_eq!(data.to_string(), r#"{"n":12345678901234567890}"#);
    }
    let seen = server.seen();
    let request = seen[0].to_lowercase();
    assert!(request.starts_with("post /v1/a%2fb?q=x+y http/1.1"), "{request}");
    for part in ["x-key: value", "idempotency-key: key-1", "{\"rest\":1}"] {
        assert!(request.contains(part), "{part}: {request}");
    }
    assert_eq!(seen.len(), 3);
    // Connections are pooled. A request that follows at once can come before the last connection is idle.
    let mut requests = seen.len();
    while server.connections.load(Ordering::SeqCst) == requests {
        assert!(requests < 1_000, "each request has a connection of its own");
        call(&endpoint, json!({"city": "a", "q": "b"})).await.0.unwrap();
        requests += 1;
    }
}

async fn operations_of_a_document_are_asked() {
    let server = Server::start(|_| json_reply(&json!({"ok": true})));
    let document = json!({"openapi": "3.0.3", "paths": {"/pets/{id}": {"get": {"parameters": [
        {"name": "id", "in": "path", "required": true}, {"name": "full", "in": "query"}]}}}});
    let operations = Operations::read(&document, Some(&server.url(""))).unwrap();
    let plan = Plan::Operations(Box::new(operations));
    let endpoint = Endpoint::new(settings(plan, Guard::new(true)));
    let (answer, _) =
        call_target(&endpoint, "GET /pets/{id}", json!({"id": 7, "full": true})).await;
    assert_eq!(answer.unwrap().payload.structured_content.unwrap(), json!({"ok": true}));
    assert!(server.seen()[0].starts_with("GET /pets/7?full=true "));
    let (answer, _) = call_target(&endpoint, "GET /cats", json!({})).await;
    let error = answer.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::NotConfigured, Effect::NotStarted));
}

async fn failures_are_told_with_the_problems_title() {
    for (status, effect) in [
        ("422 Unprocessable", Effect::NotStarted),
        ("500 Oops", Effect::Unknown),
        ("409 C", Effect::Unknown),
    ] {
        let server = Server::start(move |_| {
            let body = br#"{"title":"No such \u001b[31mcity","detail":"secret detail"}"#;
            reply(status, "content-type: application/problem+json\r\n", body)
        });
        let endpoint = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
        let error = call(&endpoint, json!({})).await.0.unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, effect));
        let safe = error.safe.unwrap();
        assert!(safe.contains("No such city") && !safe.contains("secret"), "{safe}");
        assert!(error.internal.contains("secret detail"));
    }
}

async fn escapes_hide_no_secret() {
    for (status, escaped) in [("200 OK", true), ("400 Bad", true), ("200 OK", false)] {
        let server = Server::start(move |_| {
            if escaped {
                let body = br#"{"title":"of hun\u0074er2","hun\u0074er2":1}"#;
                reply(status, "content-type: application/json\r\n", body)
            } else {
                reply(status, "content-type: text/plain\r\n", b"of hun\x1b[1mter2")
            }
        });
        let token = Setting::Template("${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned());
        let endpoint = Endpoint::new(EndpointSettings {
            headers: vec![("X-Key".to_owned(), token)],
            ..settings(get(&server.url("/")), Guard::new(true))
        });
        let told = match call(&endpoint, json!({})).await.0 {
            Ok(output) => {
                format!("{:?} {:?}", output.payload.content, output.payload.structured_content)
            }
            Err(error) => error.safe.unwrap(),
        };
        assert!(told.contains("of ${TOOLBOOTH_NO_TOKEN}") && !told.contains("hunter2"), "{told}");
    }
}

/// A server that responds to the head of each request and never reads its body. It holds the
/// connection open until the client closes it, so that no reset discards the response.
fn refuses_bodies(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0u8];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    address
}

fn post(url: &str) -> Plan {
    let method = Some("POST".to_owned());
    Plan::Template(Box::new(RequestTemplate::parse(method.as_deref(), url, &[], None).unwrap()))
}

async fn a_post_that_was_refused_before_its_body_was_taken_has_not_started() {
    let large = json!({ "text": "x".repeat(8 << 20) });
    for status in ["413 Content Too Large", "401 Unauthorized", "429 Too Many Requests"] {
        let address = refuses_bodies(status);
        let url = format!("http://{address}/x");
        let endpoint = Endpoint::new(settings(post(&url), Guard::new(true)));
        let error = call(&endpoint, large.clone()).await.0.unwrap_err();
        assert_eq!(error.effect, Effect::NotStarted, "{status}: {error:?}");
    }
    // A reset discards the response, but the body was not sent completely.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().read_exact(&mut [0u8; 100]);
        }
    });
    let endpoint = Endpoint::new(settings(post(&url), Guard::new(true)));
    let error = call(&endpoint, large.clone()).await.0.unwrap_err();
    assert_eq!(error.effect, Effect::NotStarted, "{error:?}");
    let error = call(&endpoint, json!({ "text": "short" })).await.0.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown, "{error:?}");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = Endpoint::new(settings(post(&format!("http://{unused}/x")), Guard::new(true)));
    let error = call(&endpoint, large).await.0.unwrap_err();
    assert_eq!(error.effect, Effect::NotStarted, "{error:?}");
}

/// A legacy MCP server that responds to each `tools/call` with only a status.
fn mcp_server(status: Arc<Mutex<&'static str>>) -> Server {
    Server::start(move |request| {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let message: Value = serde_json::from_str(body).unwrap_or_default();
        let result = |result: Value| {
            json_reply(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
        };
        match message["method"].as_str() {
            Some("initialize") => result(json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            })),
            Some("tools/call") => reply(*status.lock().unwrap(), "", b""),
            Some("notifications/initialized") => reply("202 Accepted", "", b""),
            Some(_) => reply("400 Bad Request", "content-type: text/plain\r\n", b"no"),
            None => reply("405 Method Not Allowed", "", b""),
        }
    })
}

#[cfg(feature = "mcp")]
async fn a_server_that_did_not_take_a_call_has_not_started_it() {
    use toolbooth_adapters::launcher::Launcher;
    use toolbooth_adapters::mcp::{McpServer, ServerSettings, ServerTransport};
    let status = Arc::new(Mutex::new("413 Content Too Large"));
    let server = mcp_server(Arc::clone(&status));
    let transport = ServerTransport::Http { url: server.url("/mcp").into(), headers: Vec::new() };
    let settings = ServerSettings {
        name: "s".to_owned(),
        transport,
        startup_timeout: Duration::from_secs(10),
        callers: None,
    };
    let upstream =
        McpServer::new(settings, Launcher::of_this_program(None), ExecutionLog::default());
    for (told, effect) in [
        ("413 Content Too Large", Effect::NotStarted),
        ("429 Too Many Requests", Effect::NotStarted),
        ("401 Unauthorized", Effect::NotStarted),
        ("500 Internal Server Error", Effect::Unknown),
        ("502 Bad Gateway", Effect::Unknown),
        ("200 OK", Effect::Unknown),
    ] {
        *status.lock().unwrap() = told;
        let error = execute(&*upstream, "t", json!({})).await.0.unwrap_err();
        assert_eq!(error.effect, effect, "{told}: {error:?}");
    }
    upstream.close().await;
}

async fn what_is_no_answer_is_told() {
    type Case = (&'static str, Vec<u8>, ErrorCode, Effect);
    let cases: [Case; 4] = [
        (
            "broken JSON",
            reply("200 OK", "content-type: application/json\r\n", b"{"),
            ErrorCode::InvalidToolResult,
            Effect::Completed,
        ),
        (
            "an image",
            reply("200 OK", "content-type: image/png\r\n", b"\x89PNG"),
            ErrorCode::InvalidToolResult,
            Effect::Completed,
        ),
        (
            "half a body",
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nx".to_vec(),
            ErrorCode::Timeout,
            Effect::Unknown,
        ),
        ("no HTTP", b"SSH-2.0-x\r\n\r\n".to_vec(), ErrorCode::AdapterFailed, Effect::Unknown),
    ];
    for (name, bytes, code, effect) in cases {
        let server = Server::start(move |_| bytes.clone());
        let endpoint = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
        let error = call(&endpoint, json!({})).await.0.unwrap_err();
        // The call's own timeout ends a body that never ends.
        let code = if name == "half a body" { error.code } else { code };
        assert_eq!((error.code, error.effect), (code, effect), "{name}: {error:?}");
    }
    let text = Server::start(|_| reply("200 OK", "content-type: text/plain\r\n", b"h\x1b[1mi\xff"));
    let endpoint = Endpoint::new(settings(get(&text.url("/")), Guard::new(true)));
    let answer = call(&endpoint, json!({})).await.0.unwrap();
    assert_eq!(answer, ToolOutput::text("hi\u{fffd}"));
    for (head, body, expected) in [
        ("text/plain; charset=iso-8859-1", &b"caf\xe9"[..], ToolOutput::text("caf\u{e9}")),
        ("text/html;Charset=\"Shift_JIS\"", b"\x83e", ToolOutput::text("\u{30c6}")),
        ("text/plain; charset=klingon", b"x", ToolOutput::text("x")),
        ("text/plain; charset=iso-2022-kr", b"x", ToolOutput::text("x")),
        ("application/json", b"\xef\xbb\xbf{\"a\":1}", ToolOutput::data(&json!({"a": 1}))),
        // JSON that is UTF-8 is read as such, whatever its server says.
        (
            "application/json;charset=ISO-8859-1",
            b"[\"caf\xc3\xa9\"]",
            ToolOutput::data(&json!(["caf\u{e9}"])),
        ),
        (
            "application/json;charset=ISO-8859-1",
            b"[\"caf\xe9\"]",
            ToolOutput::data(&json!(["caf\u{e9}"])),
        ),
    ] {
        let server =
            Server::start(move |_| reply("200 OK", &format!("content-type: {head}\r\n"), body));
        let endpoint = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
        assert_eq!(call(&endpoint, json!({})).await.0.unwrap(), expected, "{head}");
    }
    for (head, body) in [("application/json", &b"{\"a\":\"caf\xe9\"}"[..])] {
        let server =
            Server::start(move |_| reply("200 OK", &format!("content-type: {head}\r\n"), body));
        let endpoint = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
        let error = call(&endpoint, json!({})).await.0.unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::InvalidToolResult, Effect::Completed));
    }
    let closed = Endpoint::new(settings(get("http://127.0.0.1:1/"), Guard::new(true)));
    let error = call(&closed, json!({})).await.0.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::NotStarted));
}

async fn responses_are_bounded_as_they_are_decompressed() {
    // Ten megabytes of blanks in ten kilobytes, compressed by the library that decompresses them.
    let bomb: Vec<u8> = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![b' '; 10 << 20]).unwrap();
        encoder.finish().unwrap()
    };
    assert!(bomb.len() < 20_000);
    let server = Server::start(move |_| {
        reply("200 OK", "content-type: text/plain\r\ncontent-encoding: gzip\r\n", &bomb)
    });
    let endpoint = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
    let error = call(&endpoint, json!({})).await.0.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::ResultTooLarge, Effect::Completed));
    let plain = Server::start(|_| reply("200 OK", "", &vec![b'x'; 200_000]));
    let endpoint = Endpoint::new(settings(get(&plain.url("/")), Guard::new(true)));
    assert_eq!(call(&endpoint, json!({})).await.0.unwrap_err().code, ErrorCode::ResultTooLarge);
}

async fn redirects_are_followed_only_where_that_is_allowed() {
    let target = Server::start(|_| json_reply(&json!({"arrived": true})));
    let to = target.url("/there");
    let server = Server::start(move |_| reply("302 Found", &format!("location: {to}\r\n"), b""));
    let closed = Endpoint::new(settings(get(&server.url("/")), Guard::new(true)));
    let error = call(&closed, json!({})).await.0.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    assert!(target.seen().is_empty());
    let open = |guard| {
        Endpoint::new(EndpointSettings {
            redirects: 2,
            headers: vec![("X-Key".to_owned(), "value".into())],
            ..settings(get(&server.url("/")), guard)
        })
    };
    let answer = call(&open(Guard::new(true)), json!({})).await.0.unwrap();
    assert_eq!(answer.payload.structured_content.unwrap(), json!({"arrived": true}));
    // Headers for one origin are not sent to another.
    assert!(server.seen()[1].contains("x-key") && !target.seen()[0].contains("x-key"));
    let round = Server::start(|_| reply("302 Found", "location: /again\r\n", b""));
    let endpoint = Endpoint::new(EndpointSettings {
        redirects: 3,
        ..settings(get(&round.url("/")), Guard::new(true))
    });
    assert!(call(&endpoint, json!({})).await.0.is_err());
    assert_eq!(round.seen().len(), 4);
}

/// Returns a resolver with the given results, one after the other.
fn resolver(answers: &[&[&str]]) -> (Resolver, Arc<AtomicUsize>) {
    let answers: Vec<Vec<IpAddr>> = answers
        .iter()
        .map(|list| list.iter().map(|text| text.parse().unwrap()).collect())
        .collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let resolver: Resolver = Arc::new(move |_, port| {
        let at = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        let found = answers[at].iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        Box::pin(async move { Ok(found) })
    });
    (resolver, asked)
}

async fn a_name_that_leads_inside_is_refused_and_noted() {
    for inside in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"]
    {
        let (resolver, _) = resolver(&[&[inside]]);
        let endpoint = Endpoint::new(settings(
            get("http://rebound.example:8080/"),
            Guard::with_resolver(false, resolver),
        ));
        let (answer, execution_log) = call(&endpoint, json!({})).await;
        let error = answer.unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::SandboxDenied, Effect::NotStarted));
        assert!(!error.safe.unwrap().contains(inside), "agents learn no addresses");
        let noted = execution_log.take().egress;
        assert_eq!((noted[0].host.as_str(), noted[0].port), ("rebound.example", 8080), "{inside}");
    }
    // One forbidden address among allowed ones refuses the name.
    let (resolver, _) = resolver(&[&["93.184.215.14", "127.0.0.1"]]);
    let guard = Guard::with_resolver(false, resolver);
    let endpoint = Endpoint::new(settings(get("http://mixed.example/"), guard));
    assert_eq!(call(&endpoint, json!({})).await.0.unwrap_err().code, ErrorCode::SandboxDenied);
}

async fn a_name_that_changes_its_meaning_is_asked_once() {
    // The connection must use the checked address, even if the name then resolves to another one.
    let server = Server::start(|_| json_reply(&json!({"inside": true})));
    let (resolver, asked) = resolver(&[&["192.0.2.1"], &["127.0.0.1"]]);
    // This guard allows every address, so the first one passes the check.
    let guard = Guard::with_resolver(true, resolver);
    let url = format!("http://rebound.example:{}/", server.address.port());
    let endpoint = Endpoint::new(EndpointSettings {
        connect_timeout: Duration::from_millis(300),
        ..settings(get(&url), guard)
    });
    // A second call within seconds also uses the checked address.
    for _ in 0..2 {
        assert!(call(&endpoint, json!({})).await.0.is_err());
        assert_eq!((asked.load(Ordering::SeqCst), server.seen().len()), (1, 0));
    }
}

async fn a_redirect_inside_is_refused() {
    let inner = Server::start(|_| json_reply(&json!({"inside": true})));
    let to = inner.url("/");
    let outer = Server::start(move |_| reply("302 Found", &format!("location: {to}\r\n"), b""));
    // The first hop is already refused, because its name resolves to loopback.
    let port = outer.address.port();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let resolver: Resolver = Arc::new(move |_, port| {
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]) })
    });
    let guard = Guard::with_resolver(false, resolver);
    let endpoint = Endpoint::new(EndpointSettings {
        redirects: 5,
        ..settings(get(&format!("http://outer.example:{port}/")), guard)
    });
    let (answer, _) = call(&endpoint, json!({})).await;
    assert_eq!(answer.unwrap_err().code, ErrorCode::SandboxDenied);
    assert!(inner.seen().is_empty() && outer.seen().is_empty());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

async fn the_gateways_own_door_is_refused_whatever_is_allowed() {
    let door = Server::start(|_| json_reply(&json!({"receipts": []})));
    let beside = Server::start(|_| json_reply(&json!({"fine": true})));
    let (port, other) = (door.address.port(), beside.address.port());
    let doors = OwnDoors::default();
    doors.add(door.address);
    for host in ["127.0.0.1", "2130706433", "127.1", "localhost", "[::ffff:127.0.0.1]", "0", "[::]"]
    {
        let to = format!("http://{host}:{port}/v1/receipts");
        let target = to.clone();
        let outer =
            Server::start(move |_| reply("302 Found", &format!("location: {target}\r\n"), b""));
        let outer = outer.url("/");
        for url in [&to, &outer] {
            let endpoint = Endpoint::new(EndpointSettings {
                redirects: 5,
                ..settings(get(url), Guard::new(true).refusing(doors.clone()))
            });
            let (answer, _) = call(&endpoint, json!({})).await;
            assert!(answer.is_err(), "{url} to {to}");
        }
    }
    assert!(door.seen().is_empty(), "{:?}", door.seen());
    let url = format!("http://localhost:{other}/");
    let allowed = Endpoint::new(settings(get(&url), Guard::new(true).refusing(doors)));
    assert!(call(&allowed, json!({})).await.0.is_ok(), "another port of this machine is reached");
}

/// Spellings of addresses that lead to internal hosts.
const SPELLINGS: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "0177.0.0.1",
    "0177.1",
    "017700000001",
    "127.0.0.1.",
    "127.1.",
    "0",
    "0.0.0.0",
    "0x0",
    "00000000",
    "0.0.0.0.",
    "10.0.0.1",
    "10.1",
    "0xa.1",
    "012.1",
    "167772161",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "0xac100001",
    "2886729729",
    "192.168.0.1",
    "192.168.1",
    "0xc0a80001",
    "3232235521",
    "0300.0250.0.1",
    "169.254.169.254",
    "169.254.43518",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "100.64.0.1",
    "100.127.255.255",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:10.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[::127.0.0.1]",
    "[::7f00:1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fdff:ffff::1]",
    "[fe80::1]",
    "[febf::1]",
    "[fec0::1]",
    "[ff02::1]",
    "[2002:7f00:1::]",
    "[2001::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
    "[4000::1]",
    "%31%32%37.0.0.1",
    "１２７.０.０.１",
    "127。0。0。1",
    "①②⑦.0.0.1",
];

async fn no_spelling_of_an_inner_address_passes() {
    assert!(SPELLINGS.len() >= 60);
    let endpoint = |host: &str| {
        Endpoint::new(settings(get(&format!("http://{host}:8080/x")), Guard::new(false)))
    };
    for host in SPELLINGS {
        let (answer, execution_log) = call(&endpoint(host), json!({})).await;
        let error = answer.unwrap_err();
        assert_eq!(
            (error.code, error.effect),
            (ErrorCode::SandboxDenied, Effect::NotStarted),
            "{host}"
        );
        assert_eq!(execution_log.take().egress.len(), 1, "{host}");
    }
    // These are not addresses.
    for host in ["256.0.0.1", "127.0.0.1.5.6", "0x100000000", "[::g]", "1.2.3.4.5"] {
        let made = RequestTemplate::parse(None, &format!("http://{host}/"), &[], None).unwrap();
        let endpoint = Endpoint::new(settings(Plan::Template(Box::new(made)), Guard::new(false)));
        let error = call(&endpoint, json!({})).await.0.unwrap_err();
        assert_eq!(error.effect, Effect::NotStarted, "{host}");
    }
}

async fn public_addresses_pass() {
    for text in [
        "1.1.1.1",
        "93.184.215.14",
        "172.32.0.1",
        "100.128.0.1",
        "192.169.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
    ] {
        assert_eq!(refusal(text.parse().unwrap()), None, "{text}");
    }
}

async fn a_body_that_does_not_come_to_its_end_in_time_is_a_timeout() {
    let server = Server::start(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nab".to_vec());
    let endpoint = Endpoint::new(settings(get(&server.url("/slow")), Guard::new(true)));
    let execution = json!({"endpointRef": "test", "target": "t.t"});
    let policy = json!({"timeoutMs": 200, "trustLevel": "trusted"});
    let contract = calls::contract(execution, json!({"policy": policy}));
    let mut dispatch = calls::dispatch(contract, "{}");
    dispatch.timeout = Duration::from_millis(200);
    let (conversation, _cancel) = Conversation::detached();
    let error = calls::answered(endpoint.execute(dispatch, conversation).await).unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::Timeout, Effect::Unknown), "{error:?}");
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    trials!["endpoints";
        a_template_asks_and_its_answer_is_data,
        operations_of_a_document_are_asked,
        failures_are_told_with_the_problems_title,
        escapes_hide_no_secret,
        a_post_that_was_refused_before_its_body_was_taken_has_not_started,
        a_server_that_did_not_take_a_call_has_not_started_it,
        what_is_no_answer_is_told,
        a_body_that_does_not_come_to_its_end_in_time_is_a_timeout,
        responses_are_bounded_as_they_are_decompressed,
        redirects_are_followed_only_where_that_is_allowed,
        a_name_that_leads_inside_is_refused_and_noted,
        a_name_that_changes_its_meaning_is_asked_once,
        a_redirect_inside_is_refused,
        no_spelling_of_an_inner_address_passes,
        the_gateways_own_door_is_refused_whatever_is_allowed,
        public_addresses_pass,
    ]
}
