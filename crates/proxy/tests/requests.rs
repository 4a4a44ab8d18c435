//! Tests prompts, resources, completion and subscriptions of a scripted server, through all stages.
//!
//! Path: 2, 3, 5, 7, 8, 9. Doc: call-path.md#requests
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolbooth_audit::reads::{EventFilter, LogFilter};
use toolbooth_audit::{LedgerReads, verify};
use toolbooth_contracts::agent_log::{AgentLog, LogLevel};
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::conversation::Progress;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::SourceError;
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::port::{
    Ask, CompletionReference, DiscoveredItem, DiscoveredTool, ItemKind, Listing, Notice, Offers,
    ToolSource, Upstream,
};
use toolbooth_contracts::{
    CallContext, CallRequest, Caller, ContentBlock, Conversation, Dispatch, ErrorCode, Executor,
    Guard, Identity, Outcome, Payload, ToolCall, ToolOutput, ToolPattern,
};
use toolbooth_policy::{
    Authorizer, CallerRights, CallerSets, FeatureFlags, Grant, ToolSet, Whitelist,
};
use toolbooth_proxy::{
    Catalogue, Executors, InMemoryPins, Limits, PayloadRetention, ProxyParts, RequestError,
    ServerRequest, SourceEntry, SubscribeRequest, Subscription, ToolProxy, UpstreamEntry,
    Upstreams, View, World, WorldSettings, Worlds,
};
use toolbooth_registry::Source;
use toolbooth_registry::discovered::SourcePolicy;
use toolbooth_registry::lock::{Approvals, Lock, LockFile, NewTools};
use toolbooth_registry::uris::ResourceUris;

use common::{Tape, TapedIds, TapedLedger, is_golden};

type Answer = Result<Value, UpstreamError>;

/// A server that returns the responses of the test, and records its requests.
struct Server {
    name: &'static str,
    id: String,
    listing: Mutex<Listing>,
    listed: AtomicUsize,
    away: AtomicBool,
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<(Ask, String)>>,
    /// Whether it waits until it is cancelled.
    hangs: AtomicBool,
    /// Progress messages that it sends, one per period, before it answers.
    progress: AtomicUsize,
    notices: (async_channel::Sender<Notice>, async_channel::Receiver<Notice>),
    changed: (async_channel::Sender<()>, async_channel::Receiver<()>),
}

impl Server {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            id: format!("mcp:{name}"),
            listing: Mutex::new(listing()),
            listed: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            answers: Mutex::default(),
            asked: Mutex::default(),
            hangs: AtomicBool::new(false),
            progress: AtomicUsize::new(0),
            notices: async_channel::bounded(16),
            changed: async_channel::bounded(1),
        })
    }

    fn answers(&self, answer: Answer) {
        self.answers.lock().unwrap().push_back(answer);
    }

    fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().iter().map(|(ask, _)| ask.clone()).collect()
    }
}

#[async_trait]
impl Upstream for Server {
    fn name(&self) -> &str {
        self.name
    }

    async fn request(&self, ask: Ask, caller: &Caller, conversation: Conversation) -> Answer {
        self.asked.lock().unwrap().push((ask.clone(), caller.name().to_owned()));
        for done in 0..self.progress.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(80)).await;
            let progress = f64::from(u32::try_from(done).unwrap());
            conversation.progress(Progress { progress, total: None, message: None });
        }
        if self.hangs.load(Ordering::SeqCst) {
            conversation.cancelled().await;
            return Err(UpstreamError::Cancelled);
        }
        if let Some(answer) = self.answers.lock().unwrap().pop_front() {
            return answer;
        }
        Ok(match ask {
            Ask::ReadResource { uri } => json!({"contents": [{"uri": uri, "text": "t"}]}),
            Ask::GetPrompt { .. } => json!({"messages": []}),
            Ask::Complete { .. } => json!({"completion": {"values": ["a"]}}),
            Ask::Subscribe { .. } | Ask::Unsubscribe { .. } => json!({}),
        })
    }

    fn notices(&self) -> async_channel::Receiver<Notice> {
        self.notices.1.clone()
    }
}

#[async_trait]
impl ToolSource for Server {
    fn name(&self) -> &str {
        &self.id
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        self.listed.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(SourceError("away".into()));
        }
        Ok(self.listing.lock().unwrap().clone())
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        Some(self.changed.1.clone())
    }
}

/// A tool that answers with links, and reports progress if the test sets it.
struct Links {
    progress: usize,
    hangs: bool,
}

#[async_trait]
impl Executor for Links {
    async fn execute(&self, _: Dispatch, conversation: Conversation) -> Outcome {
        for done in 0..self.progress {
            tokio::time::sleep(Duration::from_millis(20_000)).await;
            let progress = f64::from(u32::try_from(done).unwrap());
            conversation.progress(Progress { progress, total: None, message: None });
        }
        if self.hangs {
            conversation.cancelled().await;
        }
        let blocks = [
            json!({"type": "resource_link", "uri": "a:b", "name": "n"}),
            json!({"type": "resource", "resource": {"uri": "a:b", "text": "x"}}),
        ];
        let content =
            Some(blocks.into_iter().map(|block| ContentBlock::of(&block).unwrap()).collect());
        Outcome::Done(ToolOutput::new(Payload { content, ..Payload::default() }))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn item(key: &str, document: Value) -> DiscoveredItem {
    DiscoveredItem { key: key.to_owned(), document: document.as_object().unwrap().clone() }
}

fn prompt(name: &str) -> DiscoveredItem {
    item(name, json!({"name": name, "description": "Says hello.", "icons": [{"src": "data:x"}]}))
}

fn resource(uri: &str) -> DiscoveredItem {
    item(uri, json!({"uri": uri, "name": "N", "annotations": {"priority": 1}}))
}

fn template(uri: &str) -> DiscoveredItem {
    item(uri, json!({"uriTemplate": uri, "name": "T"}))
}

fn listing() -> Listing {
    let tool = DiscoveredTool {
        name: "read".into(),
        title: None,
        description: Some("Reads.".into()),
        input_schema: json!({"type": "object"}),
        output_schema: None,
        annotations: None,
        extra: json!({"icons": [1], "_meta": {"a": 1}}).as_object().unwrap().clone(),
    };
    Listing {
        tools: vec![tool],
        prompts: vec![prompt("greet"), prompt("part")],
        resources: vec![resource("file:///a"), resource("file:///b")],
        templates: vec![template("file:///{name}"), template("db:///{+path}")],
        offers: Offers {
            prompts: true,
            resources: true,
            subscribe: true,
            completions: true,
            logging: false,
        },
        problems: Vec::new(),
    }
}

fn patterns(texts: &[&str]) -> Vec<ToolPattern> {
    texts.iter().map(|text| ToolPattern::try_from((*text).to_owned()).unwrap()).collect()
}

type Set = (String, (Vec<String>, CallerRights));

fn rights(name: &str, tools: &[&str], grants: &[&str]) -> Set {
    let rights = CallerRights {
        tools: Some(patterns(tools)),
        deny: Vec::new(),
        grants: grants.iter().map(|grant| Grant::parse(grant).unwrap()).collect(),
        operate: false,
        budget: None,
    };
    (name.to_owned(), (Vec::new(), rights))
}

fn sets<const N: usize>(sets: [Set; N]) -> CallerSets<CallerRights> {
    CallerSets::new(BTreeMap::from(sets)).unwrap()
}

const ON: FeatureFlags = FeatureFlags::ON;

struct Fixture {
    servers: Vec<Arc<Server>>,
    worlds: Arc<Worlds>,
    catalogue: Arc<Catalogue>,
    proxy: ToolProxy,
    ledger: Arc<TapedLedger>,
    tape: Tape,
}

/// The settings of a fixture.
struct Plan {
    policy: Authorizer,
    servers: Vec<&'static str>,
    per_caller: bool,
    retention: PayloadRetention,
    limits: Limits,
    uris: ResourceUris,
    tool: Links,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            policy: Authorizer::new(ON),
            servers: vec!["s"],
            per_caller: false,
            retention: PayloadRetention::default(),
            limits: Limits { cancel_grace: Duration::from_millis(50), ..Limits::default() },
            uris: ResourceUris::default(),
            tool: Links { progress: 0, hangs: false },
        }
    }
}

