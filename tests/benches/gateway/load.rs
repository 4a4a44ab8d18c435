//! Clients that each send one request after another over a connection of their own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbooth_tests::mcp::{LEGACY, initialize, modern, modern_headers, request};

/// The revision of MCP that clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// Without sessions.
    Modern,
    /// With a session for each client.
    Legacy,
}

/// What each client repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Calls a tool with a text of this many bytes.
    Echo(usize),
    /// Reads all pages of the list of tools.
    List,
}

/// The door of a gateway at which clients call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Mcp,
    /// `/v1/calls`, for calls only.
    Calls,
}

/// A server that is measured.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// The host and the port of each replica.
    pub(crate) addresses: Vec<String>,
    pub(crate) door: Door,
    /// The path of its MCP endpoint.
    pub(crate) path: String,
    /// The name of the tool that echoes.
    pub(crate) tool: String,
    /// Headers of each request.
    pub(crate) headers: Vec<(String, String)>,
}

impl Target {
    /// Returns an MCP server at an address.
    pub(crate) fn new(name: &'static str, address: &str, tool: &str) -> Self {
        let (addresses, path) = (vec![address.to_owned()], "/mcp".to_owned());
        Self { name, addresses, door: Door::Mcp, path, tool: tool.to_owned(), headers: Vec::new() }
    }
}

/// What clients did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) time: Duration,
    /// How long each piece of work took.
    pub(crate) times: Vec<Duration>,
}

/// A connection that is held open.
struct Connection<'t> {
    target: &'t Target,
    address: &'t str,
    stream: TcpStream,
    session: Option<String>,
    answer: Vec<u8>,
}

/// Returns the place of a piece of text.
fn find(text: &[u8], piece: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, piece)
}

/// Whether an answer has the text of a call, this long.
pub(crate) fn has_echoed(answer: &[u8], size: usize) -> bool {
    let start = answer.get(..answer.len().min(512)).unwrap();
    let echoed = answer.len() > size && find(start, b"\"text\":\"xx").is_some();
    // An answer that is longer is not that of a failure.
    let failed = answer.len() < 4_096 && find(answer, b"\"isError\":true").is_some();
    echoed && !failed
}

impl<'t> Connection<'t> {
    /// Opens a connection to one of the replicas.
    async fn open(target: &'t Target, era: Era, number: usize) -> Self {
        let address = target.addresses.get(number % target.addresses.len()).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let answer = Vec::with_capacity(1 << 16);
        let mut own = Self { target, address, stream, session: None, answer };
        if era == Era::Legacy {
            let begun = own.written(&initialize(1, LEGACY), &[]);
            let head = own.exchange(&begun).await;
            let head = String::from_utf8_lossy(own.answer.get(..head).unwrap()).to_lowercase();
            let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
            own.session = session.map(str::to_owned);
        }
        own
    }

