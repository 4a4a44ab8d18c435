//! Tests commands and handlers as real processes, with this program as their launcher.

use std::borrow::Cow;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_adapters::command::{
    CallLine, CommandExecutor, CommandSettings, CommandSource, CommandTemplate, CommandTools,
    ErrorText,
};
use toolbooth_adapters::handlers::{HandlerFolder, Handlers, Language};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::{
    CallerSettings, Child, Credentials, McpServer, ServerSettings, ServerTransport,
};
use toolbooth_adapters::process::{self, Bounds};
use toolbooth_adapters::sandbox::ProfileSetting;
use toolbooth_adapters::secrets::Setting;
use toolbooth_adapters::{CommandLine, ProgramEnd};
use toolbooth_contracts::contract::OnSignal;
use toolbooth_contracts::conversation::CancelHandle;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::{ExecutionError, ToolSource};
use toolbooth_contracts::sandbox::{NetProfile, SandboxLimits, SandboxProfile};
use toolbooth_contracts::secret_location::SecretLocation;
use toolbooth_contracts::trust::{TrustLevel, TrustLevels};
use toolbooth_contracts::{
    Caller, Conversation, Dispatch, Effect, ErrorCode, ExecutionLog, Executor, Identity, Outcome,
    ToolContract, ToolOutput,
};

use crate::calls;

/// A time limit that no test reaches.
const FAR_MS: u64 = 100_000;

fn launcher() -> Launcher {
    Launcher::of_this_program(None)
}

fn line(words: &[&str]) -> CommandLine {
    let argv = words.iter().map(|word| (*word).into()).collect();
    CommandLine { argv, ..CommandLine::default() }
}

fn shell(script: &str) -> CommandLine {
    line(&["sh", "-c", script])
}

fn contract(id: &str, trust: &str, sandbox: Option<Value>) -> ToolContract {
    let policy = json!({"timeoutMs": 10_000, "trustLevel": trust});
    let mut changes = json!({"toolId": id, "policy": policy});
    if let Some(sandbox) = sandbox {
        changes["sandbox"] = sandbox;
    }
    calls::contract(json!({"localRuntimeId": "x"}), changes)
}

fn dispatch(contract: ToolContract, arguments: &Value) -> Dispatch {
    calls::dispatch(contract, &arguments.to_string())
}

async fn execute(
    executor: &dyn Executor,
    dispatch: Dispatch,
) -> Result<ToolOutput, ExecutionError> {
    let (conversation, _cancel) = Conversation::detached();
    calls::answered(executor.execute(dispatch, conversation).await)
}

fn text(output: &ToolOutput) -> Cow<'_, str> {
    output.payload.content.as_ref().unwrap()[0].as_text().unwrap()
}

fn free(max: usize) -> Bounds<'static> {
    Bounds::free(max)
}

async fn ends_are_told_apart() {
    let (conversation, _cancel) = Conversation::detached();
    let launcher = launcher();
    let run = |script: &'static str| {
        let (launcher, conversation) = (launcher.clone(), conversation.clone());
        async move {
            process::run(&launcher, &shell(script), b"in".to_vec(), free(100), &conversation)
                .await
                .unwrap()
        }
    };
    let done = run("cat; echo err >&2; exit 3").await;
    assert_eq!(
        (done.ended, done.stdout, done.stderr),
        (ProgramEnd::Exit(3), b"in".to_vec(), b"err\n".to_vec())
    );
    assert_eq!(run("kill -9 $$").await.ended, ProgramEnd::Signal(9));
    assert!(matches!(run("yes").await.ended, ProgramEnd::OutputLimit(_)));
    assert!(
        process::run(&launcher, &line(&["/no/such"]), Vec::new(), free(1), &conversation)
            .await
            .is_err()
    );
    let timed = Bounds { timeout: Some(Duration::from_millis(100)), ..free(100) };
    let done = process::run(&launcher, &shell("sleep 60"), Vec::new(), timed, &conversation).await;
    assert_eq!(done.unwrap().ended.kind(), "timeout");
}

