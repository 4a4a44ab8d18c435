//! Sends and reads MCP messages as bytes, over HTTP and stdio, in both eras.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::stage::PATIENCE;
use crate::{Place, RunningGateway};

/// The revision without sessions.
pub const MODERN: &str = "2026-07-28";
/// The newest revision with sessions.
pub const LEGACY: &str = "2025-11-25";
/// The revision with batches.
pub const BATCHES: &str = "2025-03-26";

pub const JSON: (&str, &str) = ("Content-Type", "application/json");
pub const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");

/// Returns a JSON-RPC request with these parameters.
pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

/// Returns a notification.
pub fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// Returns a request of the modern era.
pub fn modern(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    for (name, value) in [
        ("protocolVersion", json!(MODERN)),
        ("clientCapabilities", json!({})),
        ("clientInfo", json!({ "name": "tester", "version": "1" })),
    ] {
        params["_meta"][format!("io.modelcontextprotocol/{name}")] = value;
    }
    request(id, method, params)
}

/// Returns the headers of a request of the modern era, from its body.
pub fn modern_headers(message: &Value) -> Vec<(String, String)> {
    let own = |name: &str, value: &Value| Some((name.to_owned(), value.as_str()?.to_owned()));
    let params = &message["params"];
    let name = match message["method"].as_str() {
        Some("tools/call" | "prompts/get") => &params["name"],
        Some("resources/read") => &params["uri"],
        _ => &Value::Null,
    };
    let version = Some(("MCP-Protocol-Version".to_owned(), MODERN.to_owned()));
    [version, own("Mcp-Method", &message["method"]), own("Mcp-Name", name)]
        .into_iter()
        .flatten()
        .collect()
}

pub fn initialize(id: impl Into<Value>, version: &str) -> Value {
    let client = json!({ "name": "tester", "version": "1" });
    let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
    request(id, "initialize", params)
}

/// A response over HTTP, read incrementally.
pub struct Answer {
    pub status: u16,
    /// The lines of the head, names in lower case.
    pub head: Vec<String>,
    body: BufReader<Body>,
}

enum Framing {
    /// The remaining bytes of the whole body.
    Length(usize),
    Chunk(usize),
    UntilEnd,
}

struct Body {
    stream: BufReader<TcpStream>,
    framing: Framing,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = match &mut self.framing {
            Framing::UntilEnd => return self.stream.read(buffer),
            Framing::Length(left) => left,
            Framing::Chunk(left) => {
                if *left == 0 {
                    let mut size = String::new();
                    while size.trim().is_empty() {
                        size.clear();
                        if self.stream.read_line(&mut size)? == 0 {
                            return Ok(0);
                        }
                    }
                    *left = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
                    if *left == 0 {
                        self.framing = Framing::Length(0);
                        return Ok(0);
                    }
                }
                left
            }
        };
        let most = buffer.len().min(*left);
        let read = self.stream.read(&mut buffer[..most])?;
        *left -= read;
        Ok(read)
    }
}

impl Answer {
    fn read(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut stream = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a head");
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.trim().split_once(": ").unwrap_or((line.trim(), ""));
            head.push(format!("{}: {value}", name.to_ascii_lowercase()));
        }
        let status = head.first().and_then(|line| line.split([' ', ':']).nth(1)?.parse().ok());
        let mut answer = Self {
            status: status.unwrap_or_default(),
            head,
            body: BufReader::new(Body { stream, framing: Framing::UntilEnd }),
        };
        answer.body.get_mut().framing =
            match (answer.header("transfer-encoding"), answer.header("content-length")) {
                (Some("chunked"), _) => Framing::Chunk(0),
                (_, Some(length)) => Framing::Length(length.parse().expect("a length")),
                _ => Framing::UntilEnd,
            };
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// Returns the rest of the body.
    pub fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).expect("a body");
        bytes
    }

    pub fn json(self) -> Value {
        let status = self.status;
        let bytes = self.bytes();
        let text = String::from_utf8_lossy(&bytes);
        serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{status} is no JSON: {text}"))
    }

    /// Returns the next line of a stream; `None` at its end.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.body.read_line(&mut line).expect("a line of the stream");
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns the next message of a stream; `None` at its end.
    pub fn event(&mut self) -> Option<Value> {
        loop {
            let line = self.line()?;
            if let Some(data) = line.strip_prefix("data:") {
                return Some(serde_json::from_str(data).expect("an event of JSON"));
            }
        }
    }

    /// Closes the connection; returns its own address.
    pub fn hang_up(self) -> SocketAddr {
        let stream = self.body.get_ref().stream.get_ref();
        let own = stream.local_addr().expect("an address");
        stream.shutdown(Shutdown::Both).expect("the connection ends");
        own
    }
}

/// A request that was sent; the head of its response is not read yet.
pub struct Sent(TcpStream);

impl Sent {
    /// Waits for the head of the response.
    pub fn answer(self) -> Answer {
        Answer::read(self.0)
    }

