//! Provides the tests with the binary, the test set-up, a small HTTP client and work folders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

pub mod approval_kills;
pub mod child_kills;
pub mod history_kills;
pub mod issuer;
pub mod mcp;
pub mod ports;
pub mod postgres;
pub mod stage;
pub mod tls;
pub mod torture;
pub mod waiting;

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests stand in the repository")
        .to_owned()
}

/// Returns the folder that the build writes to.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// Returns the binary, which `cargo xtask test` builds first.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("TOOLBOOTH_BIN")
        .map_or_else(|| target().join("debug/toolbooth"), PathBuf::from);
    assert!(path.is_file(), "build it first: cargo build -p toolbooth ({})", path.display());
    path
}

/// Returns the path of a file of the test set-up. If it is missing, prints a notice and returns `None`;
/// panics in CI.
pub fn set_up(name: &str) -> Option<PathBuf> {
    let path = target().join("test-env").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(&format!("{} is not there; run `cargo xtask test`", path.display()));
    None
}

/// Reports that a test skips a part, because this machine lacks `what`.
///
/// # Panics
/// In CI, where machines lack nothing.
pub fn skip(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI must not skip anything: {what}");
    println!("SKIPPED: {what}");
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Returns the search path of programs, with the system's folders first. Where `python3` is a shim, each of
/// its starts takes a tenth of a second.
pub fn search_path() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    if Path::new("/usr/bin/python3").is_file() { format!("/usr/bin:/bin:{own}") } else { own }
}

/// A runtime of handlers that can write to their own folder, as the handlers of these tests do.
pub const WRITING_HANDLERS: &str = "[runtimes.own]\nkind = \"handlers\"\ndir = \"handlers\"\nsandbox = { base = \"default\", fs = { write = [\".\"] } }\n";

/// The variable with the folder in which the binary stores trusted configurations.
pub const STATE: &str = "XDG_STATE_HOME";

/// Trusts a configuration like a user who has read it, in a state folder of the test.
pub fn trust(configuration: &Path, state: &Path, env: &[(String, String)]) -> Output {
    let mut command = Command::new(binary());
    command.args(["trust", "--yes"]).arg(configuration);
    command.envs(env.iter().map(|(name, value)| (name, value))).env(STATE, state);
    waiting::output_of(&mut command, b"")
}

/// A folder with a configuration, a registry, handlers and scripts. The content that tests write is trusted
/// before a command uses it.
pub struct Place {
    folder: tempfile::TempDir,
    state: tempfile::TempDir,
    env: Vec<(String, String)>,
    /// The configuration in its trusted state.
    trusted: Mutex<Option<[Vec<u8>; 2]>>,
    is_foreign: bool,
}

impl Place {
    pub fn new() -> Self {
        let folder = || tempfile::tempdir().expect("a folder");
        let (folder, state) = (folder(), folder());
        Self { folder, state, env: Vec::new(), trusted: Mutex::new(None), is_foreign: false }
    }

    /// Creates a folder with an untrusted configuration.
    pub fn foreign() -> Self {
        Self { is_foreign: true, ..Self::new() }
    }

    /// Trusts the current configuration, and returns the folder in which the binary stores that.
    pub fn state(&self) -> &Path {
        self.trust();
        self.state.path()
    }

    /// Trusts the current configuration.
    fn trust(&self) {
        if self.is_foreign {
            return;
        }
        let files = ["toolbooth.toml", "tools.registry.json"];
        let now = files.map(|name| std::fs::read(self.path().join(name)).unwrap_or_default());
        let mut trusted = self.trusted.lock().expect("no test panics here");
        let is_empty = now.iter().all(Vec::is_empty);
        if is_empty || trusted.as_ref() == Some(&now) {
            return;
        }
        // An unreadable configuration is rejected by the command that uses it.
        trust(self.path(), self.state.path(), &self.env);
        *trusted = Some(now);
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(&path, text).expect("writes");
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the environment of a client that starts the gateway.
    pub fn environment(&self) -> Value {
        let mut all = serde_json::Map::from_iter([("PATH".to_owned(), json!(search_path()))]);
        if let Ok(home) = std::env::var("HOME") {
            all.insert("HOME".to_owned(), json!(home));
        }
        all.insert(STATE.to_owned(), json!(self.state()));
        all.extend(self.env.iter().map(|(name, value)| (name.clone(), json!(value))));
        Value::Object(all)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(self.path());
        for name in ["MCP_TOOLS", "TOOLS_POLICY", "TOOL_WHITELIST"] {
            command.env_remove(name);
        }
        command.env("PATH", search_path()).env(STATE, self.state());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        waiting::output_of(&mut self.command(arguments), b"")
    }

    /// Runs a command with `--format json`; returns its document and its exit code.
    pub fn json(&self, arguments: &[&str]) -> (Value, i32) {
        let mut all = arguments.to_vec();
        all.extend(["--format", "json"]);
        let output = self.run(&all);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = serde_json::from_str(&text).unwrap_or_else(|error| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            panic!("{arguments:?} printed no JSON ({error}):\n{text}\n{stderr}")
        });
        (value, output.status.code().unwrap_or(-1))
    }