async fn cancelling_ends_everything() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let script = format!(
        "setsid sleep 600 & echo $! > {0}.tmp; mv {0}.tmp {0}; trap '' TERM; wait",
        pids.display()
    );
    let (conversation, cancel) = Conversation::detached();
    let (launcher, line) = (launcher(), shell(&script));
    let running = process::run(&launcher, &line, Vec::new(), free(100), &conversation);
    let canceller = async {
        until(|| pids.exists()).await;
        cancel.cancel();
    };
    let (done, ()) = tokio::join!(running, canceller);
    assert_eq!(done.unwrap().ended, ProgramEnd::Cancelled);
    let pid = std::fs::read_to_string(&pids).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the grandchild is still there");
}

async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never");
}

fn source(script: &str, timeout_ms: u64) -> CommandSource {
    let tools = CommandTools {
        name: "test".into(),
        discover: shell(script),
        call: shell(script),
        discover_timeout: Duration::from_millis(timeout_ms),
        listing_bytes_max: 10_000,
        error_text: ErrorText::Safe,
        sandbox: None,
        trust: TrustLevel::Untrusted,
    };
    CommandSource::new(tools, launcher())
}

async fn both_forms_of_declarations_are_read() {
    let script = r#"echo '[{"name":"a","parametersJsonSchema":{"type":"object"}},{"functionDeclarations":[{"name":"b","description":"d"}]},{"x":1},{"name":"-rf"}]'; echo noise >&2"#;
    let listing = source(script, FAR_MS).list().await.unwrap();
    let names: Vec<&str> = listing.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(listing.problems.len(), 2, "{:?}", listing.problems);
}

async fn bad_commands_get_errors_that_name_them() {
    for (script, expected) in [
        ("echo nonsense", "no JSON"),
        ("echo '{}'", "did not print a list"),
        ("echo oops >&2; exit 7", "exit code 7: oops"),
        ("kill -9 $$", "signal 9"),
        ("yes", "more than 10000 bytes"),
        ("sleep 60", "did not answer"),
        ("printf '\\377'", "no JSON"),
    ] {
        let timeout_ms = if expected == "did not answer" { 700 } else { FAR_MS };
        let error = source(script, timeout_ms).list().await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("sh -c"), "{script}: {error}");
    }
}

fn scripts(levels: TrustLevels) -> CommandExecutor {
    let template = ["sh", "-c", "{script}"].map(str::to_owned);
    let settings = CommandSettings {
        line: CallLine::Filled {
            line: line(&["sh"]),
            template: CommandTemplate::parse(&template).unwrap(),
        },
        error_text: ErrorText::Safe,
        sandbox: None,
        levels,
    };
    CommandExecutor::new(settings, launcher())
}

async fn trust_decides_how_a_command_is_contained() {
    let levels = TrustLevels::with([("vendor".to_owned(), TrustLevel::Sandbox)].into());
    let executor = scripts(levels);
    for (trust, contained) in [
        ("trusted", false),
        ("sandbox", true),
        ("untrusted", true),
        ("vendor", true),
        ("odd", true),
    ] {
        let call =
            dispatch(contract("t.t", trust, None), &json!({"script": "ls /var/lib; echo done"}));
        let execution_log = call.execution_log.clone();
        let output = execute(&executor, call).await.unwrap();
        let seen = execution_log.take().sandbox;
        assert_eq!(seen.is_some(), contained, "{trust}");
        assert_eq!(text(&output) == "done", contained, "{trust}: {}", text(&output));
        if let Some(sandbox) = seen {
            assert!(sandbox.missing.is_empty() && sandbox.digest.len() == 64);
        }
    }
}