async fn fixture(plan: Plan) -> Fixture {
    let fixture = unverified(plan).await;
    fixture.catalogue.refresh_all().await;
    fixture
}

/// A fixture with servers that were not listed yet.
async fn unverified(plan: Plan) -> Fixture {
    let servers: Vec<Arc<Server>> = plan.servers.iter().map(|name| Server::new(name)).collect();
    let toolsets = BTreeMap::from([
        ("whole".to_owned(), ToolSet { tools: patterns(&["s.*"]), ..ToolSet::default() }),
        ("tools".to_owned(), ToolSet { tools: patterns(&["s.read"]), ..ToolSet::default() }),
        (
            "greeting".to_owned(),
            ToolSet {
                tools: Vec::new(),
                prompts: Some(patterns(&["s.greet"])),
                resources: Some(patterns(&["s.file:///a"])),
            },
        ),
    ]);
    let settings = WorldSettings { uris: plan.uris, toolsets, ..WorldSettings::default() };
    let world = World::new(plan.policy).with_settings(settings);
    let worlds = Worlds::new(world);
    let (mut executors, mut upstreams) = (Executors::default(), Upstreams::default());
    let mut sources = Vec::new();
    let tool = Arc::new(plan.tool);
    for server in &servers {
        executors = executors.with(AdapterId::Mcp(server.name.into()), Arc::clone(&tool) as _);
        upstreams = upstreams.with(UpstreamEntry {
            upstream: Arc::clone(server) as _,
            timeout: Duration::from_millis(100),
            per_caller: plan.per_caller,
        });
        sources.push(SourceEntry {
            id: Source::Mcp(server.name.into()),
            source: Arc::clone(server) as _,
            policy: SourcePolicy::default(),
            verify_calls: false,
        });
    }
    let catalogue =
        Catalogue::new(Arc::clone(&worlds), executors.clone(), Guard::default(), sources);
    let catalogue = Arc::new(catalogue.with_pins(Arc::new(InMemoryPins)));
    catalogue.want_states().await;
    let tape = Tape::default();
    let ledger = Arc::new(TapedLedger::new(&tape));
    let proxy = ToolProxy::new(ProxyParts {
        catalogue: Some(Arc::clone(&catalogue)),
        upstreams,
        limits: plan.limits,
        retention: plan.retention,
        ids: Arc::new(TapedIds(tape.clone())),
        ..ProxyParts::new(Arc::clone(&worlds), Arc::clone(&ledger) as _, executors)
    });
    Fixture { servers, worlds, catalogue, proxy, ledger, tape }
}

fn read(uri: &str) -> Ask {
    Ask::ReadResource { uri: uri.to_owned() }
}

fn get(name: &str) -> Ask {
    Ask::GetPrompt { name: name.to_owned(), arguments: None }
}

fn complete(reference: CompletionReference) -> Ask {
    Ask::Complete { reference, argument: json!({"name": "a", "value": "b"}), context: None }
}

const A: &str = "toolbooth+s:file:///a";

impl Fixture {
    async fn ask(&self, ask: Ask) -> Result<Value, RequestError> {
        self.ask_as("local", ask, None).await
    }

    async fn ask_as(
        &self,
        caller: &str,
        ask: Ask,
        within: Option<&str>,
    ) -> Result<Value, RequestError> {
        let request = ServerRequest {
            ask,
            context: CallContext { call_id: Some("c".into()), ..CallContext::default() },
            caller: Caller::authenticated(Identity::named(caller).unwrap()),
            within: within.map(Arc::from),
        };
        self.proxy.request(request, Conversation::detached().0).await
    }

    async fn subscribe(&self, caller: &str, uri: &str) -> Result<Subscription, RequestError> {
        let request = SubscribeRequest {
            uri: uri.to_owned(),
            context: CallContext::default(),
            caller: Caller::authenticated(Identity::named(caller).unwrap()),
            within: None,
        };
        self.proxy.subscribe(request).await
    }

    async fn records(&self) -> (Vec<EventBody>, Vec<AgentLog>) {
        let filter = EventFilter { limit: 1_000, ..EventFilter::default() };
        let events = self.ledger.kept.events(filter).await.unwrap().found;
        let logs = LogFilter { limit: 1_000, ..LogFilter::default() };
        let logs = self.ledger.kept.agent_logs(logs).await.unwrap().found;
        let events = events.into_iter().map(|placed| placed.event.body);
        (events.filter(|event| event.tool_name.is_some()).collect(), logs)
    }

    fn view(&self, caller: &str) -> View {
        self.catalogue.view(&Caller::authenticated(Identity::named(caller).unwrap()))
    }

    fn keys(&self, kind: ItemKind, within: Option<&str>) -> Vec<String> {
        let view = self.view("local").within(within.map(Arc::from));
        view.items(kind, None, 100).0.into_iter().map(|item| item.key).collect()
    }

    /// Judges by the current listings, all approved.
    async fn lock(&self) {
        let mut lock = LockFile::empty();
        let world = self.worlds.now();
        world.registry().iter().for_each(|tool| lock.approve(tool));
        world.items().iter().for_each(|item| lock.approve_item(item));
        let approvals = Approvals { lock: Lock::File(lock), ..Approvals::default() };
        self.catalogue.approve_by(approvals).await;
    }

    async fn lists(&self, change: impl FnOnce(&mut Listing)) {
        change(&mut self.servers[0].listing.lock().unwrap());
        self.catalogue.refresh_all().await;
    }
}

fn code(done: &Result<Value, RequestError>) -> &'static str {
    done.as_ref().map_or_else(|error| error.code.as_str(), |_| "ok")
}

