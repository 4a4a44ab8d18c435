//! An HTTP proxy in the network of a contained program, for programs that use a proxy.
//!
//! `CONNECT` (RFC 9110, 9.3.6) carries any protocol; plain `http:` requests arrive in absolute form.
//! The program receives a message for a refused request.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};

use super::ProgramNetwork;
use super::relay::{BUFFER_BYTES, CONNECT_TIMEOUT, accept};
use crate::net_guard::ResolveError;

/// Maximum bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum headers of a request.
const HEADERS_MAX: usize = 100;
/// Time for a head to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn serve(passage: Arc<ProgramNetwork>, listener: TcpListener) {
    accept(passage, listener, usize::MAX >> 4, pass).await;
}

/// The destination of a request.
struct Wanted {
    host: String,
    port: u16,
    /// The bytes that are sent to the host first; `None` = a tunnel.
    request: Option<Vec<u8>>,
}

/// A refusal that the program sees.
struct Refused(u16, &'static str, String);

async fn pass(passage: Arc<ProgramNetwork>, mut stream: TcpStream) {
    let handled = async {
        let (head, rest) = read_head(&mut stream).await?;
        let wanted = wanted(&head)?;
        let host = reach(&passage, &wanted).await?;
        Ok::<_, Refused>((wanted, rest, host))
    };
    let (wanted, rest, mut host) = match handled.await {
        Ok(done) => done,
        Err(Refused(status, word, sentence)) => {
            let body = format!("{sentence}\n");
            let answer = format!(
                "HTTP/1.1 {status} {word}\r\ncontent-type: text/plain; charset=utf-8\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
            return;
        }
    };
    let opening = match &wanted.request {
        Some(request) => host.write_all(request).await,
        None => stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await,
    };
    if opening.is_ok() && host.write_all(&rest).await.is_ok() {
        // Either side can close the connection at any time.
        let (sent, received) = (BUFFER_BYTES, BUFFER_BYTES);
        let _ = copy_bidirectional_with_sizes(&mut stream, &mut host, sent, received).await;
    }
}

/// Connects to the destination if it is allowed.
async fn reach(passage: &ProgramNetwork, wanted: &Wanted) -> Result<TcpStream, Refused> {
    let (host, port) = (wanted.host.as_str(), wanted.port);
    let addresses = match passage.resolve(host, port).await {
        Ok(addresses) => addresses,
        Err(ResolveError::Refused(sentence)) => {
            return Err(Refused(403, "Forbidden", sentence.to_string()));
        }
        Err(ResolveError::Unresolved(reason)) => {
            return Err(Refused(502, "Bad Gateway", reason));
        }
    };
    let connect = TcpStream::connect(addresses.as_slice());
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(Ok(stream)) => {
            passage.record_reached(host, port);
            Ok(stream)
        }
        Ok(Err(error)) => {
            let sentence = format!("`{host}:{port}` cannot be reached: {error}");
            Err(Refused(502, "Bad Gateway", sentence))
        }
        Err(_) => {
            let sentence = format!("`{host}:{port}` did not answer in time");
            Err(Refused(504, "Gateway Timeout", sentence))
        }
    }
}

/// Reads a request's head, and the bytes after it.
async fn read_head(stream: &mut TcpStream) -> Result<(Vec<u8>, Vec<u8>), Refused> {
    let bad = |what: &str| Refused(400, "Bad Request", what.to_owned());
    let mut bytes = Vec::new();
    let reading = async {
        let mut chunk = vec![0u8; 4 << 10];
        loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = bytes.split_off(at + 4);
                return Ok((std::mem::take(&mut bytes), rest));
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(Refused(
                    431,
                    "Request Header Fields Too Large",
                    format!("a head has at most {HEAD_BYTES_MAX} bytes"),
                ));
            }
            match stream.read(&mut chunk).await {
                Ok(count @ 1..) => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                _ => return Err(bad("the request ended before its head did")),
            }
        }
    };
    tokio::time::timeout(HEAD_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(bad("the request did not come in time")))
}

fn wanted(head: &[u8]) -> Result<Wanted, Refused> {
    let bad = |what: &str| Refused(400, "Bad Request", what.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => (),
        _ => return Err(bad("this is no HTTP request")),
    }
    let method = request.method.unwrap_or_default();
    let target = request.path.unwrap_or_default();
    if method == "CONNECT" {
        let (host, port) =
            authority(target, None).ok_or_else(|| bad("this is not a `host:port`"))?;
        return Ok(Wanted { host, port, request: None });
    }
    let rest = target
        .strip_prefix("http://")
        .ok_or_else(|| bad("this is a proxy: `CONNECT host:port`, or a whole `http:` URL"))?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host_and_port, path) = rest.split_at(at);
    let (host, port) =
        authority(host_and_port, Some(80)).ok_or_else(|| bad("the URL names no host"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut text =
        format!("{method} {slash}{path} HTTP/1.1\r\nhost: {host_and_port}\r\n").into_bytes();
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        // These headers apply to this connection only, and the host is the checked one.
        if name.starts_with("proxy-")
            || ["connection", "keep-alive", "host"].contains(&name.as_str())
        {
            continue;
        }
        text.extend_from_slice(format!("{}: ", header.name).as_bytes());
        text.extend_from_slice(header.value);
        text.extend_from_slice(b"\r\n");
    }
    // One request per connection: the next may be for another host.
    text.extend_from_slice(b"connection: close\r\n\r\n");
    Ok(Wanted { host, port, request: Some(text) })
}

/// Returns host and port of `host:port`, `[address]:port` or, with a standard port, `host`.
fn authority(text: &str, standard: Option<u16>) -> Option<(String, u16)> {
    // User names and passwords are not supported.
    if text.contains('@') {
        return None;
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (text, standard?),
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_absolute_form_becomes_one_for_its_host() {
        let head = b"GET http://a.example:81/x?y HTTP/1.1\r\nHost: evil\r\nProxy-Connection: k\r\nAccept: z\r\n\r\n";
        let Ok(wanted) = wanted(head) else { panic!("it is one") };
        assert_eq!((wanted.host.as_str(), wanted.port), ("a.example", 81));
        let text = String::from_utf8(wanted.request.unwrap()).unwrap();
        assert_eq!(
            text,
            "GET /x?y HTTP/1.1\r\nhost: a.example:81\r\nAccept: z\r\nconnection: close\r\n\r\n"
        );
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for head in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"CONNECT a HTTP/1.1\r\n\r\n",
            b"CONNECT u:p@a:1 HTTP/1.1\r\n\r\n",
            b"\xff\xfe\r\n\r\n",
            b"GET http:// HTTP/1.1\r\n\r\n",
        ] {
            assert!(wanted(head).is_err());
        }
    }
}