async fn each_limit_has_its_word_and_its_code() {
    let executor = scripts(TrustLevels::default());
    // Only the tested limit can be reached; the others leave a margin for a slow machine.
    let limits = |wall_ms: u64| json!({"limits": {"wallMs": wall_ms, "cpuS": 1, "memoryMb": 48, "stdoutBytes": 1000}});
    for (script, wall_ms, word, code, safe) in [
        ("sleep 600", 1_500, "timeout", ErrorCode::Timeout, None),
        ("while :; do :; done", FAR_MS, "timeout", ErrorCode::Timeout, None),
        ("yes", FAR_MS, "output-limit", ErrorCode::ResultTooLarge, None),
        (
            "for i in 1 2 3 4; do (head -c 30000000 /dev/zero | tail | sleep 1) & done; wait; exit 1",
            FAR_MS,
            "memory-limit",
            ErrorCode::AdapterFailed,
            Some("memory"),
        ),
    ] {
        let contract = contract("t.t", "sandbox", Some(limits(wall_ms)));
        let call = dispatch(contract, &json!({"script": script}));
        let error = match execute(&executor, call).await {
            Err(error) => error,
            Ok(_) if word == "memory-limit" && !has_cgroup().await => {
                eprintln!("SKIPPED: memory-cgroup, for the memory of several processes");
                continue;
            }
            Ok(output) => panic!("{script}: {output:?}"),
        };
        assert_eq!((error.code, error.effect), (code, Effect::Unknown), "{script}: {error:?}");
        assert!(error.internal.starts_with(word), "{script}: {}", error.internal);
        assert_eq!(error.safe.is_some(), safe.is_some());
        assert!(error.safe.is_none_or(|told| told.contains(safe.unwrap_or_default())));
    }
    let call =
        dispatch(contract("t.t", "sandbox", Some(limits(FAR_MS))), &json!({"script": "exit 3"}));
    let output = execute(&executor, call).await.unwrap();
    assert!(output.is_error && text(&output).contains("exit code 3"), "{output:?}");
}

/// After a signal, the effect is unknown unless the contract specifies one.
async fn a_signal_leaves_the_effect_unknown() {
    let executor = scripts(TrustLevels::default());
    let limits = json!({
        "limits": {"fileMb": 1}, "fs": {"tmpMb": 8}, "enforce": "best-effort",
    });
    let signals = [
        ("echo half-done; kill -9 $$", "signal 9"),
        // The kernel enforces the limit of a file's size by a signal.
        ("exec head -c 4000000 /dev/zero > /tmp/x", "signal 25"),
    ];
    for (script, expected) in signals {
        let mut contract = contract("t.t", "sandbox", Some(limits.clone()));
        let call = dispatch(contract.clone(), &json!({"script": script}));
        let error = execute(&executor, call).await.unwrap_err();
        assert_eq!(
            (error.code, error.effect),
            (ErrorCode::AdapterFailed, Effect::Unknown),
            "{error:?}"
        );
        assert!(error.safe.as_deref().unwrap().contains(expected), "{error:?}");
        assert!(error.internal.starts_with("signal"), "{error:?}");
        // Only the operator is told what it wrote.
        let wrote = script.starts_with("echo");
        assert_eq!(error.internal.ends_with("\nstdout: half-done"), wrote, "{error:?}");
        contract.idempotency.on_signal = Some(OnSignal::Failed);
        let call = dispatch(contract, &json!({"script": script}));
        let output = execute(&executor, call).await.unwrap();
        assert!(output.is_error && text(&output).contains(expected), "{output:?}");
    }
}

/// A signal that ends a handler's process is judged as for a command.
async fn a_signal_in_a_handler_leaves_the_effect_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let file = "exports.end = () => process.kill(process.pid, 'SIGKILL');";
    std::fs::write(folder.path().join("os.cjs"), file).unwrap();
    let handlers = handlers(folder.path(), Language::Node, ProfileSetting::Unsaid);
    let mut contract = contract("os.end", "trusted", None);
    let call = dispatch(contract.clone(), &json!({}));
    let error = execute(&handlers, call).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
    contract.idempotency.on_signal = Some(OnSignal::Failed);
    let output = execute(&handlers, dispatch(contract, &json!({}))).await.unwrap();
    assert!(output.is_error && text(&output).contains("signal 9"), "{output:?}");
}