#[tokio::test]
async fn requests_reach_their_server_by_its_own_names_and_come_back_by_ours() {
    let fixture = fixture(Plan::default()).await;
    let answer = fixture.ask(read(A)).await.unwrap();
    assert_eq!(answer, json!({"contents": [{"uri": A, "text": "t"}]}));
    let said = json!({"messages": [
        {"role": "user", "content": {"type": "resource", "resource": {"uri": "file:///a", "text": ""}}},
        {"role": "user", "content": [{"type": "resource_link", "uri": "file:///b", "name": "b"},
                                     {"type": "strange", "uri": "file:///b"}]}],
        "_meta": {"x": 1}});
    fixture.servers[0].answers(Ok(said));
    let answer = fixture.ask(get("s_greet")).await.unwrap();
    assert_eq!(answer["messages"][0]["content"]["resource"]["uri"], A);
    assert_eq!(answer["messages"][1]["content"][0]["uri"], "toolbooth+s:file:///b");
    assert_eq!(answer["messages"][1]["content"][1]["uri"], "file:///b");
    assert_eq!(answer["_meta"], json!({"x": 1}));
    let by_prompt = complete(CompletionReference::Prompt("s_part".into()));
    let answer = fixture.ask(by_prompt).await.unwrap();
    assert_eq!(answer, json!({"completion": {"values": ["a"]}}));
    let uri = "toolbooth+s:file:///{name}".to_owned();
    fixture.ask(complete(CompletionReference::Resource(uri))).await.unwrap();
    assert_eq!(
        fixture.servers[0].asked(),
        [
            read("file:///a"),
            get("greet"),
            complete(CompletionReference::Prompt("part".into())),
            complete(CompletionReference::Resource("file:///{name}".into())),
        ]
    );
}

#[tokio::test]
async fn reads_and_prompts_are_recorded_by_digest_and_verified() {
    let fixture = fixture(Plan::default()).await;
    fixture.ask(read(A)).await.unwrap();
    fixture.ask(get("s_greet")).await.unwrap();
    fixture.ask(complete(CompletionReference::Prompt("s_greet".into()))).await.unwrap();
    let (events, logs) = fixture.records().await;
    let kinds: Vec<AuditEventKind> = events.iter().map(|event| event.event).collect();
    assert_eq!(kinds, [AuditEventKind::ResourceRead, AuditEventKind::PromptGet]);
    assert_eq!(events[0].tool_name.as_deref(), Some("s.file:///a"));
    assert_eq!(events[1].tool_name.as_deref(), Some("s.greet"));
    let digest = events[0].result_digest.clone().unwrap();
    assert_eq!(logs[0].output.clone().unwrap(), json!({ "digest": digest }));
    let digest = events[0].args_digest.clone().unwrap();
    assert_eq!(logs[0].input.clone().unwrap(), json!({ "digest": digest }));
    assert_eq!(logs.len(), 2);
    assert!(events[0].decision.is_some() && events[0].policy_version.is_some());
    fixture.proxy.shut_down(Duration::from_secs(1)).await.unwrap();
    let report = verify::store(&fixture.ledger.kept, Default::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
}

#[tokio::test]
async fn log_level_none_keeps_no_digest_and_secrets_in_uris_are_not_kept() {
    let retention = PayloadRetention::default().with_log(LogLevel::None, Vec::new());
    let fixture = fixture(Plan { retention, ..Plan::default() }).await;
    fixture.ask(read(A)).await.unwrap();
    let secret = "toolbooth+s:postgres://user:hunter2@example.com/x";
    fixture.ask(read(secret)).await.unwrap();
    let (events, logs) = fixture.records().await;
    assert!(logs.iter().all(|log| log.input.is_none() && log.output.is_none()));
    let name = events[1].tool_name.as_deref().unwrap();
    assert!(!name.contains("hunter2") && name.starts_with("s.postgres:"), "{name}");
    let long = format!("toolbooth+s:x:{}", "y".repeat(2_000));
    fixture.ask(read(&long)).await.unwrap();
    assert!(fixture.records().await.0[2].tool_name.as_ref().unwrap().len() <= 512);
}

#[tokio::test]
async fn hidden_and_unknown_are_one_answer_and_one_record() {
    let policy = Authorizer::new(ON).with_callers(sets([
        rights("key:part", &["s.greet"], &["*"]),
        rights("key:none", &["t.*"], &["*"]),
    ]));
    let fixture = fixture(Plan { policy, ..Plan::default() }).await;
    let asks = [
        get("s_part"),
        get("s_nothing"),
        read(A),
        read("toolbooth+unknown:file:///a"),
        read("file:///a"),
        complete(CompletionReference::Prompt("s_part".into())),
        complete(CompletionReference::Resource("toolbooth+s:file:///{name}".into())),
        get(&"x".repeat(40_000)),
    ];
    let mut errors = Vec::new();
    for ask in asks {
        errors.push(fixture.ask_as("key:part", ask, None).await.unwrap_err());
    }
    errors.push(fixture.ask_as("key:none", get("s_greet"), None).await.unwrap_err());
    errors.push(fixture.ask_as("key:stranger", get("s_greet"), None).await.unwrap_err());
    errors.push(fixture.ask_as("local", get("s_greet"), Some("tools")).await.unwrap_err());
    errors.push(fixture.ask_as("local", get("s_greet"), Some("no such set")).await.unwrap_err());
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert_eq!(errors[0].code, ErrorCode::UnregisteredTool);
    assert!(errors[0].message.contains("ACCESS_DENIED") && errors[0].details.is_empty());
    assert!(fixture.servers[0].asked().is_empty());
    assert_eq!(code(&fixture.ask_as("key:part", get("s_greet"), None).await), "ok");
    let (events, logs) = fixture.records().await;
    let denied = &events[..errors.len()];
    assert!(denied.iter().all(|event| {
        event.event == AuditEventKind::UnknownTool
            && event.decision.is_none()
            && event.args_digest.is_none()
    }));
    assert_eq!(logs.len(), errors.len() + 1);
}

#[tokio::test]
async fn hidden_and_unknown_are_one_order_of_stages() {
    let policy = Authorizer::new(ON).with_callers(sets([rights("key:part", &["s.greet"], &["*"])]));
    let fixture = fixture(Plan { policy, ..Plan::default() }).await;
    let _ = fixture.tape.recorded();
    let prompt = |name: &str| complete(CompletionReference::Prompt(name.into()));
    let resource = |uri: &str| complete(CompletionReference::Resource(uri.into()));
    let none = "toolbooth+unknown:file:///a";
    for (what, hidden, unknown) in [
        ("prompt", get("s_part"), get("s_nothing")),
        ("resource", read(A), read(none)),
        ("resource of a template", read("toolbooth+s:file:///c"), read("toolbooth+s:no:c")),
        ("completion of a prompt", prompt("s_part"), prompt("s_nothing")),
        ("completion of a template", resource("toolbooth+s:file:///{name}"), resource(none)),
    ] {
        for (kind, ask) in [("a hidden", hidden), ("an unknown", unknown)] {
            fixture.tape.say(&format!("# {kind} {what}"));
            let done = fixture.ask_as("key:part", ask, None).await;
            assert_eq!(code(&done), "unregistered-tool", "{kind} {what}");
        }
    }
    for (kind, uri) in [("a hidden", A), ("an unknown", none)] {
        fixture.tape.say(&format!("# {kind} resource, subscribed"));
        let error = fixture.subscribe("key:part", uri).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::UnregisteredTool, "{kind}");
    }
    for (kind, query) in [("a hidden", "reads"), ("an unknown", "nothing")] {
        fixture.tape.say(&format!("# {kind} tool, searched"));
        assert!(fixture.view("key:part").search(query, 5).is_empty(), "{kind}");
    }
    let recorded = fixture.tape.recorded();
    let sections: Vec<&str> =
        recorded.split("# ").skip(1).map(|text| text.split_once('\n').unwrap().1).collect();
    assert!(sections.chunks(2).all(|pair| pair[0] == pair[1]), "{recorded}");
    is_golden(&recorded, "hidden.txt");
}

