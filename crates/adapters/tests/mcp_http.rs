//! Tests misbehaving upstream servers over streamable HTTP: sessions, eras, streams and their ends.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::{McpServer, ServerSettings, ServerTransport};
use toolbooth_contracts::conversation::LogLevel;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::port::{
    Ask, CompletionReference, ExecutionError, Notice, ToolSource, Upstream,
};
use toolbooth_contracts::{
    Caller, Conversation, Dispatch, Effect, ErrorCode, ExecutionLog, Executor, Outcome,
    ToolContract, ToolOutput,
};

use crate::{CEILING, calls, next, soon};

/// A request as the server received it.
#[derive(Debug, Clone, Default)]
struct Request {
    verb: String,
    head: String,
    body: Value,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(':')?;
            own.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    fn id(&self) -> &Value {
        &self.body["id"]
    }
}

/// The connection that a handler writes its response to.
struct Answer(TcpStream);

impl Answer {
    fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).and_then(|()| self.0.flush()).is_ok()
    }

    fn whole(&mut self, status: &str, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        self.write(&[head.as_bytes(), body].concat());
    }

    fn json(&mut self, status: &str, body: &Value) {
        self.whole(status, "content-type: application/json\r\n", body.to_string());
    }

    fn result(&mut self, id: &Value, result: Value) {
        self.json("200 OK", &json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn text(&mut self, id: &Value, text: &str) {
        self.result(id, words(text));
    }

    fn refuse(&mut self, status: &str, id: &Value, code: i64, message: &str) {
        let error = json!({ "code": code, "message": message });
        self.json(status, &json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    /// Begins a stream of events, which ends with the connection.
    fn stream(&mut self) {
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
        );
    }

    fn event(&mut self, message: &Value) -> bool {
        self.write(format!("event: message\ndata: {message}\n\n").as_bytes())
    }

    fn end(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Waits until the client has disconnected.
    fn until_gone(&mut self) {
        let mut byte = [0];
        while matches!(self.0.read(&mut byte), Ok(1..)) {}
    }
}

fn words(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// An HTTP server, with a thread for each connection.
#[derive(Clone)]
struct Served {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Served {
    fn start(handler: impl Fn(&Request, &mut Answer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (log, handler) = (Arc::clone(&seen), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, handler) = (Arc::clone(&log), Arc::clone(&handler));
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut answer = Answer(stream);
                    while let Some(request) = read(&mut reader) {
                        log.lock().unwrap().push(request.clone());
                        handler(&request, &mut answer);
                    }
                });
            }
        });
        Self { address, seen }
    }

    fn seen(&self, method: &str) -> Vec<Request> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|one| one.method() == method || one.verb == method).cloned().collect()
    }

    fn server(&self) -> Arc<McpServer> {
        let settings = ServerSettings {
            name: "far".to_owned(),
            transport: ServerTransport::Http {
                url: format!("http://{}/mcp", self.address).into(),
                headers: vec![("x-key".to_owned(), "k".into())],
            },
            startup_timeout: Duration::from_secs(20),
            callers: None,
        };
        McpServer::new(settings, Launcher::of_this_program(None), ExecutionLog::default())
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let verb = head.split(' ').next()?.to_owned();
    let request = Request { verb, head, body: Value::Null };
    let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { body: serde_json::from_slice(&body).unwrap_or_default(), ..request })
}

/// Responds like a legacy server without sessions, except to calls.
fn legacy(request: &Request, answer: &mut Answer) -> bool {
    match request.method() {
        "initialize" => answer.result(request.id(), initialized()),
        "server/discover" => answer.refuse("200 OK", request.id(), -32_601, "unknown"),
        "" => answer.whole("405 Method Not Allowed", "", "no"),
        method if method.starts_with("notifications/") => answer.whole("202 Accepted", "", ""),
        _ => return false,
    }
    true
}

fn initialized() -> Value {
    json!({ "protocolVersion": "2025-11-25", "serverInfo": { "name": "far", "version": "1" },
        "capabilities": { "tools": { "listChanged": true }, "resources": { "subscribe": true } } })
}

/// Responds like a modern server, except to calls and subscriptions.
fn modern(request: &Request, answer: &mut Answer) -> bool {
    match request.method() {
        "server/discover" => answer.result(
            request.id(),
            json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0,
                "cacheScope": "private", "capabilities": { "tools": {}, "resources": { "subscribe": true } } }),
        ),
        "" => answer.whole("405 Method Not Allowed", "", "no"),
        _ => return false,
    }
    true
}