async fn has_cgroup() -> bool {
    let launcher = launcher();
    let found = launcher.primitives().await.unwrap();
    found.iter().any(|one| one.primitive.as_str() == "memory-cgroup" && one.missing.is_none())
}

async fn programs_are_found_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let release = folder.path().join("release-1");
    std::fs::create_dir_all(release.join("bin")).unwrap();
    let write = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = release.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    write("bin/tool", "#!/bin/sh\ncat \"$(dirname \"$0\")/../beside\"");
    write("beside", "found\n");
    write("main.sh", ". \"$(dirname \"$0\")/beside.sh\"");
    write("beside.sh", "echo found\n");
    write("package.json", "{}");
    let current = folder.path().join("current");
    std::os::unix::fs::symlink("release-1", &current).unwrap();
    let shown = |path: &str| current.join(path).display().to_string();
    let (conversation, _cancel) = Conversation::detached();
    let profile = toolbooth_adapters::sandbox::default_profile();
    for words in [vec![shown("bin/tool")], vec!["/bin/sh".to_owned(), shown("main.sh")]] {
        let written = words.len();
        let argv = words.into_iter().map(Into::into).collect();
        let line =
            CommandLine { argv, written, cwd: Some("/usr".into()), ..CommandLine::default() };
        let bounds = Bounds { profile: Some(&profile), ..free(1000) };
        let done =
            process::run(&launcher(), &line, Vec::new(), bounds, &conversation).await.unwrap();
        assert_eq!(done.stdout, b"found\n", "{done:?}");
    }
}

async fn options_and_nul_never_reach_a_command() {
    let template = ["ls", "{path}"].map(str::to_owned);
    let settings = CommandSettings {
        line: CallLine::Filled {
            line: line(&["ls"]),
            template: CommandTemplate::parse(&template).unwrap(),
        },
        error_text: ErrorText::Safe,
        sandbox: None,
        levels: TrustLevels::default(),
    };
    let executor = CommandExecutor::new(settings, launcher());
    for path in ["-la", "a\0b"] {
        let call = dispatch(contract("t.t", "trusted", None), &json!({"path": path}));
        let error = execute(&executor, call).await.unwrap_err();
        assert_eq!(error.effect, Effect::NotStarted);
        assert!(error.safe.unwrap().contains("`path`"));
    }
}

async fn escapes_hide_no_secret() {
    let token = Setting::Template("${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned());
    let template = ["sh", "-c", "{script}"].map(str::to_owned);
    let settings = CommandSettings {
        line: CallLine::Filled {
            line: CommandLine { env: vec![("TOKEN".to_owned(), token)], ..line(&["sh"]) },
            template: CommandTemplate::parse(&template).unwrap(),
        },
        error_text: ErrorText::Full,
        sandbox: None,
        levels: TrustLevels::default(),
    };
    let executor = CommandExecutor::new(settings, launcher());
    for script in [
        r#"printf '%s' '{"hun\u0074er2": "of hun\u0074er2"}'"#,
        r#"printf '\377 of hunter2'"#,
        r#"printf 'of hun\033[1mter2'"#,
        r#"printf 'of hun\007ter2' >&2; exit 1"#,
    ] {
        let call = dispatch(contract("t.t", "trusted", None), &json!({ "script": script }));
        let output = execute(&executor, call).await.unwrap();
        let data = output.payload.structured_content.as_ref().map(ToString::to_string);
        assert_eq!(data.is_some(), script.contains('{'), "{script}");
        let shown = text(&output);
        let said = data.as_deref().unwrap_or(&shown);
        let told = format!("{said} {:?}", output.internal);
        assert!(told.contains("of ${TOOLBOOTH_NO_TOKEN}") && !told.contains("hunter2"), "{told}");
    }
}

async fn a_profile_that_names_nothing_that_is_there_is_refused() {
    let executor = scripts(TrustLevels::default());
    let sandbox = json!({"fs": {"read": ["./not-there"]}});
    let call = dispatch(contract("t.t", "sandbox", Some(sandbox)), &json!({"script": "true"}));
    let error = execute(&executor, call).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::SandboxUnavailable, Effect::NotStarted));
    assert!(error.internal.contains("not-there"), "{}", error.internal);
    let same = contract("t.t", "sandbox", Some(json!({"fs": {"read": ["./not-there"]}})));
    let Readiness::NotConfigured(reason) = executor.readiness(&same, false).await else {
        panic!("it is told before");
    };
    assert!(reason.contains("not-there"), "{reason}");
}

