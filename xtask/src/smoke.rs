//! The smoke test: starts the gateway, and calls `read_file` like an MCP client over HTTP.
//!
//! Needs only the gateway's program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::run::{build_program, target};

/// The timeout of one response of the gateway.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const VERSION: &str = "2025-11-25";

/// Starts the gateway in an empty folder and lets a client call `read_file` on a file there.
pub fn run() -> Result<()> {
    build_program("toolbooth")?;
    let smoke_folder = target().join("smoke");
    let _ = std::fs::remove_dir_all(&smoke_folder);
    std::fs::create_dir_all(&smoke_folder)?;
    std::fs::write(smoke_folder.join("hello.txt"), "hello")?;
    let mut gateway = Command::new(target().join("debug/toolbooth"))
        .args(["serve", "--http", "127.0.0.1:0"])
        .current_dir(&smoke_folder)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(gateway.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on http://");
    let called = address.context("the gateway does not listen").and_then(call);
    let pid = gateway.id().to_string();
    let _ = Command::new("kill").args(["-TERM", &pid]).status();
    let status = gateway.wait()?;
    let result = called?;
    ensure!(
        result["isError"] == false && result["content"][0]["text"] == "hello",
        "read_file answered {result}"
    );
    ensure!(status.success(), "the gateway ended with {status}");
    println!("smoke: read_file answered without an error");
    Ok(())
}

/// Initializes a session and calls the tool; returns the result.
fn call(address: &str) -> Result<Value> {
    let client = json!({
        "protocolVersion": VERSION, "capabilities": {},
        "clientInfo": { "name": "smoke", "version": "1" },
    });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client });
    let (head, initialized) = post(address, None, &initialize)?;
    ensure!(initialized["result"]["protocolVersion"] == VERSION, "initialize: {initialized}");
    let session = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
    });
    let session = session.context("the gateway gave no session")?;
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    post(address, Some(&session), &ready)?;
    let params = json!({ "name": "read_file", "arguments": { "path": "hello.txt" } });
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
    let (_, answered) = post(address, Some(&session), &call)?;
    Ok(answered["result"].clone())
}

/// Posts a message over a separate connection. Returns the head and the message of the response; the message
/// is null if there is none.
fn post(address: &str, session: Option<&str>, message: &Value) -> Result<(String, Value)> {
    let body = message.to_string();
    let session = session
        .map(|id| format!("mcp-session-id: {id}\r\nmcp-protocol-version: {VERSION}\r\n"))
        .unwrap_or_default();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nconnection: close\r\n\
         content-length: {}\r\n{session}\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    ensure!(head.starts_with("HTTP/1.1 20"), "the gateway answered {answer}");
    // The body is a document, or an event of a stream; it can be chunked.
    let message = body.lines().find_map(|line| {
        serde_json::from_str::<Value>(line.trim().trim_start_matches("data:"))
            .ok()
            .filter(Value::is_object)
    });
    Ok((head.to_owned(), message.unwrap_or_default()))
}