fn contract(schema: &Value) -> ToolContract {
    let execution = json!({"mcpServerId": "far", "target": "tööl"});
    calls::contract(execution, json!({"inputSchema": schema}))
}

fn dispatch(contract: ToolContract, arguments: &str) -> Dispatch {
    Dispatch { idempotency_key: None, ..calls::dispatch(contract, arguments) }
}

async fn call_in(
    server: &McpServer,
    conversation: Conversation,
) -> Result<ToolOutput, ExecutionError> {
    let dispatch = dispatch(contract(&json!({"type": "object"})), "{}");
    calls::answered(server.execute(dispatch, conversation).await)
}

async fn call(server: &McpServer) -> Result<String, ExecutionError> {
    let (conversation, _cancel) = Conversation::detached();
    let output = call_in(server, conversation).await?;
    Ok(output.payload.content.unwrap_or_default()[0].as_text().unwrap_or_default().into_owned())
}

async fn ask(server: &McpServer, ask: Ask) -> Result<Value, UpstreamError> {
    let (conversation, _cancel) = Conversation::detached();
    server.request(ask, &Caller::local(), conversation).await
}

async fn a_server_that_answers_nonsense_is_asked_in_the_legacy_way() {
    type Nonsense = fn(&Value, &mut Answer);
    let all: [(&str, Nonsense); 11] = [
        ("plain text", |_, answer| answer.whole("200 OK", "content-type: text/plain\r\n", "hi")),
        ("plain json", |_, answer| answer.json("200 OK", &json!({ "ok": true }))),
        ("no object", |_, answer| answer.json("200 OK", &json!("hi"))),
        ("no discovery", |id, answer| answer.result(id, json!({ "tools": [] }))),
        ("404", |_, answer| answer.whole("404 Not Found", "content-type: text/html\r\n", "<p>")),
        ("405", |_, answer| answer.whole("405 Method Not Allowed", "", "")),
        ("400", |_, answer| answer.refuse("400 Bad Request", &Value::Null, -32_000, "session?")),
        ("500", |_, answer| answer.whole("500 Internal Server Error", "", "oops")),
        ("-32601", |id, answer| answer.refuse("404 Not Found", id, -32_601, "unknown")),
        ("a stream", |_, answer| {
            answer.stream();
            answer.write(b"data: nonsense\n\n");
            answer.end();
        }),
        ("nothing", |_, answer| answer.end()),
    ];
    for (name, nonsense) in all {
        let served = Served::start(move |request, answer| match request.method() {
            "server/discover" => nonsense(request.id(), answer),
            "tools/call" => answer.text(request.id(), "ok"),
            _ => assert!(legacy(request, answer)),
        });
        let server = served.server();
        assert_eq!(call(&server).await.unwrap(), "ok", "{name}");
        assert_eq!(served.seen("notifications/initialized").len(), 1, "{name}");
        let called = &served.seen("tools/call")[0];
        assert_eq!(called.header("mcp-protocol-version"), Some("2025-11-25"));
        assert_eq!((called.header("x-key"), called.header("mcp-method")), (Some("k"), None));
        server.close().await;
    }
}

async fn a_modern_server_that_refuses_is_not_asked_in_the_legacy_way() {
    let served = Served::start(|request, answer| {
        answer.refuse("400 Bad Request", request.id(), -32_021, "it wants sampling");
    });
    let server = served.server();
    let readiness = server.readiness(&contract(&json!({"type": "object"})), true).await;
    let Readiness::Unhealthy(reason) = readiness else { panic!("{readiness:?}") };
    assert!(reason.contains("-32021"), "{reason}");
    assert!(served.seen("initialize").is_empty());
    let error = call(&server).await.unwrap_err();
    assert_eq!(error.effect, Effect::NotStarted);
}

/// Starts a legacy server with sessions, and returns its set of known sessions.
fn sessions(unknown: fn(&Request, &mut Answer)) -> (Served, Arc<Mutex<HashSet<String>>>) {
    let known: Arc<Mutex<HashSet<String>>> = Arc::default();
    let (own, count) = (Arc::clone(&known), AtomicUsize::new(0));
    let served = Served::start(move |request, answer| {
        let session = request.header("mcp-session-id").unwrap_or_default().to_owned();
        match request.method() {
            "initialize" => {
                let session = format!("s{}", count.fetch_add(1, Ordering::SeqCst));
                own.lock().unwrap().insert(session.clone());
                let body = json!({ "jsonrpc": "2.0", "id": request.id(), "result": initialized() });
                let headers =
                    format!("content-type: application/json\r\nmcp-session-id: {session}\r\n");
                answer.whole("200 OK", &headers, body.to_string());
            }
            _ if !own.lock().unwrap().contains(&session) => unknown(request, answer),
            "tools/call" => answer.text(request.id(), &session),
            _ if request.verb == "DELETE" => answer.whole("200 OK", "", ""),
            _ => {
                assert!(legacy(request, answer));
            }
        }
    });
    (served, known)
}