/// Starts a server on loopback that responds with a greeting, and returns its port.
fn hello() -> u16 {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut head = [0u8; 1024];
            let count = stream.read(&mut head).unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            let body = format!("hello to {}", head.lines().next().unwrap_or_default());
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    port
}

const FETCH: &str = r#"
import http.client, os, sys, urllib.request, urllib.error
from urllib.parse import urlsplit
for url in sys.argv[1:]:
    if url.startswith("tunnel:"):
        proxy = urlsplit(os.environ["HTTPS_PROXY"])
        link = http.client.HTTPConnection(proxy.hostname, proxy.port)
        link.set_tunnel("127.0.0.1", int(url.split(":")[1]))
        link.request("GET", "/through")
        print(link.getresponse().read().decode())
        continue
    try:
        print(urllib.request.urlopen(url, timeout=5).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except Exception as error:
        print("failed", error)
"#;

async fn the_way_out_leads_to_named_hosts_alone() {
    let (named, other) = (hello(), hello());
    let template = ["python3", "-c", FETCH, "{urls}"].map(str::to_owned);
    let settings = CommandSettings {
        line: CallLine::Filled {
            line: line(&["/usr/bin/python3"]),
            template: CommandTemplate::parse(&template).unwrap(),
        },
        error_text: ErrorText::Safe,
        sandbox: None,
        levels: TrustLevels::default(),
    };
    let executor = CommandExecutor::new(settings, launcher());
    let sandbox =
        json!({"net": {"hosts": [format!("127.0.0.1:{named}"), format!("localhost:{named}")]}});
    let urls = [
        format!("http://127.0.0.1:{named}/a?b"),
        format!("http://127.0.0.1:{other}/"),
        format!("http://localhost:{named}/"),
        "https://api.example.com/".to_owned(),
        format!("tunnel:{named}"),
    ];
    let call = dispatch(contract("t.t", "sandbox", Some(sandbox)), &json!({"urls": urls}));
    let execution_log = call.execution_log.clone();
    let output = execute(&executor, call).await.unwrap();
    let shown = text(&output);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "hello to GET /a?b HTTP/1.1");
    assert!(
        lines[1].starts_with("403 toolbooth refused") && lines[1].contains("not among"),
        "{lines:?}"
    );
    // A name is not a literal address, so it must not lead to loopback.
    assert!(lines[2].starts_with("403") && lines[2].contains("loopback"), "{lines:?}");
    assert!(lines[3].contains("403"), "{lines:?}");
    assert_eq!(lines[4], "hello to GET /through HTTP/1.1");
    let refused: Vec<(String, u16)> =
        execution_log.take().egress.into_iter().map(|one| (one.host, one.port)).collect();
    let expected = [("127.0.0.1", other), ("localhost", named), ("api.example.com", 443)];
    assert_eq!(refused, expected.map(|(host, port)| (host.to_owned(), port)));
}

fn own(profile: SandboxProfile) -> ProfileSetting {
    let enforce = Some(profile.enforce);
    ProfileSetting::Profile { profile: Box::new(profile), enforce }
}