#[tokio::test]
async fn other_spellings_of_unlisted_uris_are_not_there() {
    let (name, (own, mut narrow)) = rights("key:deny", &["s.*"], &["*"]);
    narrow.deny = patterns(&["s.file:///secret/*"]);
    let callers = sets([(name, (own, narrow)), rights("key:few", &["s.file:///notes/*"], &["*"])]);
    let policy = Authorizer::new(ON).with_callers(callers);
    let fixture = fixture(Plan { policy, ..Plan::default() }).await;
    fixture.lists(|listing| listing.resources.push(resource("file:///Odd name"))).await;
    fixture.lock().await;
    let before = fixture.servers[0].asked().len();
    for odd in [
        "file:///notes/../secret/key",
        "file:///notes/%2e%2e/secret/key",
        "file:///notes/..%2Fsecret/key",
        "file:///%73ecret/key",
        "FILE:///secret/key",
        "file:////secret/key",
        "file://localhost/secret/key",
        "file:///notes/a#b",
    ] {
        let uri = format!("toolbooth+s:{odd}");
        for caller in ["local", "key:deny", "key:few"] {
            assert!(!fixture.view(caller).reads(&uri), "{caller} {odd}");
            let done = fixture.ask_as(caller, read(&uri), None).await;
            assert_eq!(code(&done), "unregistered-tool", "{caller} {odd}");
            let reference = CompletionReference::Resource(uri.clone());
            let done = fixture.ask_as(caller, complete(reference), None).await;
            assert_eq!(code(&done), "unregistered-tool", "{caller} {odd}");
            let error = fixture.subscribe(caller, &uri).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::UnregisteredTool, "{caller} {odd}");
        }
    }
    assert_eq!(fixture.servers[0].asked().len(), before, "no server was asked");
    let done = fixture.ask_as("key:few", read("toolbooth+s:file:///notes/new"), None).await;
    assert_eq!(code(&done), "ok");
    for listed in ["toolbooth+s:file:///Odd name", "toolbooth+s:file:///Odd%20name"] {
        assert!(fixture.view("local").reads(listed));
        assert_eq!(code(&fixture.ask(read(listed)).await), "ok", "{listed}");
        let last = fixture.servers[0].asked().pop().unwrap();
        assert_eq!(format!("{last:?}"), format!("{:?}", read("file:///Odd name")));
    }
}

#[tokio::test]
async fn each_denial_names_its_rule_and_asks_no_server() {
    let policy = Authorizer::new(ON)
        .with_whitelist(Whitelist::only(patterns(&["s.greet", "s.file:///a"])))
        .with_callers(sets([
            rights("key:all", &["s.*"], &["use:prompts/s", "read:resources"]),
            rights("key:bare", &["s.*"], &["use:prompts/t"]),
        ]));
    let fixture = fixture(Plan { policy, ..Plan::default() }).await;
    let denied = |caller: &'static str, ask: Ask| fixture.ask_as(caller, ask, None);
    assert_eq!(code(&denied("key:all", get("s_greet")).await), "ok");
    assert_eq!(code(&denied("key:all", read(A)).await), "ok");
    let off = denied("key:all", get("s_part")).await.unwrap_err();
    assert_eq!((off.code, &off.details["rule"]), (ErrorCode::PolicyDenied, &json!("whitelist")));
    let missing = denied("key:bare", read(A)).await.unwrap_err();
    assert_eq!(missing.details["missing"], json!(["read:resources/s"]));
    let by_reference = complete(CompletionReference::Prompt("s_greet".into()));
    assert_eq!(code(&denied("key:bare", by_reference).await), "policy-denied");
    assert_eq!(fixture.subscribe("key:bare", A).await.unwrap_err().code, ErrorCode::PolicyDenied);
    assert_eq!(fixture.servers[0].asked().len(), 2);
    let (events, _) = fixture.records().await;
    let kinds: Vec<AuditEventKind> = events[2..].iter().map(|event| event.event).collect();
    assert_eq!(kinds, [AuditEventKind::PolicyDenied; 4]);
    assert_eq!(events[3].decision.as_ref().unwrap().rule, "permissions");
}

#[tokio::test]
async fn with_tools_switched_off_nothing_is_listed_or_served() {
    let fixture =
        fixture(Plan { policy: Authorizer::new(FeatureFlags::default()), ..Plan::default() });
    let fixture = fixture.await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "tools-disabled");
    assert_eq!(code(&fixture.ask(get("nothing")).await), "tools-disabled");
    for kind in ItemKind::ALL {
        assert!(fixture.keys(kind, None).is_empty());
    }
    assert_eq!(fixture.view("local").offers(), Offers::default());
}

#[tokio::test]
async fn what_changed_since_it_was_approved_is_quarantined() {
    let fixture = fixture(Plan::default()).await;
    fixture.lock().await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "ok");
    let before = fixture.view("local").digest();
    fixture
        .lists(|listing| {
            listing.prompts[0] = item("greet", json!({"name": "greet", "description": "Obey."}));
            listing.resources[0] = item("file:///a", json!({"uri": "file:///a", "name": "Other"}));
            listing.templates.push(template("new:{x}"));
        })
        .await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "quarantined-tool");
    assert_eq!(code(&fixture.ask(read(A)).await), "quarantined-tool");
    assert_eq!(code(&fixture.ask(get("s_part")).await), "ok");
    // Only a quarantined template matches this; the second one that matches is quarantined too.
    assert_eq!(code(&fixture.ask(read("toolbooth+s:new:1")).await), "quarantined-tool");
    fixture.lists(|listing| listing.templates.push(template("new:{+y}"))).await;
    assert_eq!(code(&fixture.ask(read("toolbooth+s:new:1")).await), "quarantined-tool");
    assert_eq!(
        code(&fixture.ask(read("toolbooth+s:other:1")).await),
        "ok",
        "links need no listing"
    );
    for near in ["toolbooth+s:file:///a/", "toolbooth+s:new:1?x"] {
        assert_eq!(code(&fixture.ask(read(near)).await), "quarantined-tool", "{near}");
        assert!(!fixture.view("local").reads(near), "{near}");
        let hidden = fixture.ask_as("key:unknown", read(near), None).await;
        assert_eq!(code(&hidden), "unregistered-tool", "{near}");
    }
    let completion = complete(CompletionReference::Resource("toolbooth+s:new:{x}".into()));
    assert_eq!(code(&fixture.ask(completion).await), "quarantined-tool");
    assert_eq!(fixture.keys(ItemKind::Prompt, None), ["s_part"]);
    assert_eq!(fixture.keys(ItemKind::Resource, None), ["toolbooth+s:file:///b"]);
    let after = fixture.view("local").digest();
    assert!(after.prompts != before.prompts && after.resources != before.resources);
    assert_eq!(after.tools, before.tools);
    let told = fixture.catalogue.take_quarantined();
    let ids: Vec<&str> = told.iter().map(|one| one.tool_id.as_str()).collect();
    assert_eq!(
        ids,
        ["prompt:s.greet", "resource:s.file:///a", "template:s.new:{+y}", "template:s.new:{x}"]
    );
    assert!(told[0].reason.contains("description"), "{told:?}");
}