async fn a_session_that_a_server_forgot_is_begun_anew() {
    let answers: [fn(&Request, &mut Answer); 3] = [
        |_, answer| answer.whole("404 Not Found", "", "gone"),
        |request, answer| {
            answer.refuse("404 Not Found", request.id(), -32_001, "Session not found");
        },
        |_, answer| {
            let message = "Bad Request: No valid session ID provided";
            answer.refuse("400 Bad Request", &Value::Null, -32_000, message);
        },
    ];
    for unknown in answers {
        let (served, known) = sessions(unknown);
        let server = served.server();
        assert_eq!(call(&server).await.unwrap(), "s0");
        known.lock().unwrap().clear();
        // As after a restart of the server: the call that detects it succeeds.
        assert_eq!(call(&server).await.unwrap(), "s1");
        assert_eq!(call(&server).await.unwrap(), "s1");
        assert_eq!(
            served.seen("tools/call").len(),
            4,
            "only the one that was not taken went twice"
        );
        server.close().await;
        assert_eq!(served.seen("DELETE")[0].header("mcp-session-id"), Some("s1"));
    }
}

async fn a_call_is_sent_on_a_new_session_once() {
    let served = Served::start(|request, answer| match request.method() {
        "initialize" => {
            let body = json!({ "jsonrpc": "2.0", "id": request.id(), "result": initialized() });
            let headers = "content-type: application/json\r\nmcp-session-id: s\r\n";
            answer.whole("200 OK", headers, body.to_string());
        }
        "tools/call" => answer.whole("404 Not Found", "", "gone"),
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let error = call(&server).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::NotStarted));
    assert_eq!(served.seen("tools/call").len(), 2);
    server.close().await;
}

async fn a_server_of_another_era_in_its_place_is_greeted_anew() {
    let is_modern = Arc::new(AtomicBool::new(true));
    let era = Arc::clone(&is_modern);
    let served = Served::start(move |request, answer| {
        let asked_modern = request.header("mcp-method").is_some();
        match (era.load(Ordering::SeqCst), asked_modern, request.method()) {
            (own, asked, "tools/call") if own == asked => answer.text(request.id(), "ok"),
            (true, true, _) => assert!(modern(request, answer)),
            (false, false, _) => assert!(legacy(request, answer)),
            (true, false, _) => answer.refuse("400 Bad Request", request.id(), -32_020, "headers"),
            (false, true, _) => answer.whole("400 Bad Request", "", "no handshake"),
        }
    });
    let server = served.server();
    for own in [true, false, true] {
        if is_modern.swap(own, Ordering::SeqCst) != own {
            // The change costs one call, which the server did not process.
            assert_eq!(call(&server).await.unwrap_err().effect, Effect::NotStarted);
        }
        assert_eq!(call(&server).await.unwrap(), "ok");
    }
    server.close().await;
}

