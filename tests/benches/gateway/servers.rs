//! The servers that a gateway is compared with: an MCP server that echoes, and a reverse proxy. Each runs in a
//! process of its own, which this program starts with its own binary.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

/// The name of the tool that echoes its argument `text`.
pub(crate) const ECHO: &str = "echo";

type Body = Full<Bytes>;

/// A process of this program; killed when it is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    child: Child,
}

impl Server {
    /// Starts an MCP server with a tool that echoes and `tools - 1` others.
    pub(crate) fn upstream(tools: usize, port: u16) -> Self {
        Self::start(&["upstream", &tools.to_string(), &port.to_string()])
    }

    /// Starts a server with the arguments of [`run`], and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut child = Command::new(own)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { address: address.trim().to_owned(), child }
    }

    /// Returns the processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        toolbooth_tests::cpu_of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a server, if the arguments of this program ask for one: `upstream TOOLS PORT`, or `proxy ADDRESS`. The port 0 is
/// any free one.
pub(crate) fn run(arguments: &[&str]) -> bool {
    match arguments {
        ["upstream", tools, port] => upstream(tools.parse().unwrap(), port.parse().unwrap()),
        ["proxy", address] => reverse_proxy(address),
        _ => return false,
    }
    true
}

fn serve<F, A>(port: u16, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let answer = answer(request);
                    async { Ok::<_, Infallible>(answer.await) }
                });
                // It ends when the client closes it.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
}

#[derive(Deserialize)]
struct Message<'m> {
    #[serde(borrow)]
    id: Option<&'m RawValue>,
    method: String,
    #[serde(borrow)]
    params: Option<&'m RawValue>,
}

#[derive(Deserialize)]
struct Call<'m> {
    #[serde(borrow)]
    arguments: Arguments<'m>,
}

#[derive(Deserialize)]
struct Arguments<'m> {
    #[serde(borrow)]
    text: &'m RawValue,
}

/// Serves a tool that echoes, and `tools - 1` others, of which each is described in 600 bytes at least.
fn upstream(tools: usize, port: u16) {
    let list: Arc<str> = tools_of(tools).into();
    serve(port, move |request| {
        let list = Arc::clone(&list);
        async move {
            if request.method() != Method::POST {
                return status(StatusCode::METHOD_NOT_ALLOWED);
            }
            let Ok(body) = request.into_body().collect().await else {
                return status(StatusCode::BAD_REQUEST);
            };
            answer(&body.to_bytes(), &list)
        }
    });
}

fn answer(body: &[u8], list: &str) -> Response<Body> {
    let message: Message<'_> = serde_json::from_slice(body).unwrap();
    let Some(id) = message.id else { return status(StatusCode::ACCEPTED) };
    let mut text = String::with_capacity(body.len() + 256);
    match message.method.as_str() {
        "tools/call" => {
            let call: Call<'_> = serde_json::from_str(message.params.unwrap().get()).unwrap();
            let _ = write!(
                text,
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","content":[{{"type":"text","text":{}}}]}}}}"#,
                call.arguments.text
            );
        }
        "tools/list" => {
            let _ = write!(text, r#"{{"jsonrpc":"2.0","id":{id},"result":{list}}}"#);
        }
        "initialize" => {
            let result = json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "echo", "version": "1" }
            });
            let _ = write!(text, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        }
        "server/discover" => {
            let result = json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {} }, "ttlMs": 3_600_000, "cacheScope": "private",
                "serverInfo": { "name": "echo", "version": "1" }
            });
            let _ = write!(text, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        }
        method => {
            let error = json!({ "code": -32601, "message": format!("there is no {method}") });
            let _ = write!(text, r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
        }
    }
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

/// Returns the result of `tools/list`.
fn tools_of(count: usize) -> String {
    let text = json!({ "type": "object", "required": ["text"],
        "properties": { "text": { "type": "string" } } });
    let echo = json!({ "name": ECHO, "description": "Returns its text.", "inputSchema": text });
    let others = (1..count).map(|number| {
        let argument = |what: &str| {
            json!({ "type": "string", "maxLength": 200,
                "description": format!("The {what} of the record that is read, as the list shows it.") })
        };
        json!({
            "name": format!("read_record_{number:04}"),
            "description": format!(
                "Reads one record of table {number}. The record is found by its name within a folder, \
                 and is returned as text in the form that is asked for."
            ),
            "inputSchema": { "type": "object", "required": ["name"], "properties": {
                "name": argument("name"), "folder": argument("folder"), "form": argument("form")
            } }
        })
    });
    let tools: Vec<_> = std::iter::once(echo).chain(others).collect();
    json!({ "resultType": "complete", "tools": tools, "ttlMs": 3_600_000, "cacheScope": "private" })
        .to_string()
}

/// Passes every request on to an address, over connections that stay open.
fn reverse_proxy(address: &str) {
    let address: Arc<str> = address.into();
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build_http();
    serve(0, move |mut request| {
        let (address, client) = (Arc::clone(&address), client.clone());
        async move {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let uri = Uri::try_from(format!("http://{address}{path}")).unwrap();
            *request.uri_mut() = uri;
            request.headers_mut().remove(HOST);
            match client.request(request).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    match body.collect().await {
                        Ok(body) => Response::from_parts(head, Full::new(body.to_bytes())),
                        Err(_) => status(StatusCode::BAD_GATEWAY),
                    }
                }
                Err(_) => status(StatusCode::BAD_GATEWAY),
            }
        }
    });
}
