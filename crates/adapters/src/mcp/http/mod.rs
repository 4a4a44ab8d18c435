//! Reaches a server over streamable HTTP: one POST for each request, and separate event streams.
//!
//! Path: 7. Doc: execution.md#mcp-servers

mod posts;
mod session_headers;
mod streams;

use std::sync::Mutex;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use toolbooth_mcp::header;

pub(super) use self::posts::{Post, Posted};
pub(super) use self::session_headers::SessionHeaders;
use super::resolver::Resolver;
use crate::error::ConnectError;
use crate::own_doors::OwnDoors;

/// Maximum concurrent requests of one connection; further ones wait within their own timeout.
const POSTS_MAX: usize = 256;
/// Timeout for ending a session.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for a notification or a reply to the server.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent replies to the server's own requests; further requests get no reply.
const REPLIES_MAX: usize = 8;

/// The endpoint of a server.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    url: String,
    parsed: Option<reqwest::Url>,
    headers: HeaderMap,
    posts: Semaphore,
    drains: Mutex<JoinSet<()>>,
    replies: Semaphore,
}

/// Whether a header is reserved for the protocol.
pub(super) fn is_reserved(name: &http::HeaderName) -> bool {
    [
        "accept",
        header::SESSION,
        header::LAST_EVENT_ID,
        header::VERSION,
        header::METHOD,
        header::NAME,
    ]
    .iter()
    .any(|reserved| name.as_str().eq_ignore_ascii_case(reserved))
}

/// Takes the user and the password out of a URL, as a header of HTTP basic authentication (RFC 7617).
fn take_credentials(url: &mut reqwest::Url) -> Option<HeaderValue> {
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let mut pair = decoded(url.username());
    if pair.is_empty() && url.password().is_none() {
        return None;
    }
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    // A URL with a host can have its user and password removed.
    let _ = (url.set_username(""), url.set_password(None));
    let mut header =
        HeaderValue::from_str(&format!("Basic {}", data_encoding::BASE64.encode(&pair))).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl Http {
    pub(super) fn new(
        url: String,
        mut headers: HeaderMap,
        doors: &OwnDoors,
    ) -> Result<Self, ConnectError> {
        let mut parsed: Option<reqwest::Url> = url.parse().ok();
        let resolver = Resolver::of(parsed.as_ref(), doors)?;
        let client = crate::tls::client()
            .dns_resolver(resolver)
            // The size limit applies to the bytes read, and compressed responses would evade it.
            .no_gzip()
            .no_deflate()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()
            .map_err(ConnectError::Client)?;
        let (posts, replies) = (Semaphore::new(POSTS_MAX), Semaphore::new(REPLIES_MAX));
        if let Some(credentials) = parsed.as_mut().and_then(take_credentials) {
            headers.entry(AUTHORIZATION).or_insert(credentials);
        }
        Ok(Self { client, url, parsed, headers, posts, drains: Mutex::default(), replies })
    }

    /// Returns a request with the headers of the endpoint and of the connection.
    fn marked(&self, method: http::Method, speech: &SessionHeaders) -> reqwest::RequestBuilder {
        let mut all = self.headers.clone();
        all.extend(speech.all.clone());
        self.with_headers(method, all)
    }

    /// Returns a POST with all its headers.
    fn marked_post(&self, speech: &SessionHeaders, headers: HeaderMap) -> reqwest::RequestBuilder {
        let prepared = speech.of_posts.get_or_init(|| {
            let mut all = self.headers.clone();
            all.extend(speech.all.clone());
            let accepted = HeaderValue::from_static("application/json, text/event-stream");
            all.insert(ACCEPT, accepted);
            all.insert(CONTENT_TYPE, HeaderValue::from_static(header::JSON));
            all
        });
        let mut all = prepared.clone();
        all.extend(headers);
        self.with_headers(http::Method::POST, all)
    }

    fn with_headers(&self, method: http::Method, headers: HeaderMap) -> reqwest::RequestBuilder {
        match &self.parsed {
            Some(url) => {
                let mut request = reqwest::Request::new(method, url.clone());
                *request.headers_mut() = headers;
                reqwest::RequestBuilder::from_parts(self.client.clone(), request)
            }
            // The request fails, and its error tells why.
            None => self.client.request(method, &self.url).headers(headers),
        }
    }

    /// Replies to a request of the server, unless too many replies are in progress.
    async fn reply(&self, speech: &SessionHeaders, body: Vec<u8>) {
        if let Ok(_permit) = self.replies.try_acquire() {
            self.notify(speech, body, HeaderMap::new()).await;
        }
    }

    /// Sends a message that has no response.
    pub(super) async fn notify(&self, speech: &SessionHeaders, body: Vec<u8>, headers: HeaderMap) {
        let request = self.marked_post(speech, headers).body(body);
        let _ = tokio::time::timeout(NOTIFY_TIMEOUT, request.send()).await;
    }

    /// Ends a session.
    pub(super) async fn delete(&self, speech: &SessionHeaders) {
        if speech.has_session {
            let request = self.marked(http::Method::DELETE, speech);
            let _ = tokio::time::timeout(DELETE_TIMEOUT, request.send()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_url_become_a_header() {
        let sent = |url: &str, own: Option<&'static str>| {
            let own = own.map(|own| (AUTHORIZATION, HeaderValue::from_static(own)));
            let http =
                Http::new(url.to_owned(), own.into_iter().collect(), &OwnDoors::default()).unwrap();
            let speech = SessionHeaders::new("2025-11-25", None);
            let posted = http.marked_post(&speech, HeaderMap::new()).build().unwrap();
            let opened = http.marked(http::Method::GET, &speech).build().unwrap();
            assert_eq!(posted.url(), opened.url());
            assert_eq!(posted.headers().get(AUTHORIZATION), opened.headers().get(AUTHORIZATION));
            let header =
                posted.headers().get(AUTHORIZATION).map(|own| own.to_str().unwrap().to_owned());
            (posted.url().to_string(), header)
        };
        let basic =
            |pair: &str| Some(format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes())));
        let bare = "http://127.0.0.1:9/mcp".to_owned();
        for (url, own, header) in [
            ("http://127.0.0.1:9/mcp", None, None),
            ("http://ada:s%3Ac%40ret@127.0.0.1:9/mcp", None, basic("ada:s:c@ret")),
            ("http://ada@127.0.0.1:9/mcp", None, basic("ada:")),
            ("http://:s@127.0.0.1:9/mcp", None, basic(":s")),
            ("http://ada:s@127.0.0.1:9/mcp", Some("Bearer t"), Some("Bearer t".to_owned())),
        ] {
            assert_eq!(sent(url, own), (bare.clone(), header), "{url}");
        }
    }
}