async fn an_answer_that_cannot_be_read_fails_its_call_at_once() {
    // The body of a response, and whether it is sent in a stream.
    type Body = (Vec<u8>, bool);
    let bodies: Arc<Mutex<Vec<Body>>> = Arc::default();
    let next = Arc::clone(&bodies);
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" => {
            let Some((body, streamed)) = next.lock().unwrap().pop() else {
                return answer.text(request.id(), "ok");
            };
            let id = request.id().to_string();
            let body = String::from_utf8_lossy(&body).replace("@ID@", &id);
            // Written unchanged, one byte per character.
            let body: Vec<u8> = body.chars().map(|own| u8::try_from(own).unwrap()).collect();
            if streamed {
                answer.stream();
                answer.write(&[b"data: ", body.as_slice(), b"\n\n"].concat());
                answer.until_gone();
            } else {
                answer.whole("200 OK", "content-type: application/json\r\n", body);
            }
        }
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let deep = format!(r#"{{"id":@ID@,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    for line in [
        r#"{"id":@ID@,"result":{"content":[{"type":"text","text":"\ud800"}]}}"#,
        "{\"id\":@ID@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\u{ff}\"}]}}",
        r#"{"id":@ID@,"result":NaN}"#,
        r#"{"id":@ID@,"result":{"a":1,"a":2}}"#,
        r#"{"result":{"content":["#,
        "nonsense",
        r#"{"id":@ID@}"#,
        &deep,
    ] {
        for streamed in [false, true] {
            bodies.lock().unwrap().push((line.as_bytes().to_vec(), streamed));
            let error = call(&server).await.unwrap_err();
            assert_eq!(error.effect, Effect::Unknown, "{line}: {}", error.internal);
            assert_eq!(
                error.safe.as_deref(),
                Some("the tool's server gave an answer that cannot be read"),
                "{line}"
            );
        }
    }
    // A byte order mark, a batch, and a response without an id can be read.
    let result = r#"{"id":@ID@,"result":{"content":[{"type":"text","text":"t"}]}}"#;
    let own = result.replace("@ID@", "null");
    for line in [format!("\u{ef}\u{bb}\u{bf}{result}"), format!("[{result}]"), own] {
        bodies.lock().unwrap().push((line.into_bytes(), false));
        assert_eq!(call(&server).await.unwrap(), "t");
    }
    let empty = (b"{}".to_vec(), false);
    bodies.lock().unwrap().push(empty);
    assert_eq!(call(&server).await.unwrap_err().effect, Effect::Unknown);
    assert_eq!(call(&server).await.unwrap(), "ok");
    assert_eq!(served.seen("initialize").len(), 1);
}

async fn forty_slow_calls_run_at_once() {
    let all_there = Arc::new(Barrier::new(40));
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" => {
            // The server responds to no call before all of them have arrived.
            all_there.wait();
            answer.text(request.id(), "ok");
        }
        _ => assert!(legacy(request, answer)),
    });
    call_all(&served.server(), 40).await;
}

/// Makes `count` calls at once, all of which must succeed.
async fn call_all(server: &Arc<McpServer>, count: usize) {
    let calls: Vec<_> = (0..count)
        .map(|_| {
            let server = Arc::clone(server);
            tokio::spawn(async move { call(&server).await })
        })
        .collect();
    for one in calls {
        assert_eq!(soon("an answer", one).await.unwrap().unwrap(), "ok");
    }
}

async fn calls_beyond_the_bound_wait_for_a_permit() {
    const AT_ONCE: usize = 256;
    let running = Arc::new((Mutex::new((0usize, 0usize)), Condvar::new()));
    let own = Arc::clone(&running);
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" => {
            let (count, full) = &*own;
            let mut count_now = count.lock().unwrap();
            count_now.0 += 1;
            count_now.1 = count_now.1.max(count_now.0);
            full.notify_all();
            // The server responds to no call before every slot was in use.
            let mut count_now = full.wait_while(count_now, |now| now.1 < AT_ONCE).unwrap();
            count_now.0 -= 1;
            drop(count_now);
            answer.text(request.id(), "ok");
        }
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    call_all(&server, AT_ONCE + 20).await;
    assert_eq!(running.0.lock().unwrap().1, AT_ONCE);
}

async fn a_stream_that_breaks_leaves_the_effect_unknown() {
    let served = Served::start(|request, answer| match request.method() {
        "tools/call" => {
            answer.stream();
            answer.event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                "params": { "progressToken": request.body["params"]["_meta"]["progressToken"], "progress": 1 } }));
            answer.end();
        }
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let (conversation, counterpart) = Conversation::pair(false);
    let error = call_in(&server, conversation).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    assert_eq!(counterpart.progress.try_recv().unwrap().progress, 1.0);
    assert_eq!(served.seen("tools/call").len(), 1);
}

async fn a_stream_with_numbered_events_is_taken_up_again() {
    let posted: Arc<Mutex<Value>> = Arc::default();
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" => {
            *posted.lock().unwrap() = request.id().clone();
            answer.stream();
            answer.write(b"id: e7\nretry: 10\ndata:\n\n");
            answer.end();
        }
        "" if request.header("last-event-id") == Some("e7") => {
            let id = posted.lock().unwrap().clone();
            answer.stream();
            answer.event(&json!({ "jsonrpc": "2.0", "id": id, "result": words("late") }));
            answer.end();
        }
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    assert_eq!(call(&server).await.unwrap(), "late");
    assert_eq!(served.seen("tools/call").len(), 1, "the request itself is not sent again");
}