    /// Returns a request as it is sent.
    fn written(&self, message: &Value, headers: &[(String, String)]) -> Vec<u8> {
        let path = match self.target.door {
            Door::Mcp => self.target.path.as_str(),
            Door::Calls => "/v1/calls",
        };
        let body = message.to_string();
        let mut text = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n",
            self.address,
            body.len()
        );
        for (name, value) in headers.iter().chain(&self.target.headers) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(session) = &self.session {
            text.push_str(&format!(
                "Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {LEGACY}\r\n"
            ));
        }
        text.push_str("\r\n");
        text.push_str(&body);
        text.into_bytes()
    }

    /// Sends a request and reads its answer; returns where its body begins.
    async fn exchange(&mut self, request: &[u8]) -> usize {
        self.stream.write_all(request).await.unwrap();
        self.answer.clear();
        let mut head = None;
        loop {
            let read = self.stream.read_buf(&mut self.answer).await.unwrap();
            assert!(read > 0, "{} has closed the connection", self.target.name);
            if head.is_none()
                && let Some(end) = find(&self.answer, b"\r\n\r\n")
            {
                let text = String::from_utf8_lossy(self.answer.get(..end).unwrap());
                assert!(text.starts_with("HTTP/1.1 200"), "{}: {text}", self.target.name);
                let length = text.lines().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.parse().unwrap())
                });
                head = Some((end + 4, length.map(|length: usize| end + 4 + length)));
            }
            match head {
                Some((begin, Some(end))) if self.answer.len() >= end => return begin,
                Some((begin, None)) if self.answer.ends_with(b"\r\n0\r\n\r\n") => return begin,
                _ => {}
            }
        }
    }

    /// Returns a request, in the era of the connection.
    fn asked(&self, era: Era, method: &str, params: Value) -> Vec<u8> {
        match era {
            Era::Legacy => self.written(&request(1, method, params), &[]),
            Era::Modern => {
                let message = modern(1, method, params);
                self.written(&message, &modern_headers(&message))
            }
        }
    }

    async fn list(&mut self, era: Era) {
        let mut cursor: Option<String> = None;
        loop {
            let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let asked = self.asked(era, "tools/list", params);
            let begin = self.exchange(&asked).await;
            let body = self.answer.get(begin..).unwrap();
            assert!(find(body, b"\"tools\"").is_some(), "{} lists no tools", self.target.name);
            let Some(at) = find(body, b"\"nextCursor\":\"") else { return };
            let rest = body.get(at + 14..).unwrap();
            let end = rest.iter().position(|byte| *byte == b'"').unwrap();
            cursor = Some(String::from_utf8_lossy(rest.get(..end).unwrap()).into_owned());
        }
    }

    /// Returns a call of the tool that echoes.
    fn call(&self, era: Era, size: usize) -> Vec<u8> {
        let (tool, arguments) = (&self.target.tool, json!({ "text": "x".repeat(size) }));
        match self.target.door {
            Door::Mcp => {
                self.asked(era, "tools/call", json!({ "name": tool, "arguments": arguments }))
            }
            Door::Calls => self.written(&json!({ "toolId": tool, "args": arguments }), &[]),
        }
    }

    /// Checks that the answer has the text of a call.
    fn check(&self, begin: usize, size: usize) {
        let body = self.answer.get(begin..).unwrap();
        let start = || String::from_utf8_lossy(body.get(..body.len().min(512)).unwrap());
        assert!(has_echoed(body, size), "{}: {}", self.target.name, start());
    }

    /// Repeats the work until a time.
    async fn repeat(mut self, era: Era, work: Work, until: Instant) -> Vec<Duration> {
        let mut times = Vec::new();
        let size = match work {
            Work::Echo(size) => size,
            Work::List => 0,
        };
        let call = self.call(era, size);
        loop {
            let began = Instant::now();
            if began >= until {
                return times;
            }
            match work {
                Work::List => self.list(era).await,
                Work::Echo(size) => {
                    let begin = self.exchange(&call).await;
                    self.check(begin, size);
                }
            }
            times.push(began.elapsed());
        }
    }
}

/// Lets clients work for a time.
pub(crate) async fn run(
    target: &Target,
    era: Era,
    clients: usize,
    work: Work,
    time: Duration,
) -> Done {
    let mut connections = Vec::new();
    for number in 0..clients {
        connections.push(Connection::open(target, era, number).await);
    }
    let began = Instant::now();
    let clients = connections.into_iter().map(|own| own.repeat(era, work, began + time));
    let times = futures_util::future::join_all(clients).await;
    Done { time: began.elapsed(), times: times.into_iter().flatten().collect() }
}

/// Makes calls of 100 bytes by clients, this many together.
pub(crate) async fn calls(target: &Target, clients: usize, count: usize) {
    let clients = (0..clients).map(|number| async move {
        let mut own = Connection::open(target, Era::Modern, number).await;
        let call = own.call(Era::Modern, 100);
        for _ in 0..count / clients {
            let begin = own.exchange(&call).await;
            own.check(begin, 100);
        }
    });
    futures_util::future::join_all(clients).await;
}