fn handlers(folder: &Path, language: Language, sandbox: ProfileSetting) -> Handlers {
    let folder = HandlerFolder {
        folder: folder.to_owned(),
        language: Some(language),
        domains: None,
        interpreter: match language {
            Language::Python => Some("/usr/bin/python3".to_owned()),
            Language::Node => None,
        },
        workers_max: 4,
        env: Vec::new(),
        sandbox,
    };
    Handlers::new(vec![folder], TrustLevels::default(), launcher())
}

fn handler_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let js = r#"
export const add = ({ a, b }) => ({ sum: a + b });
export const pid = () => process.pid;
export const crash = () => process.exit(9);
export const hang = () => new Promise(() => {});
export const spin = () => { for (;;); };
export const fail = () => { throw new Error("no such task"); };
export const huge = () => "x".repeat(3_000_000);
export const eat = () => { const all = []; for (;;) all.push(Buffer.alloc(1 << 20, 1)); };
export const noise = () => { process.stdout.write("noise\\n"); return "fine"; };
export const list = async () => (await import("node:fs")).readdirSync("/var");
"#;
    let py = r#"
import os, subprocess, time
def noise(args, context=None):
    subprocess.run(["cat"])
    print("noise")
    return "fine"
def odd(args, context=None): return float("nan")
def add(args, context=None): return {"sum": args["a"] + args["b"]}
def crash(args, context=None): os._exit(9)
def hang(args, context=None): time.sleep(1000)
def fail(args, context=None): raise ValueError("no such task")
"#;
    std::fs::write(folder.path().join("node.js"), js).unwrap();
    std::fs::write(folder.path().join("py.py"), py).unwrap();
    folder
}

async fn handlers_of_both_languages_answer() {
    let folder = handler_folder();
    for (language, domain) in [(Language::Node, "node"), (Language::Python, "py")] {
        let handlers = handlers(folder.path(), language, ProfileSetting::Unsaid);
        let tool = |name: &str| contract(&format!("{domain}.{name}"), "sandbox", None);
        let call = dispatch(tool("add"), &json!({"a": 1, "b": 2}));
        let execution_log = call.execution_log.clone();
        let output = execute(&handlers, call).await.unwrap();
        assert_eq!(output.payload.structured_content.unwrap(), json!({"sum": 3}));
        assert!(execution_log.take().sandbox.unwrap().missing.is_empty());
        let output = execute(&handlers, dispatch(tool("fail"), &json!({}))).await.unwrap();
        assert!(output.is_error && text(&output).contains("no such task"));
        // Handlers that print, or read standard input, do not disturb the messages.
        let output = execute(&handlers, dispatch(tool("noise"), &json!({}))).await.unwrap();
        assert_eq!(text(&output), "fine");
        if language == Language::Python {
            let error = execute(&handlers, dispatch(tool("odd"), &json!({}))).await.unwrap_err();
            assert_eq!(
                (error.code, error.effect),
                (ErrorCode::InvalidToolResult, Effect::Completed)
            );
        }
        // A worker that dies is replaced.
        let error = execute(&handlers, dispatch(tool("crash"), &json!({}))).await.unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::AdapterFailed, Effect::Unknown));
        assert!(
            error.internal.contains("exit: the worker ended with code 9"),
            "{}",
            error.internal
        );
        assert!(execute(&handlers, dispatch(tool("add"), &json!({"a": 1, "b": 2}))).await.is_ok());
        // A worker that hangs is ended with its call, and replaced too.
        let (conversation, cancel) = Conversation::detached();
        let hanging = handlers.execute(dispatch(tool("hang"), &json!({})), conversation);
        let error = calls::answered(cancelled_after(hanging, cancel).await).unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::Cancelled, Effect::Unknown));
        assert!(execute(&handlers, dispatch(tool("add"), &json!({"a": 1, "b": 2}))).await.is_ok());
        // A missing handler is not configured, and its readiness reports this before a call.
        let error = execute(&handlers, dispatch(tool("gone"), &json!({}))).await.unwrap_err();
        assert_eq!((error.code, error.effect), (ErrorCode::NotConfigured, Effect::NotStarted));
        assert!(matches!(
            handlers.readiness(&tool("gone"), false).await,
            Readiness::NotConfigured(_)
        ));
        let unknown = contract("unknown.add", "sandbox", None);
        let error = execute(&handlers, dispatch(unknown, &json!({}))).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConfigured);
        handlers.close().await;
    }
}