async fn a_stream_belongs_to_its_request() {
    let served = Served::start(|request, answer| match request.method() {
        "tools/call" => {
            let token = request.body["params"]["_meta"]["progressToken"].clone();
            answer.stream();
            for done in 0..60 {
                answer.event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                    "params": { "progressToken": token, "progress": done } }));
            }
            answer.event(&json!({ "jsonrpc": "2.0", "method": "notifications/message",
                "params": { "level": "error", "data": { "n": token } } }));
            answer.event(&json!({ "jsonrpc": "2.0", "id": 99_999, "result": words("other") }));
            answer.event(&json!({ "jsonrpc": "2.0", "id": "x", "method": "ping" }));
            answer.event(&json!({ "jsonrpc": "2.0", "id": request.id(), "result": words("own") }));
            answer.end();
        }
        // The reply to the server's `ping`.
        "" if request.body["id"] == "x" => answer.whole("202 Accepted", "", ""),
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let (conversation, counterpart) = Conversation::pair(false);
                let conversation = conversation.with_log_level(Some(LogLevel::Info));
                let output = call_in(&server, conversation).await.unwrap();
                assert_eq!(output.payload.content.unwrap()[0].as_text().unwrap(), "own");
                let mut heard = Vec::new();
                while let Ok(progress) = counterpart.progress.try_recv() {
                    heard.push(progress.progress);
                }
                assert_eq!(heard, (0..60).map(f64::from).collect::<Vec<_>>());
                let line = counterpart.log.try_recv().unwrap();
                assert!(counterpart.log.try_recv().is_err());
                line.data["n"].as_u64().unwrap()
            })
        })
        .collect();
    let mut tokens = HashSet::new();
    for one in calls {
        tokens.insert(one.await.unwrap());
    }
    assert_eq!(tokens.len(), 8);
}

async fn a_modern_call_has_its_headers() {
    let served = Served::start(|request, answer| match request.method() {
        "tools/call" => answer.text(request.id(), "ok"),
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"}, "n": {"type": "integer"}}});
    let (conversation, _cancel) = Conversation::detached();
    let dispatch = dispatch(contract(&schema), r#"{"region":"eu west","n":1}"#);
    let outcome = server.execute(dispatch, conversation).await;
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    let called = &served.seen("tools/call")[0];
    assert_eq!(called.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(called.header("mcp-method"), Some("tools/call"));
    assert_eq!(called.header("mcp-name"), Some("=?base64?dMO2w7Zs?="));
    assert_eq!(called.header("mcp-param-region"), Some("eu west"));
    assert_eq!(called.header("mcp-param-n"), None);
    assert_eq!(called.header("mcp-session-id"), None);
    server.close().await;
    assert!(served.seen("DELETE").is_empty());
}

async fn a_body_over_the_limit_costs_its_call_alone() {
    let big = Arc::new(AtomicUsize::new(1));
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" if big.swap(0, Ordering::SeqCst) == 1 => {
            answer.text(request.id(), &"x".repeat(17 << 20));
        }
        "tools/call" => answer.text(request.id(), "ok"),
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let error = call(&server).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
    assert!(error.safe.unwrap().contains("more than"), "{}", error.internal);
    assert_eq!(call(&server).await.unwrap(), "ok");
}

async fn what_a_legacy_server_says_by_itself_is_heard() {
    let served = Served::start(|request, answer| match request.method() {
        "" if request.verb == "GET" => {
            answer.stream();
            answer
                .event(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
            answer.event(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated",
                "params": { "uri": "r:1" } }));
            answer.until_gone();
        }
        "tools/call" => answer.text(request.id(), "ok"),
        _ => assert!(legacy(request, answer)),
    });
    let server = served.server();
    let (changes, notices) = (server.changes().unwrap(), server.notices());
    call(&server).await.unwrap();
    soon("a change", changes.recv()).await.unwrap();
    let updated = Notice::ResourceUpdated { uri: "r:1".to_owned(), caller: None };
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated);
    server.close().await;
}

async fn a_subscription_is_opened_anew_before_the_one_before_ends() {
    let (opened, openings) = mpsc::channel::<Value>();
    let (ended, endings) = mpsc::channel::<Value>();
    let (opened, ended) = (Mutex::new(opened), Mutex::new(ended));
    let served = Served::start(move |request, answer| match request.method() {
        "subscriptions/listen" => {
            let filter = request.body["params"]["notifications"].clone();
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": request.id() });
            answer.stream();
            answer.event(
                &json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": meta, "notifications": filter } }),
            );
            opened.lock().unwrap().send(filter.clone()).unwrap();
            if filter["resourceSubscriptions"] == json!(["r:1"]) {
                answer
                    .event(&json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated",
                    "params": { "_meta": meta, "uri": "r:1" } }));
            }
            answer.until_gone();
            let _ = ended.lock().unwrap().send(filter);
        }
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    let notices = server.notices();
    let updated = |uri: &str| Notice::ResourceUpdated { uri: uri.to_owned(), caller: None };
    ask(&server, Ask::Subscribe { uri: "r:1".to_owned() }).await.unwrap();
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated("r:1"));
    ask(&server, Ask::Subscribe { uri: "s:2".to_owned() }).await.unwrap();
    let filters: Vec<_> = (0..2).map(|_| next("a subscription", &openings)).collect();
    assert_eq!(filters[1]["resourceSubscriptions"], json!(["r:1", "s:2"]));
    assert_eq!(
        next("the end of a subscription", &endings),
        filters[0],
        "the second one was open by then"
    );
    server.close().await;
    assert_eq!(next("the end of a subscription", &endings), filters[1]);
}

