//! Tests upstream servers that are misbehaving child processes, and which calls fail because of
//! them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_adapters::CommandLine;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::{
    CallerSettings, Child, Credentials, McpServer, ServerSettings, ServerTransport,
};
use toolbooth_adapters::secrets::Setting;
use toolbooth_contracts::conversation::{CONVERSATION_CAPACITY, Counterpart, LogLevel};
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::port::{
    Ask, CompletionReference, ExecutionError, Notice, ToolSource, Upstream,
};
use toolbooth_contracts::{
    Caller, Conversation, Effect, ErrorCode, ExecutionLog, Executor, ToolOutput,
};

use crate::{calls, soon};

const SCRIPT: &str = include_str!("support/scripted_server.py");

/// A scripted server, and the log of the messages that it received.
struct Scripted {
    server: Arc<McpServer>,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Scripted {
    fn new(era: &str, pages: &str) -> Self {
        Self::with(era, pages, None)
    }

    fn with(era: &str, pages: &str, callers: Option<CallerSettings>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let path = log.display().to_string();
        let argv = ["/usr/bin/python3", "-c", SCRIPT, &path, era, pages];
        let argv = argv.iter().map(|word| (*word).into()).collect();
        let line = CommandLine { argv, cwd: Some("/".into()), ..CommandLine::default() };
        let settings = ServerSettings {
            name: "scripted".to_owned(),
            transport: ServerTransport::Stdio(Box::new(Child { line, profile: None })),
            startup_timeout: Duration::from_secs(20),
            callers,
        };
        let launcher = Launcher::of_this_program(None);
        Self {
            server: McpServer::new(settings, launcher, ExecutionLog::default()),
            log,
            _folder: folder,
        }
    }

    /// Returns the messages that the server received.
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn sent(&self, method: &str) -> Vec<Value> {
        self.log().into_iter().filter(|message| message["method"] == method).collect()
    }

    async fn call_with(
        &self,
        name: &str,
        arguments: &str,
        conversation: Conversation,
    ) -> Result<ToolOutput, ExecutionError> {
        let execution = json!({"mcpServerId": "scripted", "target": name});
        let policy = json!({"timeoutMs": 60_000, "trustLevel": "untrusted"});
        let contract = calls::contract(execution, json!({"policy": policy}));
        let dispatch = calls::dispatch(contract, arguments);
        calls::answered(self.server.execute(dispatch, conversation).await)
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<ToolOutput, ExecutionError> {
        let (conversation, _cancel) = Conversation::detached();
        self.call_with(name, &arguments.to_string(), conversation).await
    }

    async fn ask(&self, ask: Ask) -> Result<Value, UpstreamError> {
        let (conversation, _cancel) = Conversation::detached();
        self.server.request(ask, &Caller::local(), conversation).await
    }

    /// Starts a call that waits at the server until another one releases it.
    async fn held(
        self: &Arc<Self>,
    ) -> (tokio::task::JoinHandle<Result<ToolOutput, ExecutionError>>, Counterpart) {
        let (conversation, counterpart) = Conversation::pair(false);
        let conversation = conversation.with_log_level(Some(LogLevel::Error));
        let own = Arc::clone(self);
        let task = tokio::spawn(async move { own.call_with("hold", "{}", conversation).await });
        // The server logs a line when it holds the call, which is the only one in flight.
        let line = soon("the call", counterpart.log.recv()).await.unwrap();
        assert_eq!(line.data, "held");
        (task, counterpart)
    }
}

fn words(output: &ToolOutput) -> String {
    output.payload.content.as_ref().unwrap()[0].as_text().unwrap().into_owned()
}

async fn progress_arrives_in_order_with_its_last() {
    let scripted = Arc::new(Scripted::new("legacy", ""));
    scripted.call("echo", json!({})).await.unwrap();
    // A reader that keeps pace receives every notification.
    let (conversation, counterpart) = Conversation::pair(false);
    let hearing = tokio::spawn(async move {
        let mut heard = Vec::new();
        while let Ok(progress) = counterpart.progress.recv().await {
            heard.push(progress.progress);
        }
        heard
    });
    scripted.call_with("progress", r#"{"count":50}"#, conversation).await.unwrap();
    let heard = hearing.await.unwrap();
    assert_eq!(heard, (0..50).map(f64::from).collect::<Vec<_>>());
    // Without a reader meanwhile, the newest notifications remain.
    let (conversation, counterpart) = Conversation::pair(false);
    scripted.call_with("progress", r#"{"count":500}"#, conversation).await.unwrap();
    let mut heard = Vec::new();
    while let Ok(progress) = counterpart.progress.try_recv() {
        heard.push(progress.progress);
    }
    let first = 500 - u32::try_from(CONVERSATION_CAPACITY).unwrap();
    assert_eq!(heard, (first..500).map(f64::from).collect::<Vec<_>>());
    // After its completion a call has no progress.
    let (conversation, counterpart) = Conversation::pair(false);
    scripted.call_with("late", "{}", conversation).await.unwrap();
    scripted.call("echo", json!({})).await.unwrap();
    assert!(counterpart.progress.try_recv().is_err());
    scripted.server.close().await;
}

async fn an_answer_that_cannot_be_read_fails_its_call_at_once() {
    let scripted = Arc::new(Scripted::new("legacy", ""));
    let deep = format!(r#"{{"id":@ID@,"result":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    let (neighbour, _own) = scripted.held().await;
    for line in [
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"\ud800"}]}}"#,
        "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\u{ff}\u{fe}\"}]}}",
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":NaN}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{},"id":@ID@}"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":["#,
        r#"{"jsonrpc":"2.0","id":@ID@}"#,
        &deep,
    ] {
        let error = scripted.call("raw", json!({ "line": line })).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::AdapterFailed, "{line}: {}", error.internal);
        assert_eq!(error.effect, Effect::Unknown, "{line}");
        assert_eq!(
            error.safe.as_deref(),
            Some("the tool's server gave an answer that cannot be read"),
            "{line}"
        );
    }
    // A byte order mark and a batch can be read.
    let result = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"t"}]}}"#;
    for line in [format!("\u{ef}\u{bb}\u{bf}{result}"), format!("[{result}]")] {
        let output = scripted.call("raw", json!({ "line": line })).await.unwrap();
        assert_eq!(words(&output), "t");
    }
    // The connection survived all of these responses.
    scripted.call("release", json!({})).await.unwrap();
    assert_eq!(words(&neighbour.await.unwrap().unwrap()), "released");
    // A response without an id belongs to the only request, and text that is not a message is
    // ignored.
    let error = scripted.call("raw", json!({ "line": "{\"result\":NaN}" })).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
    assert_eq!(words(&scripted.call("chatter", json!({})).await.unwrap()), "done");
    assert_eq!(scripted.sent("initialize").len(), 1);
    scripted.server.close().await;
}

