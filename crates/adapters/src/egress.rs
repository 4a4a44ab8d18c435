//! The only way out of a network of its own: an HTTP proxy that lets named hosts pass.
//!
//! It listens inside the tool's network namespace; the descriptor was handed out by the launcher.
//! `CONNECT` (RFC 9110, 9.3.6) carries anything; plain `http:` requests come in absolute form.
//! What is refused gets a sentence that the tool sees, and is noted for the records.
//!
//! Path: 7. Doc: execution.md#the-network-allow-list

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use toolbooth_contracts::Witness;

use crate::net_guard::{Guard, ResolveError};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 100;
/// How long a head may take to arrive, and a connection to be made.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections of one program at once.
const CONNECTIONS_MAX: usize = 64;

/// The hosts that a profile names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// In lower case, without a final dot or brackets; `*.` stands before any one or more labels.
    host: String,
    /// `None` = any.
    port: Option<u16>,
}

impl AllowList {
    /// A list of `name:port`, `*.name:port`, `address:port` and `[address]:port`; `*` as the port
    /// is any.
    ///
    /// # Errors
    /// A sentence that names the first entry that is none of these.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        let entry = |text: &String| {
            let wrong =
                || format!("`{text}` is no host; hosts are written as `api.example.com:443`");
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let port = match port {
                "*" => None,
                digits => Some(digits.parse().map_err(|_| wrong())?),
            };
            let host = normal(host);
            let name = host.strip_prefix("*.").unwrap_or(&host);
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
            if name.is_empty() || !name.chars().all(fits) {
                return Err(wrong());
            }
            Ok(Entry { host, port })
        };
        entries.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    fn allows(&self, host: &str, port: u16) -> bool {
        let host = normal(host);
        self.0.iter().any(|entry| {
            let named = match entry.host.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == entry.host,
            };
            named && entry.port.is_none_or(|own| own == port)
        })
    }
}

/// A host as lists have it.
fn normal(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host,
    }
}

/// A proxy that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves a listening socket.
pub(crate) fn serve(fd: OwnedFd, allowed: AllowList, witness: Witness) -> io::Result<Serving> {
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let way_out = Arc::new(WayOut { allowed, witness });
    let task = tokio::spawn(async move {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Descriptors are short for a moment.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let way_out = Arc::clone(&way_out);
            connections.spawn(async move {
                way_out.pass(stream).await;
                drop(slot);
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Ok(Serving(task.abort_handle()))
}

struct WayOut {
    allowed: AllowList,
    witness: Witness,
}

/// What a request asks for.
struct Wanted {
    host: String,
    port: u16,
    /// What goes to the host first; `None` = a tunnel.
    request: Option<Vec<u8>>,
}

/// A refusal that the program sees.
struct Refused(u16, &'static str, String);

impl WayOut {
    async fn pass(&self, mut stream: TcpStream) {
        let handled = async {
            let (head, rest) = read_head(&mut stream).await?;
            let wanted = wanted(&head)?;
            let host = self.reach(&wanted).await?;
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
            // Either side may hang up at any time.
            let _ = copy_bidirectional(&mut stream, &mut host).await;
        }
    }

    /// Connects to a host that is on the list.
    async fn reach(&self, wanted: &Wanted) -> Result<TcpStream, Refused> {
        let (host, port) = (wanted.host.as_str(), wanted.port);
        let refuse = |reason: String| {
            self.witness.egress_refused(host, port, &reason);
            tracing::info!(host, port, reason, "a way out is refused");
            Refused(403, "Forbidden", format!("toolbooth refused `{host}:{port}`: {reason}"))
        };
        if !self.allowed.allows(host, port) {
            return Err(refuse("it is not among the hosts that this tool may reach".to_owned()));
        }
        // An address that an operator wrote out means itself; a name must not lead inside.
        let literal = normal(host).parse::<IpAddr>().is_ok();
        let addresses = match Guard::new(literal).resolve(host, port).await {
            Ok(addresses) => addresses,
            Err(ResolveError::Refused(reason)) => return Err(refuse(reason)),
            Err(ResolveError::Unresolved(reason)) => {
                return Err(Refused(502, "Bad Gateway", reason));
            }
        };
        let connect = TcpStream::connect(addresses.as_slice());
        match tokio::time::timeout(PATIENCE, connect).await {
            Ok(Ok(stream)) => Ok(stream),
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
}

/// A request's head, and what came after it.
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
    tokio::time::timeout(PATIENCE, reading)
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
        let (host, port) = authority(target, None).ok_or_else(|| bad("this is no `host:port`"))?;
        return Ok(Wanted { host, port, request: None });
    }
    let rest = target
        .strip_prefix("http://")
        .ok_or_else(|| bad("this is a proxy: `CONNECT host:port`, or a whole `http:` URL"))?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (place, path) = rest.split_at(at);
    let (host, port) = authority(place, Some(80)).ok_or_else(|| bad("the URL names no host"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut text = format!("{method} {slash}{path} HTTP/1.1\r\nhost: {place}\r\n").into_bytes();
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        // Of this connection alone, not of the next one; and the host is the one that was judged.
        if name.starts_with("proxy-")
            || ["connection", "keep-alive", "host"].contains(&name.as_str())
        {
            continue;
        }
        text.extend_from_slice(format!("{}: ", header.name).as_bytes());
        text.extend_from_slice(header.value);
        text.extend_from_slice(b"\r\n");
    }
    // One request per connection: the next may be for somebody else.
    text.extend_from_slice(b"connection: close\r\n\r\n");
    Ok(Wanted { host, port, request: Some(text) })
}

/// Host and port of `host:port`, `[address]:port` or, where there is a port for it, `host`.
fn authority(text: &str, standard: Option<u16>) -> Option<(String, u16)> {
    // Nobody's name and password.
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

    fn list(entries: &[&str]) -> AllowList {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        AllowList::parse(&entries).unwrap()
    }

    #[test]
    fn only_what_is_named_passes() {
        let list =
            list(&["api.example.com:443", "*.cdn.example:*", "192.0.2.1:80", "[2001:db8::1]:80"]);
        for (host, port) in [
            ("api.example.com", 443),
            ("API.example.com.", 443),
            ("a.b.cdn.example", 1),
            ("192.0.2.1", 80),
            ("[2001:db8:0::1]", 80),
        ] {
            assert!(list.allows(host, port), "{host}");
        }
        for (host, port) in [
            ("api.example.com", 80),
            ("api.example.com.evil", 443),
            ("xapi.example.com", 443),
            ("cdn.example", 443),
            ("evilcdn.example", 443),
            ("192.0.2.2", 80),
            ("", 443),
        ] {
            assert!(!list.allows(host, port), "{host}:{port}");
        }
        for entry in ["example.com", "https://example.com:443", "a b:1", ":1", "a:b", "*.:1"] {
            assert!(AllowList::parse(&[entry.to_owned()]).is_err(), "{entry}");
        }
    }

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