    /// Closes the connection; returns its own address.
    pub fn hang_up(self) -> SocketAddr {
        let own = self.0.local_addr().expect("an address");
        drop(self.0);
        own
    }
}

/// Sends one request over a new connection.
pub fn send(address: &str, method: &str, headers: &[(&str, &str)], body: &[u8]) -> Sent {
    send_at(address, "/mcp", method, headers, body)
}

/// Sends one request to a path over a new connection.
pub fn send_at(
    address: &str,
    path: &str,
    method: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Sent {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).expect("sends");
    // The gateway can refuse a request by its head before the whole body is sent.
    let _ = stream.write_all(body);
    Sent(stream)
}

/// Posts a body with the headers that every client sends, and further ones.
pub fn post(address: &str, headers: &[(&str, &str)], body: &[u8]) -> Sent {
    let all: Vec<(&str, &str)> =
        [JSON, ACCEPT].into_iter().chain(headers.iter().copied()).collect();
    send(address, "POST", &all, body)
}

/// Posts a message of the modern era with its headers.
pub fn post_modern(address: &str, message: &Value) -> Sent {
    let headers = modern_headers(message);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    post(address, &headers, message.to_string().as_bytes())
}

/// A session of the legacy era over HTTP.
#[derive(Clone)]
pub struct Session {
    pub address: String,
    pub id: String,
    pub version: String,
}

impl Session {
    pub fn begin(gateway: &RunningGateway) -> Self {
        Self::of(&gateway.address, LEGACY)
    }

    pub fn of(address: &str, version: &str) -> Self {
        let answer = post(address, &[], initialize(0, version).to_string().as_bytes()).answer();
        assert_eq!(answer.status, 200);
        let id = answer.header("mcp-session-id").expect("a session").to_owned();
        assert_eq!(answer.json()["result"]["protocolVersion"], version);
        let session = Self { address: address.to_owned(), id, version: version.to_owned() };
        let initialized = notification("notifications/initialized", json!({}));
        assert_eq!(session.post(&initialized).answer().status, 202);
        session
    }

    fn headers(&self) -> [(&str, &str); 2] {
        [("Mcp-Session-Id", &self.id), ("MCP-Protocol-Version", &self.version)]
    }

    pub fn post(&self, message: &Value) -> Sent {
        self.post_padded(message, 0)
    }

    /// Sends a message followed by `spaces` spaces.
    pub fn post_padded(&self, message: &Value, spaces: usize) -> Sent {
        let body = format!("{message}{}", " ".repeat(spaces));
        post(&self.address, &self.headers(), body.as_bytes())
    }

    /// Opens the stream of the session.
    pub fn get(&self) -> Answer {
        let mut headers = self.headers().to_vec();
        headers.push(("Accept", "text/event-stream"));
        send(&self.address, "GET", &headers, b"").answer()
    }

    pub fn delete(&self) -> Answer {
        send(&self.address, "DELETE", &self.headers(), b"").answer()
    }

    /// Returns the status of a ping: 200 if the session exists.
    pub fn ping(&self) -> u16 {
        self.post(&request("ping", "ping", json!({}))).answer().status
    }
}

/// `toolbooth stdio`, with the client's ends of the pipes; killed when it is dropped.
pub struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    words: Option<JoinHandle<String>>,
    /// Messages that arrived while the test waited for another one.
    early: Vec<Value>,
}

impl Pipe {
    /// Starts it without a session.
    pub fn start(place: &Place) -> Self {
        Self::start_with(place, &["stdio"])
    }

    /// Starts it with these arguments.
    pub fn start_with(place: &Place, arguments: &[&str]) -> Self {
        let mut child = place
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the gateway starts");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut stderr = child.stderr.take().expect("a pipe");
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                if tell.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let words = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Self { child, input, lines, words: Some(words), early: Vec::new() }
    }

    /// Starts it and begins a session.
    pub fn session(place: &Place, version: &str) -> Self {
        let mut pipe = Self::start(place);
        pipe.send(&initialize("start", version));
        assert_eq!(pipe.answer("start")["result"]["protocolVersion"], version);
        pipe.send(&notification("notifications/initialized", json!({})));
        pipe
    }