async fn a_line_over_the_limit_costs_its_call_alone() {
    let scripted = Arc::new(Scripted::new("legacy", ""));
    let (neighbour, _own) = scripted.held().await;
    let error = scripted.call("big", json!({ "bytes": 17 << 20 })).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    assert!(error.safe.unwrap().contains("more than"), "{}", error.internal);
    scripted.call("release", json!({})).await.unwrap();
    assert_eq!(words(&neighbour.await.unwrap().unwrap()), "released");
    let output = scripted.call("big", json!({ "bytes": 15 << 20 })).await.unwrap();
    assert_eq!(words(&output).len(), 15 << 20);
    assert_eq!(scripted.sent("initialize").len(), 1);
    scripted.server.close().await;
}

async fn answers_out_of_order_and_twice_find_their_calls() {
    let scripted = Arc::new(Scripted::new("legacy", ""));
    let (first, _own) = scripted.held().await;
    assert_eq!(words(&scripted.call("twice", json!({})).await.unwrap()), "first");
    let echo = scripted.call("echo", json!({})).await.unwrap();
    assert!(words(&echo).contains("\"echo\""));
    scripted.call("release", json!({})).await.unwrap();
    assert_eq!(words(&first.await.unwrap().unwrap()), "released");
    let odd = scripted.call("unknown-block", json!({})).await.unwrap();
    assert_eq!(odd.payload.content.unwrap()[0].tree(), json!({"type": "hologram", "depth": 3}));
    scripted.server.close().await;
}