async fn subscriptions_at_once_are_one_request() {
    let served = Served::start(|request, answer| match request.method() {
        "subscriptions/listen" => {
            answer.stream();
            answer.event(
                &json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": { "io.modelcontextprotocol/subscriptionId": request.id() },
                    "notifications": request.body["params"]["notifications"] } }),
            );
            answer.until_gone();
        }
        "tools/call" => answer.text(request.id(), "ok"),
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    call(&server).await.unwrap();
    let mut asked = tokio::task::JoinSet::new();
    // Each resource is requested twice; the second request waits with the first.
    for number in 0..40 {
        let (server, uri) = (Arc::clone(&server), format!("r:{}", number / 2));
        asked.spawn(async move { ask(&server, Ask::Subscribe { uri }).await });
    }
    for answer in asked.join_all().await {
        answer.unwrap();
    }
    let listens = served.seen("subscriptions/listen");
    assert_eq!(listens.len(), 1);
    let filter = &listens[0].body["params"]["notifications"];
    assert_eq!(filter["resourceSubscriptions"].as_array().unwrap().len(), 20);
    server.close().await;
}

/// A server of one of the eras, without tools, that notifies of changes. It accepts a subscription
/// if `ready` returns `true`, and otherwise closes the connection.
fn server_that_tells(
    era: &'static str,
    ready: impl Fn() -> bool + Send + Sync + 'static,
) -> Served {
    Served::start(move |request, answer| match request.method() {
        method if (method == "subscriptions/listen" || request.verb == "GET") && !ready() => {
            answer.end();
        }
        "server/discover" if era == "modern" => answer.result(
            request.id(),
            json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0,
                "cacheScope": "private", "capabilities": { "tools": { "listChanged": true } } }),
        ),
        "subscriptions/listen" => {
            answer.stream();
            answer.event(
                &json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": { "io.modelcontextprotocol/subscriptionId": request.id() },
                    "notifications": request.body["params"]["notifications"] } }),
            );
            answer.until_gone();
        }
        "" if request.verb == "GET" => {
            answer.stream();
            answer.until_gone();
        }
        "tools/list" => {
            answer.result(request.id(), json!({ "resultType": "complete", "tools": [] }))
        }
        "resources/list" => answer.result(request.id(), json!({ "resources": [] })),
        "resources/templates/list" => {
            answer.result(request.id(), json!({ "resourceTemplates": [] }));
        }
        _ => assert!(legacy(request, answer)),
    })
}

async fn a_change_between_a_list_and_the_subscription_is_not_lost() {
    for era in ["modern", "legacy"] {
        // The server accepts the subscription only after its list was read.
        let (listed, ready) = mpsc::channel::<()>();
        let ready = Mutex::new(ready);
        let served =
            server_that_tells(era, move || ready.lock().unwrap().recv_timeout(CEILING).is_ok());
        let server = served.server();
        let changes = server.changes().unwrap();
        server.list().await.unwrap();
        assert_eq!(served.seen("tools/list").len(), 1, "{era}");
        assert!(changes.try_recv().is_err(), "{era}: nothing is known yet");
        listed.send(()).unwrap();
        soon("a change", changes.recv()).await.unwrap();
        server.close().await;
    }
}

async fn a_connection_that_breaks_before_the_answer_is_no_answer() {
    for era in ["modern", "legacy"] {
        let listed = Arc::new(AtomicBool::new(false));
        let ready = Arc::clone(&listed);
        let served = server_that_tells(era, move || ready.load(Ordering::SeqCst));
        let server = served.server();
        let changes = server.changes().unwrap();
        server.list().await.unwrap();
        // Later changes are not notified until the subscription is requested again.
        listed.store(true, Ordering::SeqCst);
        soon(&format!("{era}: a change"), changes.recv()).await.unwrap();
        server.close().await;
    }
}