#[tokio::test]
async fn a_source_that_was_pinned_before_has_its_items_pinned_at_their_first_listing() {
    let fixture = fixture(Plan::default()).await;
    let mut old = LockFile::parse(br#"{"version": "1.0.0", "tools": {}}"#).unwrap();
    let tools: Vec<_> = {
        let mut listing = listing();
        listing.tools[0].extra.clear();
        *fixture.servers[0].listing.lock().unwrap() = listing;
        fixture.catalogue.refresh_all().await;
        fixture.worlds.now().registry().iter().cloned().collect()
    };
    old.pin(&Source::Mcp("s".into()), &tools, NewTools::Deny);
    *fixture.servers[0].listing.lock().unwrap() = listing();
    let approvals = Approvals { lock: Lock::FirstUse(old), ..Approvals::default() };
    fixture.catalogue.approve_by(approvals).await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "quarantined-tool", "not pinned yet");
    let _ = fixture.catalogue.take_quarantined();
    fixture.catalogue.refresh_all().await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "ok");
    // The other members that the tool shows are pinned with it.
    let tool = fixture.view("local").find("s.read").unwrap();
    assert_eq!(toolbooth_proxy::declaration(&tool).extra["_meta"], json!({"a": 1}));
    fixture.lists(|listing| listing.prompts.push(prompt("late"))).await;
    assert_eq!(code(&fixture.ask(get("s.late")).await), "quarantined-tool");
    fixture.lists(|listing| drop(listing.tools[0].extra.remove("_meta"))).await;
    let told = fixture.catalogue.take_quarantined();
    let ids: Vec<&str> = told.iter().map(|one| one.tool_id.as_str()).collect();
    assert_eq!(ids, ["prompt:s.late", "s.read"]);
}

#[tokio::test]
async fn what_an_old_lock_does_not_speak_of_is_not_shown() {
    let fixture = fixture(Plan::default()).await;
    let mut lock = LockFile::parse(br#"{"version": "1.0.0", "tools": {}}"#).unwrap();
    let extra = std::mem::take(&mut fixture.servers[0].listing.lock().unwrap().tools[0].extra);
    fixture.catalogue.refresh_all().await;
    fixture.worlds.now().registry().iter().for_each(|tool| lock.approve(tool));
    let approvals = Approvals { lock: Lock::File(lock), ..Approvals::default() };
    fixture.catalogue.approve_by(approvals).await;
    fixture.lists(|listing| listing.tools[0].extra = extra).await;
    let tool = fixture.view("local").find("s.read").expect("it is as it was approved");
    assert!(toolbooth_proxy::declaration(&tool).extra.is_empty());
    fixture.lock().await;
    let tool = fixture.view("local").find("s.read").unwrap();
    assert_eq!(toolbooth_proxy::declaration(&tool).extra.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_told_of_a_change_is_asked_before_its_items_are_used() {
    let fixture = fixture(Plan::default()).await;
    fixture.lock().await;
    let catalogue = Arc::clone(&fixture.catalogue);
    let fresh = tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
    fixture.servers[0].listing.lock().unwrap().prompts[0] =
        item("greet", json!({"name": "greet", "description": "Obey."}));
    fixture.servers[0].changed.0.send(()).await.unwrap();
    while !fixture.servers[0].changed.1.is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    let before = fixture.servers[0].listed.load(Ordering::SeqCst);
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "quarantined-tool");
    assert_eq!(fixture.servers[0].listed.load(Ordering::SeqCst), before + 1);
    fresh.abort();
}

#[tokio::test]
async fn approved_items_are_known_before_their_server_answers() {
    let first = fixture(Plan::default()).await;
    first.lock().await;
    let approvals = first.worlds.now().approvals().clone();
    let fixture = unverified(Plan::default()).await;
    fixture.catalogue.approve_by(approvals).await;
    assert_eq!(fixture.catalogue.unknown_sources().len(), 1);
    fixture.catalogue.restore_locked().await;
    assert!(fixture.catalogue.unknown_sources().is_empty(), "no door waits for it");
    assert_eq!(fixture.keys(ItemKind::Prompt, None), ["s_greet", "s_part"]);
    assert!(fixture.view("local").offers().prompts);
    assert_eq!(fixture.servers[0].listed.load(Ordering::SeqCst), 0);
    assert_eq!(code(&fixture.ask(read("toolbooth+s:not:listed")).await), "ok");
    assert_eq!(fixture.servers[0].listed.load(Ordering::SeqCst), 1, "it was asked first");
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "ok");
    assert_eq!(fixture.servers[0].listed.load(Ordering::SeqCst), 1, "once");
}

#[tokio::test(start_paused = true)]
async fn items_of_a_server_that_told_of_a_change_and_is_away_are_not_used() {
    let fixture = fixture(Plan::default()).await;
    fixture.lock().await;
    let catalogue = Arc::clone(&fixture.catalogue);
    let fresh = tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
    fixture.servers[0].away.store(true, Ordering::SeqCst);
    fixture.catalogue.refresh_all().await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "ok", "it is as it was approved");
    fixture.servers[0].changed.0.send(()).await.unwrap();
    while !fixture.servers[0].changed.1.is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "quarantined-tool");
    assert_eq!(code(&fixture.ask(read(A)).await), "quarantined-tool");
    fixture.servers[0].away.store(false, Ordering::SeqCst);
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "ok");
    fresh.abort();
}

#[tokio::test]
async fn a_server_without_resources_has_none() {
    let fixture = fixture(Plan::default()).await;
    fixture.lists(|listing| listing.offers.resources = false).await;
    assert_eq!(code(&fixture.ask(read("toolbooth+s:x:y")).await), "unregistered-tool");
    assert!(!fixture.view("local").offers().resources);
}

#[tokio::test]
async fn without_a_record_the_answer_is_withheld() {
    let fixture = fixture(Plan::default()).await;
    fixture.ledger.away.store(true, Ordering::SeqCst);
    let withheld = fixture.ask(read(A)).await.unwrap_err();
    assert_eq!(withheld.code, ErrorCode::RecordUnavailable);
    let refused = UpstreamError::Refused { code: -32_002, message: "secret".into(), data: None };
    fixture.servers[0].answers(Err(refused));
    let withheld = fixture.ask(read(A)).await.unwrap_err();
    assert_eq!((withheld.code, withheld.upstream), (ErrorCode::RecordUnavailable, None));
    // A denial keeps its code, and is counted.
    assert_eq!(code(&fixture.ask(get("nothing")).await), "unregistered-tool");
    fixture.ledger.away.store(false, Ordering::SeqCst);
    fixture.proxy.shut_down(Duration::from_secs(1)).await.unwrap();
    let filter = EventFilter { limit: 10, ..EventFilter::default() };
    let events = fixture.ledger.kept.events(filter).await.unwrap().found;
    let gap =
        events.iter().find(|placed| placed.event.body.event == AuditEventKind::AuditGap).unwrap();
    assert_eq!(gap.event.body.facts.as_ref().unwrap()["missed"], 3);
}