async fn a_server_that_dies_costs_what_was_in_flight() {
    let scripted = Arc::new(Scripted::new("legacy", ""));
    let error = scripted.call("die", json!({})).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    assert!(error.internal.contains("exit code 3"), "{}", error.internal);
    let safe = "the tool's server went away in mid-call; whether the call took effect is not known";
    assert_eq!(error.safe.as_deref(), Some(safe));
    scripted.call("echo", json!({})).await.unwrap();
    // The era of the server is known by now.
    assert_eq!((scripted.sent("server/discover").len(), scripted.sent("initialize").len()), (1, 2));
    // A server that closes its output is lost too, although it lives on.
    let error = soon("its end", scripted.call("mute", json!({}))).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    scripted.call("echo", json!({})).await.unwrap();
    // After every crash, the next call succeeds.
    for _ in 0..2 {
        assert_eq!(scripted.call("die", json!({})).await.unwrap_err().effect, Effect::Unknown);
        scripted.call("echo", json!({})).await.unwrap();
    }
    scripted.server.close().await;
}

async fn servers_that_do_not_know_the_modern_era_are_greeted() {
    for (era, asked) in [("legacy", 1), ("fragile", 1), ("silent", 1), ("modern", 0)] {
        let scripted = Scripted::new(era, "");
        scripted.call("echo", json!({})).await.unwrap();
        assert_eq!(scripted.sent("server/discover").len(), 1, "{era}");
        assert_eq!(scripted.sent("initialize").len(), asked, "{era}");
        assert_eq!(scripted.sent("notifications/initialized").len(), asked, "{era}");
        scripted.server.close().await;
    }
    // A server that started slowly has responded to the modern handshake when it refuses the legacy
    // one.
    let scripted = Scripted::new("slow", "");
    let line = words(&scripted.call("echo", json!({})).await.unwrap());
    assert!(line.contains("2026-07-28"), "{line}");
    assert_eq!(scripted.sent("initialize").len(), 1);
    scripted.server.close().await;
}

async fn a_caller_that_gives_up_ends_no_start_that_others_wait_for() {
    let scripted = Arc::new(Scripted::new("silent", ""));
    let (conversation, counterpart) = Conversation::pair(false);
    let own = Arc::clone(&scripted);
    let first = tokio::spawn(async move { own.call_with("echo", "{}", conversation).await });
    let started = async {
        while scripted.sent("server/discover").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the start", started).await;
    counterpart.cancel.cancel();
    let error = soon("the end of the first call", first).await.unwrap().unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::Cancelled, Effect::NotStarted));
    scripted.call("echo", json!({})).await.unwrap();
    assert_eq!(scripted.sent("server/discover").len(), 1, "it was started once");
    scripted.server.close().await;
}

async fn a_refusal_reaches_the_agent() {
    let scripted = Scripted::new("modern", "");
    for (code, effect) in [
        (-32_021, Effect::Unknown),
        (-32_000, Effect::Unknown),
        (-32_602, Effect::Unknown),
        (-32_601, Effect::Unknown),
    ] {
        let refusal = json!({ "code": code, "message": "no\u{1b}[1m space\n", "data": {} });
        let error = scripted.call("refuse", refusal).await.unwrap_err();
        let told = format!("the tool's server refused the call ({code}): no space");
        assert_eq!((error.safe.as_deref(), error.effect), (Some(told.as_str()), effect));
    }
    scripted.server.close().await;
}

async fn a_call_goes_out_as_it_is() {
    for (era, modern) in [("legacy", false), ("modern", true)] {
        let scripted = Scripted::new(era, "");
        let (conversation, _counterpart) = Conversation::pair(false);
        let conversation = conversation.with_log_level(Some(LogLevel::Info));
        let arguments = "{\"b\": 1.50,\n\"a\": 18446744073709551616}";
        let output = scripted.call_with("echo", arguments, conversation).await.unwrap();
        let line = words(&output);
        assert!(line.contains(r#""arguments":{"b": 1.50, "a": 18446744073709551616}"#), "{line}");
        let meta = serde_json::from_str::<Value>(&line).unwrap()["params"]["_meta"].clone();
        assert_eq!(meta["toolbooth/deadlineMs"], 60_000);
        assert_eq!(meta["toolbooth/idempotencyKey"], "key-1");
        assert!(meta["progressToken"].is_u64());
        let of_protocol = |name: &str| meta[format!("io.modelcontextprotocol/{name}")].clone();
        assert_eq!(of_protocol("protocolVersion") == "2026-07-28", modern, "{meta}");
        assert_eq!(of_protocol("logLevel") == "info", modern, "{meta}");
        let levels = scripted.sent("logging/setLevel");
        assert_eq!(levels.len(), usize::from(!modern), "{levels:?}");
        scripted.server.close().await;
    }
}

async fn a_call_that_is_cancelled_is_told() {
    let scripted = Arc::new(Scripted::new("modern", ""));
    let (held, counterpart) = scripted.held().await;
    counterpart.cancel.cancel();
    let error = held.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::Cancelled, Effect::Unknown));
    scripted.call("echo", json!({})).await.unwrap();
    let (calls, cancels) = (scripted.sent("tools/call"), scripted.sent("notifications/cancelled"));
    assert_eq!(cancels[0]["params"]["requestId"], calls[0]["id"]);
    scripted.server.close().await;
}