async fn lists_are_read_once_a_server_tells_of_changes() {
    for (era, asked) in [("modern", "subscriptions/listen"), ("legacy", "GET")] {
        let served = server_that_tells(era, || true);
        let server = served.server();
        let changes = server.changes().unwrap();
        server.list().await.unwrap();
        let is = |one: &Request, what: &str| one.method() == what || one.verb == what;
        let seen = served.seen.lock().unwrap().clone();
        let at = |what: &str| seen.iter().position(|one| is(one, what));
        // On a loaded machine, the lists may be read too early; then they are read again.
        assert!(
            at(asked) < at("tools/list") || soon("a change", changes.recv()).await.is_ok(),
            "{era}: {:?}",
            (at(asked), at("tools/list"))
        );
        server.close().await;
    }
}

async fn a_subscription_whose_stream_breaks_is_asked_again() {
    let times = AtomicUsize::new(0);
    let served = Served::start(move |request, answer| match request.method() {
        "subscriptions/listen" => {
            answer.stream();
            answer.event(
                &json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": { "io.modelcontextprotocol/subscriptionId": request.id() },
                    "notifications": request.body["params"]["notifications"] } }),
            );
            if times.fetch_add(1, Ordering::SeqCst) == 0 {
                answer.end();
            }
            answer.until_gone();
        }
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    let notices = server.notices();
    ask(&server, Ask::Subscribe { uri: "r:1".to_owned() }).await.unwrap();
    let updated = Notice::ResourceUpdated { uri: "r:1".to_owned(), caller: None };
    assert_eq!(
        soon("a notice", notices.recv()).await.unwrap(),
        updated,
        "it may have changed in between"
    );
    assert_eq!(served.seen("subscriptions/listen").len(), 2);
    server.close().await;
}

async fn a_resource_that_is_not_accepted_is_refused() {
    let served = Served::start(|request, answer| match request.method() {
        "subscriptions/listen" => {
            answer.stream();
            answer.event(
                &json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": { "io.modelcontextprotocol/subscriptionId": request.id() },
                    "notifications": {} } }),
            );
            answer.until_gone();
        }
        "resources/read" => answer.refuse("200 OK", request.id(), -32_002, "no such resource"),
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    let refused = ask(&server, Ask::Subscribe { uri: "r:1".to_owned() }).await.unwrap_err();
    assert!(matches!(refused, UpstreamError::Refused { code: -32_602, .. }), "{refused:?}");
    let refused = ask(&server, Ask::ReadResource { uri: "r:1".to_owned() }).await.unwrap_err();
    let expected = UpstreamError::Refused {
        code: -32_002,
        message: "no such resource".to_owned(),
        data: None,
    };
    assert_eq!(refused, expected);
    assert_eq!(served.seen("resources/read")[0].header("mcp-name"), Some("r:1"));
    server.close().await;
}

async fn the_end_of_a_stream_says_that_a_modern_call_is_cancelled() {
    let (gone, leaving) = mpsc::channel();
    let (came, arriving) = mpsc::channel();
    let (gone, came) = (Mutex::new(gone), Mutex::new(came));
    let served = Served::start(move |request, answer| match request.method() {
        "tools/call" => {
            answer.stream();
            came.lock().unwrap().send(()).unwrap();
            answer.until_gone();
            gone.lock().unwrap().send(()).unwrap();
        }
        _ => assert!(modern(request, answer)),
    });
    let server = served.server();
    let (conversation, cancel) = Conversation::detached();
    let own = Arc::clone(&server);
    let calling = tokio::spawn(async move { call_in(&own, conversation).await });
    tokio::task::spawn_blocking(move || next("the call", &arriving)).await.unwrap();
    cancel.cancel();
    let error = soon("the end of the call", calling).await.unwrap().unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::Cancelled, Effect::Unknown));
    tokio::task::spawn_blocking(move || next("the end of the call", &leaving)).await.unwrap();
    assert!(served.seen("notifications/cancelled").is_empty());
}