async fn cancelled_after(run: impl Future<Output = Outcome>, cancel: CancelHandle) -> Outcome {
    tokio::pin!(run);
    // The worker is already running, so it has received the call by then.
    match tokio::time::timeout(Duration::from_secs(3), &mut run).await {
        Ok(outcome) => outcome,
        Err(_) => {
            cancel.cancel();
            run.await
        }
    }
}

async fn limits_of_handlers_cut() {
    let folder = handler_folder();
    let profile = SandboxProfile {
        limits: Some(SandboxLimits { memory_mb: Some(256), ..SandboxLimits::default() }),
        ..toolbooth_adapters::sandbox::default_profile()
    };
    let handlers = handlers(folder.path(), Language::Node, own(profile));
    let tool = |name: &str| contract(&format!("node.{name}"), "sandbox", None);
    let error = execute(&handlers, dispatch(tool("huge"), &json!({}))).await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::ResultTooLarge, Effect::Unknown));
    let error = execute(&handlers, dispatch(tool("eat"), &json!({}))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::AdapterFailed);
    let output = execute(&handlers, dispatch(tool("list"), &json!({}))).await.unwrap();
    assert_eq!(output.payload.structured_content.unwrap(), json!(["tmp"]), "it sees no other /var");
    handlers.close().await;
}

async fn a_thousand_calls_share_few_workers() {
    let folder = handler_folder();
    let handlers = Arc::new(handlers(folder.path(), Language::Node, ProfileSetting::Unsaid));
    let slots = Arc::new(tokio::sync::Semaphore::new(64));
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..1000u32 {
        let (handlers, slots) = (Arc::clone(&handlers), Arc::clone(&slots));
        calls.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            let name = if n % 10 == 0 { "node.pid" } else { "node.add" };
            let call = dispatch(contract(name, "sandbox", None), &json!({"a": n, "b": 1}));
            let output =
                execute(&*handlers, call).await.unwrap().payload.structured_content.unwrap();
            if n % 10 != 0 {
                assert_eq!(output, json!({"sum": n + 1}));
            }
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    assert!((1..=4).contains(&launchers()), "{} launchers", launchers());
    handlers.close().await;
    until(|| launchers() == 0).await;
}

/// Returns the number of launchers below the standby launchers of this process.
fn launchers() -> usize {
    let parents: Vec<(String, String)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The process name may contain any character; state and parent follow it.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_owned();
            Some((entry.file_name().to_str()?.to_owned(), parent))
        })
        .collect();
    let own = std::process::id().to_string();
    let standing: Vec<&String> =
        parents.iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect();
    parents.iter().filter(|(_, parent)| standing.contains(&parent)).count()
}

async fn a_contract_that_asks_for_less_than_its_worker_has_is_told() {
    let folder = handler_folder();
    let open = SandboxProfile {
        net: Some(NetProfile { hosts: vec!["*".to_owned()] }),
        ..SandboxProfile::default()
    };
    let handlers = handlers(folder.path(), Language::Node, own(open));
    let strict = contract("node.add", "sandbox", Some(json!({})));
    let told = handlers.satisfies_sandbox(&strict, strict.sandbox.as_ref().unwrap()).unwrap_err();
    assert!(told.to_string().contains("may reach `*`"), "{told}");
    let same = contract("node.add", "sandbox", Some(json!({"net": {"hosts": ["*"]}})));
    assert!(handlers.satisfies_sandbox(&same, same.sandbox.as_ref().unwrap()).is_ok());
}