async fn listings_are_whole_and_bounded() {
    let scripted = Scripted::new("legacy", "empty");
    let listing = scripted.server.list().await.unwrap();
    let names: Vec<_> = listing.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "an empty text is a cursor");
    let tool = &listing.tools[0];
    assert_eq!(tool.extra.keys().collect::<Vec<_>>(), ["icons", "_meta", "execution"]);
    assert_eq!(tool.input_schema["definitions"]["n"]["type"], "integer");
    assert_eq!(listing.prompts[0].document["_meta"], json!({"k": 1}));
    assert_eq!((listing.resources[0].key.as_str(), listing.templates.len()), ("r:1", 0));
    assert!(listing.offers.prompts && listing.offers.subscribe && listing.offers.logging);
    assert_eq!(listing.problems.len(), 1, "templates are not listed: {:?}", listing.problems);
    scripted.server.close().await;
    let scripted = Scripted::new("legacy", "loop");
    let error = scripted.server.list().await.unwrap_err();
    assert!(error.0.contains("`again`") && error.0.contains("repeats its cursor"), "{error}");
    scripted.server.close().await;
}

async fn a_flood_of_changes_is_bounded() {
    let scripted = Scripted::new("legacy", "");
    let changes = scripted.server.changes().unwrap();
    let counting = tokio::spawn(async move {
        let mut told = 0;
        while changes.recv().await.is_ok() {
            told += 1;
        }
        told
    });
    scripted.call("flood", json!({ "count": 20_000 })).await.unwrap();
    scripted.server.close().await;
    drop(scripted);
    let told = counting.await.unwrap();
    assert!((1..20).contains(&told), "{told}");
}

/// A caller keeps its subscriptions while its credentials change, as long as it has some.
async fn a_caller_of_its_own_hears_its_own_notices() {
    for (era, asked) in [("legacy", "resources/subscribe"), ("modern", "subscriptions/listen")] {
        hears_its_own_notices(era, asked).await;
    }
}

async fn hears_its_own_notices(era: &str, asked: &str) {
    let own = Arc::new(Mutex::new(Some("first")));
    let given = Arc::clone(&own);
    let credentials: Credentials = Arc::new(move |_| {
        let token = Setting::Literal((*given.lock().unwrap())?.to_owned());
        Some(vec![("TOKEN".to_owned(), token)])
    });
    let callers = CallerSettings { server: "scripted".to_owned(), credentials: Some(credentials) };
    let scripted = Scripted::with(era, "", Some(callers));
    let notices = scripted.server.notices();
    scripted.ask(Ask::Subscribe { uri: "r:1".to_owned() }).await.unwrap();
    scripted.call("touch", json!({ "uri": "r:1" })).await.unwrap();
    let caller = Some(Caller::local().name().to_owned());
    let updated = Notice::ResourceUpdated { uri: "r:1".to_owned(), caller };
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated, "{era}");
    let before = scripted.sent(asked).len();
    *own.lock().unwrap() = Some("second");
    scripted.call("echo", json!({})).await.unwrap();
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated, "{era}: it is new there");
    assert_eq!(scripted.sent(asked).len(), before + 1, "{era}");
    *own.lock().unwrap() = None;
    let refused = scripted.call("echo", json!({})).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotConfigured);
    // Its subscription rests until it has credentials again.
    *own.lock().unwrap() = Some("third");
    scripted.call("echo", json!({})).await.unwrap();
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated, "{era}: it is new there");
    assert_eq!(scripted.sent(asked).len(), before + 2, "{era}");
    *own.lock().unwrap() = None;
    let refused = scripted.ask(Ask::Unsubscribe { uri: "r:1".to_owned() }).await.unwrap_err();
    assert!(matches!(refused, UpstreamError::NotConfigured(_)), "{refused:?}");
    *own.lock().unwrap() = Some("fourth");
    scripted.call("echo", json!({})).await.unwrap();
    scripted.server.close().await;
    assert!(soon("no notice", async { notices.recv().await.is_err() }).await, "{era}");
}