#[tokio::test]
async fn answers_in_another_form_are_not_passed_on() {
    let limits = Limits { result_bytes_max: 2_000, ..Limits::default() };
    let fixture = fixture(Plan { limits, ..Plan::default() }).await;
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    for (answer, wanted) in [
        (json!({"contents": {}}), "invalid-tool-result"),
        (json!({"contents": [{"uri": "a"}]}), "invalid-tool-result"),
        (json!({"contents": [{"text": "a"}]}), "invalid-tool-result"),
        (json!([]), "invalid-tool-result"),
        (json!({"contents": [], "_meta": deep}), "invalid-tool-result"),
        (json!({"contents": [{"uri": "a", "text": "x".repeat(3_000)}]}), "result-too-large"),
        (json!({"contents": [{"uri": "a", "blob": "", "x": 1}], "ttlMs": 5}), "ok"),
        (json!({"contents": []}), "ok"),
    ] {
        fixture.servers[0].answers(Ok(answer.clone()));
        assert_eq!(code(&fixture.ask(read(A)).await), wanted, "{answer}");
    }
    fixture.servers[0].answers(Ok(json!({"messages": [{"role": "user"}]})));
    assert_eq!(code(&fixture.ask(get("s_greet")).await), "invalid-tool-result");
    fixture.servers[0].answers(Ok(json!({"completion": {"values": [1]}})));
    let completion = complete(CompletionReference::Prompt("s_greet".into()));
    assert_eq!(code(&fixture.ask(completion).await), "invalid-tool-result");
    fixture.servers[0].answers(Err(UpstreamError::Unreadable("NaN".into())));
    assert_eq!(code(&fixture.ask(read(A)).await), "invalid-tool-result");
    fixture.servers[0].answers(Err(UpstreamError::Unreachable("no route to 10.0.0.1".into())));
    let error = fixture.ask(read(A)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AdapterFailed);
    assert!(!error.message.contains("10.0.0.1"));
    let (_, logs) = fixture.records().await;
    assert!(logs.last().unwrap().internal.as_ref().unwrap().contains("10.0.0.1"));
}

#[tokio::test]
async fn errors_of_the_server_are_told_and_screened() {
    let fixture = fixture(Plan::default()).await;
    let refused = |message: String, data| {
        Err(UpstreamError::Refused { code: -32_002, message, data: Some(data) })
    };
    let token = "https://ada:hunter2@host/";
    let message = format!("Resource\u{1b}[2J not found {token} {}", "x".repeat(2_000));
    let data = json!({"uri": "file:///a", "hint": format!("use {token}")});
    fixture.servers[0].answers(refused(message, data));
    let error = fixture.ask(read(A)).await.unwrap_err();
    let told = error.upstream.unwrap();
    assert_eq!((error.code, told.code), (ErrorCode::ToolError, -32_002));
    assert_eq!(error.message, told.message);
    assert!(told.message.starts_with("Resource [2J not found") && told.message.len() <= 512);
    assert!(!told.message.contains("hunter2") && !told.message.contains('\u{1b}'));
    let data = told.data.unwrap();
    assert_eq!(data["uri"], A);
    assert!(!data.to_string().contains("hunter2"), "{data}");
    fixture.servers[0].answers(refused("m".into(), json!("x".repeat(5_000))));
    assert_eq!(fixture.ask(read(A)).await.unwrap_err().upstream.unwrap().data, None);
    let (events, logs) = fixture.records().await;
    assert_eq!(events[0].event, AuditEventKind::ToolExecutionError);
    assert!(!serde_json::to_string(&(&events, &logs)).unwrap().contains("hunter2"));
}