async fn what_was_not_taken_is_not_started() {
    for (status, effect) in [
        ("400 Bad Request", Effect::NotStarted),
        ("401 Unauthorized", Effect::NotStarted),
        ("429 Too Many Requests", Effect::NotStarted),
        ("500 Internal Server Error", Effect::Unknown),
        ("502 Bad Gateway", Effect::Unknown),
    ] {
        let served = Served::start(move |request, answer| match request.method() {
            "tools/call" => answer.whole(status, "content-type: text/plain\r\n", "no"),
            _ => assert!(legacy(request, answer)),
        });
        let error = call(&served.server()).await.unwrap_err();
        assert_eq!(error.effect, effect, "{status}: {}", error.internal);
        assert!(error.internal.contains(status), "{}", error.internal);
    }
    let closed = Served {
        address: TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
        seen: Arc::default(),
    };
    let error = call(&closed.server()).await.unwrap_err();
    assert_eq!(error.effect, Effect::NotStarted);
}

async fn a_server_speaks_for_itself_alone_and_asks_for_no_input() {
    let is_asking = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&is_asking);
    let served = Served::start(move |request, answer| match request.method() {
        _ if modern(request, answer) => (),
        method => {
            let kind = if asks.load(Ordering::SeqCst) { "input_required" } else { "complete" };
            let meta = json!({ "own": 1, "toolbooth/errorCode": "denied" });
            let block = json!({ "type": "text", "text": "t", "uri": "r:1", "_meta": meta });
            let mut result = json!({ "resultType": kind, "_meta": meta, "requestState": "s",
                "inputRequests": { "a": {} }, "ttlMs": 5 });
            match method {
                "tools/call" => result["content"] = json!([block]),
                "prompts/get" => {
                    result["messages"] = json!([{ "role": "user", "content": block }]);
                }
                "resources/read" => result["contents"] = json!([block]),
                _ => result["completion"] = json!({ "values": [] }),
            }
            answer.result(request.id(), result);
        }
    });
    let server = served.server();
    let own = json!({ "own": 1 });
    let asked = || {
        [
            Ask::ReadResource { uri: "r:1".to_owned() },
            Ask::GetPrompt { name: "p".to_owned(), arguments: None },
            Ask::Complete {
                reference: CompletionReference::Prompt("p".to_owned()),
                argument: json!({ "name": "n", "value": "v" }),
                context: None,
            },
        ]
    };
    let (conversation, _cancel) = Conversation::detached();
    let output = call_in(&server, conversation).await.unwrap();
    assert_eq!(output.payload.meta.unwrap(), own);
    assert_eq!(output.payload.content.unwrap()[0].tree()["_meta"], own);
    for one in asked() {
        let answer = ask(&server, one).await.unwrap();
        assert_eq!((&answer["_meta"], &answer["ttlMs"]), (&own, &json!(5)), "{answer}");
        for name in ["resultType", "inputRequests", "requestState"] {
            assert_eq!(answer.get(name), None, "{answer}");
        }
        assert!(!answer.to_string().contains("toolbooth/"), "{answer}");
    }

    is_asking.store(true, Ordering::SeqCst);
    let error = call(&server).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    let safe = "the tool asks for input, which this gateway does not pass on";
    assert_eq!(error.safe.as_deref(), Some(safe));
    for one in asked() {
        let error = ask(&server, one).await.unwrap_err();
        let told = "the server asks for input, which is not passed on".to_owned();
        assert_eq!(error, UpstreamError::Unreadable(told));
    }
    server.close().await;
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    trials!["mcp_http";
        a_server_that_answers_nonsense_is_asked_in_the_legacy_way,
        a_modern_server_that_refuses_is_not_asked_in_the_legacy_way,
        a_session_that_a_server_forgot_is_begun_anew,
        a_call_is_sent_on_a_new_session_once,
        a_server_of_another_era_in_its_place_is_greeted_anew,
        an_answer_that_cannot_be_read_fails_its_call_at_once,
        forty_slow_calls_run_at_once,
        calls_beyond_the_bound_wait_for_a_permit,
        a_stream_that_breaks_leaves_the_effect_unknown,
        a_stream_with_numbered_events_is_taken_up_again,
        a_stream_belongs_to_its_request,
        a_modern_call_has_its_headers,
        a_body_over_the_limit_costs_its_call_alone,
        what_a_legacy_server_says_by_itself_is_heard,
        a_subscription_is_opened_anew_before_the_one_before_ends,
        subscriptions_at_once_are_one_request,
        a_change_between_a_list_and_the_subscription_is_not_lost,
        a_connection_that_breaks_before_the_answer_is_no_answer,
        lists_are_read_once_a_server_tells_of_changes,
        a_subscription_whose_stream_breaks_is_asked_again,
        a_resource_that_is_not_accepted_is_refused,
        the_end_of_a_stream_says_that_a_modern_call_is_cancelled,
        what_was_not_taken_is_not_started,
        a_server_speaks_for_itself_alone_and_asks_for_no_input,
    ]
}