/// A server that returns the token it was started with.
const TELLER: &str = r#"
import json, os, random, sys
own = random.getrandbits(60)
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if id is None:
        continue
    answer = {"jsonrpc": "2.0", "id": id}
    if method == "initialize":
        answer["result"] = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/call":
        token = os.environ.get("TOKEN", "none")
        text = f"{len(token)} {own} {token}"
        answer["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(answer), flush=True)
"#;

async fn callers_have_servers_and_credentials_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    for (name, token) in [("alice", "alice-token-1"), ("bob", "bob-token-22")] {
        let path = folder.path().join(name);
        std::fs::write(&path, token).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let secrets = folder.path().to_owned();
    let is_moved = Arc::<AtomicBool>::default();
    let moved = Arc::clone(&is_moved);
    let credentials: Credentials = Arc::new(move |caller: &Caller| {
        let name = caller.name().strip_prefix("key:")?;
        // The set of a caller can change while the gateway runs.
        let name = if moved.load(Ordering::SeqCst) && name == "alice" { "bob" } else { name };
        let path = secrets.join(name);
        let location = SecretLocation::File(path.display().to_string());
        path.exists().then(|| vec![("TOKEN".to_owned(), Setting::Secret(location))])
    });
    let line = CommandLine { cwd: Some("/".into()), ..line(&["/usr/bin/python3", "-c", TELLER]) };
    let profile = Some(toolbooth_adapters::sandbox::server_profile());
    let server = McpServer::new(
        ServerSettings {
            name: "teller".to_owned(),
            transport: ServerTransport::Stdio(Box::new(Child { line, profile })),
            startup_timeout: Duration::from_secs(20),
            callers: Some(CallerSettings {
                server: "teller".to_owned(),
                credentials: Some(credentials),
            }),
        },
        launcher(),
        ExecutionLog::default(),
    );
    let call = async |name: &str| {
        let mut call = dispatch(contract("t.t", "untrusted", None), &json!({}));
        call.caller = Caller::authenticated(Identity::named(name).unwrap());
        execute(&*server, call).await
    };
    let said = |output: ToolOutput| -> Vec<String> {
        text(&output).split(' ').map(str::to_owned).collect()
    };
    let (alice, bob) =
        (said(call("key:alice").await.unwrap()), said(call("key:bob").await.unwrap()));
    // Each caller has a process of its own with its own token, which no result contains.
    assert_eq!((alice[0].as_str(), bob[0].as_str()), ("13", "12"));
    assert_ne!(alice[1], bob[1]);
    assert!(alice[2].starts_with("<file:") && bob[2].starts_with("<file:"), "{alice:?} {bob:?}");
    assert_eq!(said(call("key:alice").await.unwrap())[1], alice[1], "it is kept");
    is_moved.store(true, Ordering::SeqCst);
    let other = said(call("key:alice").await.unwrap());
    assert_eq!(other[0], "12", "the credentials of the other set are used from then on");
    assert!(other[1] != alice[1] && other[1] != bob[1], "in a process of its own");
    let error = call("key:eve").await.unwrap_err();
    assert_eq!((error.code, error.effect), (ErrorCode::NotConfigured, Effect::NotStarted));
    server.close().await;
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    trials!["processes";
        ends_are_told_apart,
        cancelling_ends_everything,
        both_forms_of_declarations_are_read,
        bad_commands_get_errors_that_name_them,
        trust_decides_how_a_command_is_contained,
        each_limit_has_its_word_and_its_code,
        a_signal_leaves_the_effect_unknown,
        a_signal_in_a_handler_leaves_the_effect_unknown,
        programs_are_found_through_links,
        options_and_nul_never_reach_a_command,
        escapes_hide_no_secret,
        a_profile_that_names_nothing_that_is_there_is_refused,
        the_way_out_leads_to_named_hosts_alone,
        handlers_of_both_languages_answer,
        limits_of_handlers_cut,
        a_thousand_calls_share_few_workers,
        a_contract_that_asks_for_less_than_its_worker_has_is_told,
        callers_have_servers_and_credentials_of_their_own,
    ]
}