#[tokio::test]
async fn arguments_are_bounded_and_clean() {
    let limits = Limits { argument_bytes_max: 100, ..Limits::default() };
    let fixture = fixture(Plan { limits, ..Plan::default() }).await;
    let with = |arguments: Value| Ask::GetPrompt {
        name: "s_greet".into(),
        arguments: Some(arguments.as_object().unwrap().clone()),
    };
    assert_eq!(code(&fixture.ask(with(json!({"a": "x".repeat(200)}))).await), "invalid-args");
    assert_eq!(code(&fixture.ask(with(json!({"__proto__": "x"}))).await), "invalid-args");
    assert_eq!(code(&fixture.ask(with(json!({"a": "x"}))).await), "ok");
    let subscribe = Ask::Subscribe { uri: A.into() };
    assert_eq!(code(&fixture.ask(subscribe).await), "invalid-args");
    let request = ServerRequest {
        ask: read(A),
        context: CallContext { call_id: Some("  ".into()), ..CallContext::default() },
        caller: Caller::local(),
        within: None,
    };
    let error = fixture.proxy.request(request, Conversation::detached().0).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgs);
    assert!(!error.call_id.trim().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_at_its_time_and_progress_gives_more() {
    let fixture = fixture(Plan::default()).await;
    fixture.servers[0].hangs.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    assert_eq!(code(&fixture.ask(read(A)).await), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    fixture.servers[0].hangs.store(false, Ordering::SeqCst);
    // Four times 80 ms, each progress within 100 ms of the one before.
    fixture.servers[0].progress.store(4, Ordering::SeqCst);
    assert_eq!(code(&fixture.ask(read(A)).await), "ok");
    // The cap is four times the server's time.
    fixture.servers[0].progress.store(50, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    assert_eq!(code(&fixture.ask(read(A)).await), "timeout");
    assert!(began.elapsed() >= Duration::from_millis(400));
    let (events, _) = fixture.records().await;
    assert_eq!(events[0].event, AuditEventKind::ToolExecutionTimeout);
    assert_eq!(fixture.servers[0].asked().len(), 3, "nothing is repeated");
}

#[tokio::test]
async fn a_cancelled_request_tells_the_server_and_is_recorded() {
    let fixture = fixture(Plan::default()).await;
    fixture.servers[0].hangs.store(true, Ordering::SeqCst);
    let request = ServerRequest {
        ask: read(A),
        context: CallContext::default(),
        caller: Caller::local(),
        within: None,
    };
    let (conversation, cancel) = Conversation::detached();
    let (done, ()) = tokio::join!(fixture.proxy.request(request, conversation), async {
        while fixture.servers[0].asked().is_empty() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    assert_eq!(done.unwrap_err().code, ErrorCode::Cancelled);
    let (events, _) = fixture.records().await;
    assert_eq!(events[0].event, AuditEventKind::ToolExecutionCancelled);
}

#[tokio::test]
async fn requests_take_slots_and_are_drained_at_the_end() {
    let limits = Limits { in_flight_max: 1, ..Limits::default() };
    let fixture = Arc::new(fixture(Plan { limits, ..Plan::default() }).await);
    fixture.servers[0].hangs.store(true, Ordering::SeqCst);
    let waiting = Arc::clone(&fixture);
    let first = tokio::spawn(async move { waiting.ask(read(A)).await });
    while fixture.servers[0].asked().is_empty() {
        tokio::task::yield_now().await;
    }
    let busy = fixture.ask(read(A)).await.unwrap_err();
    assert_eq!((busy.code, busy.retry_after_ms), (ErrorCode::Overloaded, Some(1_000)));
    assert_eq!(fixture.subscribe("local", A).await.unwrap_err().code, ErrorCode::Overloaded);
    fixture.proxy.shut_down(Duration::ZERO).await.unwrap();
    assert!(matches!(code(&first.await.unwrap()), "cancelled" | "timeout"));
    assert_eq!(fixture.ask(read(A)).await.unwrap_err().code, ErrorCode::Overloaded);
}

#[tokio::test]
async fn pages_go_by_server_and_key_and_survive_changes() {
    let fixture = fixture(Plan { servers: vec!["b", "a", "c"], ..Plan::default() }).await;
    let view = fixture.view("local");
    let (mut after, mut keys): (Option<String>, Vec<String>) = (None, Vec::new());
    loop {
        let (page, next) = view.items(ItemKind::Prompt, after.as_deref(), 1);
        keys.extend(page.into_iter().map(|item| item.key));
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(keys, ["a_greet", "a_part", "b_greet", "b_part", "c_greet", "c_part"]);
    let (first, next) = view.items(ItemKind::Prompt, None, 3);
    assert_eq!(first.len(), 3);
    // The last item of the page is removed, and an item is added before it.
    fixture
        .lists(|listing| {
            listing.prompts.remove(0);
            listing.prompts.push(prompt("aaa"));
        })
        .await;
    let (rest, end) = fixture.view("local").items(ItemKind::Prompt, next.as_deref(), 100);
    let rest: Vec<&str> = rest.iter().map(|item| item.key.as_str()).collect();
    assert_eq!((rest, end), (vec!["b_part", "c_greet", "c_part"], None));
    for odd in ["", "x", "9:a", "1:", "18446744073709551616:a", "-1:a", "2:äb"] {
        let (page, next) = view.items(ItemKind::Prompt, Some(odd), 10);
        assert!(next.is_none() && (page.is_empty() || odd == "1:"), "{odd}");
    }
}

#[tokio::test]
async fn items_are_shown_whole_under_their_names_on_the_wire() {
    let fixture = fixture(Plan::default()).await;
    let view = fixture.view("local");
    let shown = |kind| view.items(kind, None, 1).0.remove(0).document;
    let prompt = shown(ItemKind::Prompt);
    assert_eq!(
        (&prompt["name"], &prompt["icons"]),
        (&json!("s_greet"), &json!([{"src": "data:x"}]))
    );
    let resource = shown(ItemKind::Resource);
    assert_eq!(json!(resource), json!({"uri": A, "name": "N", "annotations": {"priority": 1}}));
    assert_eq!(shown(ItemKind::Template)["uriTemplate"], "toolbooth+s:db:///{+path}");
    assert_eq!(view.offers(), listing().offers);
    let bare = ResourceUris::new(Some("s".into()));
    let fixture = crate::fixture(Plan { uris: bare, ..Plan::default() }).await;
    assert_eq!(fixture.keys(ItemKind::Resource, None), ["file:///a", "file:///b"]);
    let answer = fixture.ask(read("file:///a")).await.unwrap();
    assert_eq!(answer["contents"][0]["uri"], "file:///a");
    assert_eq!(code(&fixture.ask(read(A)).await), "ok", "the long form is understood too");
}

#[tokio::test]
async fn tool_sets_narrow_everything_and_widen_nothing() {
    let policy = Authorizer::new(ON).with_callers(sets([rights("key:part", &["s.greet"], &["*"])]));
    let fixture = fixture(Plan { policy, ..Plan::default() }).await;
    let prompts = |within| fixture.keys(ItemKind::Prompt, within);
    assert_eq!(prompts(Some("whole")), ["s_greet", "s_part"]);
    assert!(prompts(Some("tools")).is_empty() && prompts(Some("no such set")).is_empty());
    assert_eq!(prompts(Some("greeting")), ["s_greet"]);
    assert_eq!(fixture.keys(ItemKind::Resource, Some("greeting")), [A]);
    assert!(fixture.keys(ItemKind::Template, Some("greeting")).is_empty());
    let view = |caller: &str, within: &str| fixture.view(caller).within(Some(within.into()));
    assert!(view("local", "greeting").listed(None, 10).0.is_empty());
    assert_eq!(view("local", "tools").listed(None, 10).0.len(), 1);
    assert!(view("local", "greeting").find("s.read").is_none());
    assert!(view("local", "greeting").search("reads", 5).is_empty());
    assert_eq!(view("local", "whole").search("reads", 5).len(), 1, "no index is shared");
    assert!(fixture.catalogue.has_toolset("greeting") && !fixture.catalogue.has_toolset("no"));
    assert!(view("local", "greeting").reads(A) && !view("local", "tools").reads(A));
    let offers = view("local", "tools").offers();
    assert!(!offers.prompts && !offers.resources && !offers.completions);
    assert!(view("local", "greeting").offers().subscribe);
    assert_ne!(view("local", "tools").digest(), view("local", "whole").digest());
    assert!(view("key:part", "whole").items(ItemKind::Resource, None, 10).0.is_empty());
    assert_eq!(
        code(&fixture.ask_as("key:part", read(A), Some("greeting")).await),
        "unregistered-tool"
    );
    assert_eq!(code(&fixture.ask_as("local", read(A), Some("greeting")).await), "ok");
    assert_eq!(fixture.catalogue.toolsets(), ["greeting", "tools", "whole"]);
    // Calls are limited to the set as well.
    let call = |within: &str| {
        let call = ToolCall::new(CallRequest::new("s.read", "{}").unwrap(), Caller::local());
        fixture.proxy.call(call.within(Some(within.into())), Conversation::detached().0)
    };
    let hidden = call("greeting").await.error.unwrap();
    let call_of_nothing = ToolCall::new(CallRequest::new("no", "{}").unwrap(), Caller::local());
    let unknown = fixture.proxy.call(call_of_nothing, Conversation::detached().0).await;
    assert_eq!(Some(hidden), unknown.error);
    assert!(!call("tools").await.is_error);
}

#[tokio::test]
async fn a_digest_changes_when_its_listing_does_and_only_then() {
    let fixture = fixture(Plan::default()).await;
    let digest = || fixture.view("local").digest();
    let first = digest();
    fixture.catalogue.refresh_all().await;
    assert_eq!(digest(), first);
    fixture.lists(|listing| listing.tools[0].extra = Default::default()).await;
    let second = digest();
    assert!(second.tools != first.tools && second.prompts == first.prompts);
    fixture.lists(|listing| listing.templates.truncate(1)).await;
    let third = digest();
    assert!(third.resources != second.resources && third.tools == second.tools);
    fixture.lists(|listing| listing.prompts.reverse()).await;
    assert_eq!(digest(), third, "they are shown in our order");
    assert_ne!(fixture.view("key:stranger").digest().prompts, third.prompts);
}

#[tokio::test]
async fn links_in_tool_results_are_mapped_once() {
    let fixture = fixture(Plan::default()).await;
    let call = || {
        let mut request = CallRequest::new("s.read", "{}").unwrap();
        request.context.idempotency_key = Some("k".into());
        let call = ToolCall::new(request, Caller::local());
        fixture.proxy.call(call, Conversation::detached().0)
    };
    let first = call().await;
    assert_eq!(first.content[0].tree()["uri"], "toolbooth+s:a:b");
    assert_eq!(first.content[1].tree()["resource"]["uri"], "toolbooth+s:a:b");
    let again = call().await;
    assert!(again.replayed && again.content == first.content);
}

/// Waits until a condition holds that another task brings about.
async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it never holds");
}

fn subscribed(server: &Server) -> (usize, usize) {
    let asked = server.asked();
    let count = |wanted: fn(&Ask) -> bool| asked.iter().filter(|ask| wanted(ask)).count();
    (
        count(|ask| matches!(ask, Ask::Subscribe { uri } if uri == "file:///a")),
        count(|ask| matches!(ask, Ask::Unsubscribe { uri } if uri == "file:///a")),
    )
}

#[tokio::test]
async fn the_last_subscription_that_ends_tells_the_server() {
    let fixture = fixture(Plan::default()).await;
    let server = &fixture.servers[0];
    let one = fixture.subscribe("local", A).await.unwrap();
    let two = fixture.subscribe("local", A).await.unwrap();
    assert_eq!((one.uri(), subscribed(server)), (A, (1, 0)));
    drop(one);
    fixture.ask(read(A)).await.unwrap();
    assert_eq!(subscribed(server), (1, 0));
    drop(two);
    until(|| subscribed(server) == (1, 1)).await;
    let again = fixture.subscribe("local", A).await.unwrap();
    assert_eq!(subscribed(server), (2, 1));
    // A subscription that the server refuses has no subscriber.
    let refused = UpstreamError::Refused { code: -32_602, message: "no".into(), data: None };
    server.answers(Err(refused));
    let error = fixture.subscribe("local", "toolbooth+s:file:///b").await.unwrap_err();
    assert_eq!(error.upstream.unwrap().code, -32_602);
    let asked = server.asked();
    assert!(!asked.contains(&Ask::Unsubscribe { uri: "file:///b".into() }));
    let held = fixture.subscribe("local", "toolbooth+s:file:///b").await.unwrap();
    let (events, _) = fixture.records().await;
    assert_eq!(events.len(), 1, "subscriptions write no event");
    drop((again, held));
    fixture.proxy.shut_down(Duration::from_secs(5)).await.unwrap();
    assert_eq!(subscribed(server), (2, 2));
}

#[tokio::test]
async fn subscriptions_at_once_ask_once_and_never_leave_one_behind() {
    let fixture = Arc::new(fixture(Plan::default()).await);
    for _ in 0..20 {
        let many: Vec<_> = (0..16)
            .map(|_| {
                let fixture = Arc::clone(&fixture);
                tokio::spawn(async move { fixture.subscribe("local", A).await.map(drop) })
            })
            .collect();
        for one in many {
            one.await.unwrap().unwrap();
        }
    }
    let server = &fixture.servers[0];
    until(|| {
        let (on, off) = subscribed(server);
        on == off && fixture.proxy.running() == 0
    })
    .await;
    let order: Vec<bool> =
        server.asked().iter().map(|ask| matches!(ask, Ask::Subscribe { .. })).collect();
    assert!(order.chunks(2).all(|pair| pair == [true, false]), "{order:?}");
}

#[tokio::test]
async fn callers_with_connections_of_their_own_have_subscriptions_of_their_own() {
    let policy = Authorizer::new(ON).with_callers(sets([rights("key:a", &["*"], &["*"])]));
    let fixture = fixture(Plan { per_caller: true, policy, ..Plan::default() }).await;
    let one = fixture.subscribe("local", A).await.unwrap();
    let two = fixture.subscribe("key:a", A).await.unwrap();
    assert_eq!(subscribed(&fixture.servers[0]), (2, 0));
    drop(two);
    until(|| subscribed(&fixture.servers[0]) == (2, 1)).await;
    assert_eq!(fixture.servers[0].asked.lock().unwrap().last().unwrap().1, "key:a");
    drop(one);
}

#[tokio::test]
async fn updates_carry_our_uris() {
    let fixture = fixture(Plan { servers: vec!["s", "My t"], ..Plan::default() }).await;
    let mut updates = fixture.proxy.updates();
    let mut late = fixture.proxy.updates();
    let notice = |caller: Option<&str>| Notice::ResourceUpdated {
        uri: "file:///a".into(),
        caller: caller.map(str::to_owned),
    };
    fixture.servers[0].notices.0.send(notice(None)).await.unwrap();
    let update = updates.recv().await.unwrap();
    assert_eq!((update.uri.as_str(), update.caller), (A, None));
    fixture.servers[1].notices.0.send(notice(Some("key:a"))).await.unwrap();
    let update = updates.recv().await.unwrap();
    assert_eq!(update.uri, "toolbooth+.4dy.20t:file:///a");
    assert_eq!(update.caller.as_deref(), Some("key:a"));
    assert_eq!(late.recv().await.unwrap().uri, A);
    fixture.proxy.shut_down(Duration::from_secs(1)).await.unwrap();
}

async fn tool_call(plan: Plan, deadline_ms: Option<u64>) -> (Option<ErrorCode>, Duration) {
    let fixture = fixture(plan).await;
    let mut request = CallRequest::new("s.read", "{}").unwrap();
    request.context.deadline_ms = deadline_ms;
    let began = tokio::time::Instant::now();
    let call = ToolCall::new(request, Caller::local());
    let result = fixture.proxy.call(call, Conversation::detached().0).await;
    (result.error.map(|error| error.code), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn progress_starts_a_tools_time_anew_up_to_the_cap() {
    let plan = |progress, hangs| Plan {
        tool: Links { progress, hangs },
        // Calls are settled in memory, so the clock of the test does not run meanwhile.
        limits: Limits { settle_patience: Duration::from_secs(3_600), ..Limits::default() },
        ..Plan::default()
    };
    // A tool has 30 s, and each of these reports progress every 20 s.
    assert_eq!(tool_call(plan(5, false), None).await.0, None, "100 s with progress");
    let (code, took) = tool_call(plan(2, true), None).await;
    assert_eq!((code, took.as_secs()), (Some(ErrorCode::Timeout), 70), "30 s after the last");
    let (code, took) = tool_call(plan(50, false), None).await;
    assert_eq!((code, took.as_secs()), (Some(ErrorCode::Timeout), 122), "the cap, and the grace");
    let (code, took) = tool_call(plan(50, false), Some(50_000)).await;
    assert_eq!(code, Some(ErrorCode::Timeout));
    assert!(took.as_secs() < 55, "the caller's deadline holds: {took:?}");
    let mut short = plan(50, false);
    short.limits.progress_cap = Some(Duration::from_secs(45));
    assert_eq!(tool_call(short, None).await.1.as_secs(), 47);
    let mut none = plan(50, false);
    none.limits.progress_cap = Some(Duration::from_secs(1));
    assert_eq!(tool_call(none, None).await.1.as_secs(), 32, "never less than the tool's own time");
}