    /// Writes bytes unchanged, without adding a line end.
    pub fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("the input is open");
        if let Err(error) = input.write_all(bytes).and_then(|()| input.flush()) {
            let words = self.words.take().map(|words| words.join().unwrap_or_default());
            panic!("the gateway reads no more ({error}); it said: {words:?}");
        }
    }

    pub fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    /// Returns the next message; `None` at the end of the output.
    pub fn message(&mut self) -> Option<Value> {
        if !self.early.is_empty() {
            return Some(self.early.remove(0));
        }
        self.read()
    }

    fn read(&mut self) -> Option<Value> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                assert_eq!(
                    line.last(),
                    Some(&b'\n'),
                    "a line ends: {}",
                    String::from_utf8_lossy(&line)
                );
                let text = String::from_utf8(line).expect("a line is text");
                Some(serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                panic!("waited {} s for a message over stdio", PATIENCE.as_secs())
            }
        }
    }

    /// Returns the next message that matches; others are stored.
    pub fn find(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.early.iter().position(&fits) {
            return self.early.remove(at);
        }
        loop {
            let message = self.read().expect("a message before the end");
            if fits(&message) {
                return message;
            }
            self.early.push(message);
        }
    }

    /// Returns the response to a request; other messages are stored.
    pub fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.find(|message| message.get("method").is_none() && message["id"] == id)
    }

    /// Closes the input.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Closes the input and waits for the exit. Returns the unread messages, the exit code, and standard
    /// error.
    pub fn finish(mut self) -> (Vec<Value>, Option<i32>, String) {
        self.end_input();
        let mut rest = Vec::new();
        while let Some(message) = self.message() {
            rest.push(message);
        }
        let status = crate::waiting::end_of(&mut self.child, "the gateway over stdio");
        let words = self.words.take().and_then(|words| words.join().ok());
        (rest, status.code(), words.unwrap_or_default())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of one era, over one transport.
pub enum Peer {
    ModernHttp(String),
    LegacyHttp(Session),
    ModernPipe(Pipe),
    LegacyPipe(Pipe),
}

/// A request of a [`Peer`] that waits for its response.
pub struct Pending {
    id: Value,
    token: Value,
    http: Option<Sent>,
    answer: Option<Answer>,
}

impl Peer {
    /// Returns one peer of each kind.
    pub fn all(place: &Place, gateway: &RunningGateway) -> Vec<Self> {
        let mut all = Self::over_http(gateway);
        all.extend(Self::over_pipes(place));
        all
    }

    pub fn over_http(gateway: &RunningGateway) -> Vec<Self> {
        vec![Self::ModernHttp(gateway.address.clone()), Self::LegacyHttp(Session::begin(gateway))]
    }

    pub fn over_pipes(place: &Place) -> Vec<Self> {
        vec![Self::ModernPipe(Pipe::start(place)), Self::LegacyPipe(Pipe::session(place, LEGACY))]
    }

    /// Returns its name for messages of tests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ModernHttp(_) => "modern over HTTP",
            Self::LegacyHttp(_) => "legacy over HTTP",
            Self::ModernPipe(_) => "modern over stdio",
            Self::LegacyPipe(_) => "legacy over stdio",
        }
    }

    pub fn is_modern(&self) -> bool {
        matches!(self, Self::ModernHttp(_) | Self::ModernPipe(_))
    }

    /// Sends a request.
    pub fn begin(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Pending {
        let id = id.into();
        let token = params["_meta"]["progressToken"].clone();
        let message = if self.is_modern() {
            modern(id.clone(), method, params)
        } else {
            request(id.clone(), method, params)
        };
        let http = match self {
            Self::ModernHttp(address) => Some(post_modern(address, &message)),
            Self::LegacyHttp(session) => Some(session.post(&message)),
            Self::ModernPipe(pipe) | Self::LegacyPipe(pipe) => {
                pipe.send(&message);
                None
            }
        };
        Pending { id, token, http, answer: None }
    }

    /// Returns the next message of a request: a notification, or its response.
    pub fn next(&mut self, pending: &mut Pending) -> Value {
        if let Some(sent) = pending.http.take() {
            pending.answer = Some(sent.answer());
        }
        match (self, &mut pending.answer) {
            (Self::ModernPipe(pipe) | Self::LegacyPipe(pipe), _) => {
                let (id, token) = (&pending.id, &pending.token);
                pipe.find(|message| {
                    message["id"] == *id
                        || !token.is_null() && message["params"]["progressToken"] == *token
                })
            }
            (_, Some(answer)) if answer.is_stream() => {
                answer.event().expect("an answer in the stream")
            }
            _ => pending.answer.take().expect("one answer").json(),
        }
    }

    /// Waits for the response; notifications before it are dropped.
    pub fn finish(&mut self, mut pending: Pending) -> Value {
        loop {
            let message = self.next(&mut pending);
            if message.get("method").is_none() {
                assert_eq!(message["id"], pending.id, "{}", self.name());
                return message;
            }
        }
    }

    pub fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let pending = self.begin(id, method, params);
        self.finish(pending)
    }

    pub fn call(&mut self, id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
        self.ask(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Cancels a request with the method of its era and transport.
    pub fn cancel(&mut self, pending: Pending) {
        let note = notification("notifications/cancelled", json!({ "requestId": pending.id }));
        match self {
            Self::ModernHttp(_) => drop(pending),
            Self::LegacyHttp(session) => assert_eq!(session.post(&note).answer().status, 202),
            Self::ModernPipe(pipe) | Self::LegacyPipe(pipe) => pipe.send(&note),
        }
    }

    /// Checks with a simple call that the peer is still served.
    pub fn assert_served(&mut self, of: &str) {
        let answer = self.call("served", "calculator", json!({ "expression": "6*7" }));
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, "42", "{} after {of}: {answer}", self.name());
    }
}