async fn what_is_no_call_is_asked() {
    let scripted = Scripted::new("legacy", "");
    let prompt = |arguments| Ask::GetPrompt { name: "p".to_owned(), arguments };
    let answer = scripted.ask(prompt(None)).await.unwrap();
    assert_eq!(answer["echo"]["name"], "p");
    assert!(answer["echo"].get("arguments").is_none());
    let answer = scripted.ask(prompt(Some(serde_json::Map::new()))).await.unwrap();
    assert_eq!(answer["echo"]["arguments"], json!({}));
    let complete = Ask::Complete {
        reference: CompletionReference::Prompt("p".to_owned()),
        argument: json!({"name": "n", "value": "v"}),
        context: None,
    };
    let answer = scripted.ask(complete).await.unwrap();
    assert_eq!(answer["echo"]["ref"], json!({"type": "ref/prompt", "name": "p"}));
    scripted.server.close().await;
}

/// Subscribes, receives a notice, loses the connection, and receives a notice of a possible change.
async fn subscriptions_outlive_a_connection() {
    for (era, asked) in [("legacy", "resources/subscribe"), ("modern", "subscriptions/listen")] {
        let scripted = Scripted::new(era, "");
        let notices = scripted.server.notices();
        let uri = || "r:1".to_owned();
        scripted.ask(Ask::Subscribe { uri: uri() }).await.unwrap();
        scripted.ask(Ask::Subscribe { uri: uri() }).await.unwrap();
        let updated = Notice::ResourceUpdated { uri: uri(), caller: None };
        scripted.call("touch", json!({ "uri": "r:1" })).await.unwrap();
        assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated, "{era}");
        let before = scripted.sent(asked).len();
        scripted.call("die", json!({})).await.unwrap_err();
        // Without any call, the link itself reconnects.
        assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated, "{era}");
        let sent = scripted.sent(asked);
        assert_eq!(sent.len(), before + 1, "{era}: {sent:?}");
        if era == "modern" {
            let filter = &sent.last().unwrap()["params"]["notifications"];
            assert_eq!(filter["resourceSubscriptions"], json!(["r:1"]));
            assert_eq!(filter["toolsListChanged"], true);
        }
        scripted.ask(Ask::Unsubscribe { uri: uri() }).await.unwrap();
        scripted.call("echo", json!({})).await.unwrap();
        if era == "legacy" {
            assert_eq!(scripted.sent("resources/unsubscribe").len(), 1);
        }
        scripted.server.close().await;
    }
}

/// A server that does not accept a subscription after its restart is asked again.
async fn a_subscription_that_is_refused_after_a_restart_is_asked_again() {
    let scripted = Scripted::new("legacy", "refuses");
    let notices = scripted.server.notices();
    let uri = || "r:1".to_owned();
    scripted.ask(Ask::Subscribe { uri: uri() }).await.unwrap();
    scripted.call("die", json!({})).await.unwrap_err();
    let updated = Notice::ResourceUpdated { uri: uri(), caller: None };
    assert_eq!(soon("a notice", notices.recv()).await.unwrap(), updated);
    assert_eq!(scripted.sent("resources/subscribe").len(), 3, "accepted, refused, accepted");
    scripted.server.close().await;
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    trials!["mcp_stdio";
        progress_arrives_in_order_with_its_last,
        an_answer_that_cannot_be_read_fails_its_call_at_once,
        a_line_over_the_limit_costs_its_call_alone,
        answers_out_of_order_and_twice_find_their_calls,
        a_server_that_dies_costs_what_was_in_flight,
        servers_that_do_not_know_the_modern_era_are_greeted,
        a_caller_that_gives_up_ends_no_start_that_others_wait_for,
        a_refusal_reaches_the_agent,
        a_call_goes_out_as_it_is,
        a_call_that_is_cancelled_is_told,
        listings_are_whole_and_bounded,
        a_flood_of_changes_is_bounded,
        a_caller_of_its_own_hears_its_own_notices,
        what_is_no_call_is_asked,
        subscriptions_outlive_a_connection,
        a_subscription_that_is_refused_after_a_restart_is_asked_again,
    ]
}