    /// Returns the records of one call: its terminal event, its agent log and its receipt.
    pub fn records(&self, call_id: &str) -> Records {
        let of = |arguments: &[&str], list: &str| -> Vec<Value> {
            let (value, exit) = self.json(arguments);
            assert_eq!(exit, 0, "{value}");
            value[list].as_array().cloned().unwrap_or_default()
        };
        Records {
            events: of(&["audit", "query", "--call", call_id], "events"),
            logs: of(&["logs", "query", "--call", call_id], "logs"),
            receipts: of(&["receipts", "list", "--call", call_id], "receipts"),
        }
    }

    pub fn assert_sound(&self) {
        let (report, exit) = self.json(&["audit", "verify"]);
        assert_eq!((&report["ok"], exit), (&json!(true), 0), "{report}");
    }

    /// Starts the gateway and waits until it listens.
    pub fn serve(&self) -> RunningGateway {
        self.serve_with(&[])
    }

    /// As [`Place::serve`], with more options.
    pub fn serve_with(&self, options: &[&str]) -> RunningGateway {
        self.serve_at("127.0.0.1:0", options)
    }

    /// As [`Place::serve_with`], at an address.
    pub fn serve_at(&self, address: &str, options: &[&str]) -> RunningGateway {
        let mut arguments = vec!["serve", "--http", address];
        arguments.extend(options);
        let mut child = self
            .command(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the gateway starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let said = Arc::<Mutex<String>>::default();
        let own = Arc::clone(&said);
        let words = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                own.lock().expect("the text").push_str(&format!("{line}\n"));
            }
        });
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        stdout.read_line(&mut line).expect("a line");
        let Some((_, address)) =
            line.trim().strip_prefix("listening on ").and_then(|url| url.split_once("://"))
        else {
            let _ = child.kill();
            let _ = words.join();
            panic!("the gateway does not listen: {line}{}", said.lock().expect("the text"));
        };
        let data = self.path().join(".toolbooth");
        RunningGateway {
            address: address.to_owned(),
            data,
            child,
            stdout,
            said,
            words: Some(words),
        }
    }

    /// Runs a list and calls with the Python MCP client, over HTTP if `url` is given, else over
    /// stdio.
    pub fn client(&self, python: &Path, url: Option<&str>, mode: &str, calls: &Value) -> Value {
        let mut job = json!({ "mode": mode, "calls": calls });
        match url {
            Some(url) => job["url"] = json!(url),
            None => {
                job["command"] = json!([binary(), "stdio"]);
                job["env"] = self.environment();
                job["cwd"] = json!(self.path());
            }
        }
        let mut command = Command::new(python);
        command.arg(repository().join("tests/clients/mcp_client.py"));
        let output = waiting::output_of(&mut command, job.to_string().as_bytes());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            panic!("the client failed:\n{}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// The records of one call.
#[derive(Debug)]
pub struct Records {
    pub events: Vec<Value>,
    pub logs: Vec<Value>,
    pub receipts: Vec<Value>,
}

/// Returns the processor time that all threads of a process have used, also those that have ended.
pub fn cpu_of(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("its state");
    // The name before may contain anything. Times are in hundredths of a second (proc_pid_stat(5)).
    let (_, rest) = text.rsplit_once(") ").expect("its name");
    let words = rest.split(' ').skip(11).take(2);
    Duration::from_millis(10 * words.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>())
}

/// A running gateway; killed when it is dropped.
pub struct RunningGateway {
    pub address: String,
    /// The standard data folder.
    data: PathBuf,
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    /// Its standard error up to now.
    said: Arc<Mutex<String>>,
    words: Option<std::thread::JoinHandle<()>>,
}

impl RunningGateway {
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Returns the number of its connections from clients.
    pub fn connections(&self) -> usize {
        let port: u16 =
            self.address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel tells");
        // The local address, and the state of an established connection.
        let own = format!("0100007F:{port:04X}");
        let is_own = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some(&own) && words.nth(1) == Some("01")
        };
        table.lines().filter(is_own).count()
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time that all its threads have used.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.id())
    }

    /// Returns a field of its `/proc/PID/status`, such as `VmRSS:`, in MiB.
    pub fn memory_mib(&self, field: &str) -> u64 {
        self.memory_kib(field) / 1024
    }

    /// Returns a field of its `/proc/PID/status`, such as `VmRSS:`, in KiB.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
        let kib = line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        kib.expect("a number")
    }

    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill starts").success());
    }

    /// Waits until its standard error has a text this many times.
    pub fn until_said(&self, text: &str, times: usize) {
        waiting::until(text, || self.said.lock().expect("the text").matches(text).count() >= times);
    }

    /// Waits for the end. Returns the exit code, standard output after the first line, and standard
    /// error.
    pub fn wait(mut self) -> (Option<i32>, String, String) {
        let status = waiting::end_of(&mut self.child, "the gateway");
        let mut rest = String::new();
        let _ = self.stdout.read_to_string(&mut rest);
        self.words.take().map(std::thread::JoinHandle::join);
        let said = self.said.lock().expect("the text").clone();
        (status.code(), rest, said)
    }

    pub fn stop(self) -> (Option<i32>, String, String) {
        self.signal("TERM");
        self.wait()
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        request(&self.address, "GET", path, "", &[]).expect("an answer")
    }

    pub fn post(&self, path: &str, body: &str) -> (u16, Value) {
        request(&self.address, "POST", path, body, &[]).expect("an answer")
    }

    /// Opens a stream of changes with a bearer token, and waits until it is acknowledged.
    pub fn listen_as(&self, token: &str) -> TcpStream {
        let listen =
            json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
            "notifications": {"toolsListChanged": true},
            "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {}}}})
            .to_string();
        let mut stream = TcpStream::connect(&self.address).expect("connects");
        stream.set_read_timeout(Some(waiting::CEILING)).expect("is set");
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{listen}",
            self.address,
            listen.len()
        );
        stream.write_all(head.as_bytes()).expect("is read");
        let mut text = String::new();
        let mut buffer = [0u8; 4_096];
        while !text.contains("acknowledged") {
            let read = stream.read(&mut buffer).expect("an answer in time");
            assert!(read > 0, "the stream ended: {text}");
            text.push_str(&String::from_utf8_lossy(buffer.get(..read).unwrap_or_default()));
        }
        stream
    }

    /// Sends a request with a bearer token.
    pub fn ask_as(&self, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let token = format!("Bearer {token}");
        let headers = [("Authorization", token.as_str())];
        request(&self.address, method, path, body, &headers).expect("an answer")
    }

    /// Returns the operator key of the data folder.
    pub fn operator_key(&self) -> String {
        let key = std::fs::read_to_string(self.data.join("operator.key")).expect("the key");
        key.trim().to_owned()
    }

    /// As [`RunningGateway::get`], as the operator.
    pub fn operator_get(&self, path: &str) -> (u16, Value) {
        self.ask_as(&self.operator_key(), "GET", path, "")
    }

    /// As [`RunningGateway::post`], as the operator.
    pub fn operator_post(&self, path: &str, body: &str) -> (u16, Value) {
        self.ask_as(&self.operator_key(), "POST", path, body)
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request over a new connection; `None` if the connection breaks.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> Option<(u16, Value)> {
    let (head, body) = exchange(address, method, path, body, headers)?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(&body).unwrap_or(Value::String(body))))
}

/// As [`request`]; returns the head of the answer, and its body.
pub fn exchange(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(waiting::CEILING)).ok()?;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("waited {} s for the answer to {method} {path}", waiting::CEILING.as_secs())
        }
        read => read.ok()?,
    };
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body) } else { body.to_owned() };
    Some((head.to_owned(), body))
}

/// Reads one answer with a stated length from a connection that stays open.
///
/// # Panics
/// If the connection ends before.
pub fn read_answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        let read = stream.read(&mut piece).expect("an answer in time");
        assert!(read > 0, "the connection ended");
        answer.extend_from_slice(piece.get(..read).unwrap_or_default());
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.and_then(|length| length.parse().ok()).expect("a length") {
            return text.into_owned();
        }
    }
}

fn unchunk(body: &str) -> String {
    let (mut out, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size @ 1..) = usize::from_str_radix(size.trim(), 16) else { break };
        out.push_str(after.get(..size).unwrap_or(after));
        rest = after.get(size + 2..).unwrap_or("");
    }
    out
}
