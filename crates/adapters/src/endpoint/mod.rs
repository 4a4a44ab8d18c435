//! Calls HTTP endpoints: one request for each call, from a template or an OpenAPI document.
//!
//! Connections are pooled for each endpoint. Every hop is checked by the address that is connected
//! to. A response is limited while it arrives, after decompression.
//!
//! Path: 7. Doc: execution.md#endpoints

mod destinations;
mod openapi;
mod parameter;
mod request;
mod response;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{
    Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome, ToolOutput,
};
use url::Url;

pub use openapi::Operations;
pub use request::RequestTemplate;

use self::destinations::{Judged, Resolver};
use self::response::failed;
use crate::error::{FillError, RedirectError};
use crate::net_guard::Guard;
use crate::secrets::{KnownSecrets, Setting};
use crate::tls;
use crate::tracked_body::{self, Sent};
use request::Request;

/// Default limit of a response, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 10 << 20;
/// Default connect timeout.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper limit of configured redirects.
pub const REDIRECTS_MAX: u32 = 10;

/// The requests of an endpoint's tools.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// One request. Variables of the gateway in its URL are already substituted.
    Template(Box<RequestTemplate>),
    /// The operations of a document; a tool's target is `METHOD path`.
    Operations(Box<Operations>),
}

/// The header that carries the idempotency key, where the configuration names no other.
pub const IDEMPOTENCY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// A configured endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSettings {
    /// The name in configuration.
    pub name: String,
    /// The requests of its tools.
    pub plan: Plan,
    /// Headers of every request, credentials included.
    pub headers: Vec<(String, Setting)>,
    /// Checks the destinations of requests.
    pub guard: Guard,
    /// Maximum number of redirects that are followed.
    pub redirects: u32,
    /// Maximum bytes of a response, decompressed.
    pub response_bytes_max: usize,
    /// The connect timeout.
    pub connect_timeout: Duration,
    /// The header that carries the idempotency key, such as [`IDEMPOTENCY_HEADER`].
    pub idempotency_header: HeaderName,
    /// Certificates of authorities that are trusted in addition to the system's, PEM.
    pub authorities: Option<Vec<u8>>,
}

/// The executor of one endpoint's tools.
#[derive(Debug)]
pub struct Endpoint {
    settings: EndpointSettings,
    client: OnceLock<reqwest::Client>,
    judged: Judged,
}

impl Endpoint {
    /// Creates an endpoint without connections.
    #[must_use]
    pub fn new(settings: EndpointSettings) -> Self {
        Self { settings, client: OnceLock::new(), judged: Judged::default() }
    }

    fn client(&self) -> reqwest::Result<reqwest::Client> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        // The shared verifier has only the authorities of the machine.
        let mut builder = match &self.settings.authorities {
            Some(_) => {
                tls::install();
                reqwest::Client::builder()
            }
            None => tls::client(),
        };
        builder = builder
            .user_agent(concat!("toolbooth/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.settings.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Resolver {
                guard: self.settings.guard.clone(),
                judged: Arc::clone(&self.judged),
            })
            // An environment variable must not decide where credentials are sent.
            .no_proxy()
            .tcp_nodelay(true);
        if let Some(pem) = &self.settings.authorities {
            let bundle = reqwest::Certificate::from_pem_bundle(pem);
            for certificate in bundle? {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.build()?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    fn request(&self, dispatch: &Dispatch) -> Result<Request, ExecutionError> {
        let wrong = |error: FillError| {
            let sentence = error.to_string();
            ExecutionError::adapter(Effect::NotStarted, sentence.clone()).with_safe(sentence)
        };
        let arguments = dispatch.arguments.tree();
        match &self.settings.plan {
            Plan::Template(template) => template.fill(arguments).map_err(wrong),
            Plan::Operations(operations) => {
                let target = dispatch.target();
                let made = operations.fill(target, None, arguments);
                made.ok_or_else(|| ExecutionError::not_configured(self.no_operation(target)))?
                    .map_err(wrong)
            }
        }
    }

    fn no_operation(&self, target: &str) -> String {
        let name = &self.settings.name;
        format!("the OpenAPI document of `[endpoints.{name}]` has no operation `{target}`")
    }

    fn headers(&self, dispatch: &Dispatch) -> Result<HeaderMap, ExecutionError> {
        let missing = |reason: String| ExecutionError {
            safe: Some("a setting of the tool's endpoint is missing".to_owned()),
            ..ExecutionError::not_configured(reason)
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &self.settings.headers {
            let exposed = value.expose().map_err(|error| missing(error.to_string()))?;
            let header = HeaderName::from_str(name);
            let header = header.map_err(|_| missing(format!("`{name}` is not a header")))?;
            let mut value = HeaderValue::from_str(&exposed)
                .map_err(|_| missing(format!("the value of header `{name}` is not valid")))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        if let Some(key) = &dispatch.idempotency_key
            && let Ok(value) = HeaderValue::from_str(key)
        {
            headers.insert(self.settings.idempotency_header.clone(), value);
        }
        Ok(headers)
    }

    async fn ask(&self, dispatch: &Dispatch) -> Result<ToolOutput, ExecutionError> {
        let mut request = self.request(dispatch)?;
        let mut headers = self.headers(dispatch)?;
        let client = self
            .client()
            .map_err(|error| ExecutionError::adapter(Effect::NotStarted, with_causes(&error)))?;
        let mut hops = 0;
        // A server that responded with a redirect may already have had an effect.
        let mut before = Effect::NotStarted;
        loop {
            let refuse = |reason: String| {
                let (host, port) = host_and_port(&request.url);
                dispatch.execution_log.egress_refused(&host, port, &reason);
                refused(before, reason)
            };
            self.judge(&request.url).await.map_err(|error| refuse(error.to_string()))?;
            let mut sending = client
                .request(request.method.clone(), request.url.clone())
                .headers(headers.clone())
                .timeout(dispatch.timeout);
            if !headers.contains_key(ACCEPT) {
                sending = sending.header(ACCEPT, "application/json, text/*;q=0.8");
            }
            let mut sent = None;
            if let Some(body) = &request.body {
                sending = sending.header(CONTENT_TYPE, "application/json");
                let (tracked, mark) = tracked_body::attach(sending, body.to_string().into_bytes());
                (sending, sent) = (tracked, Some(mark));
            }
            let response = match sending.send().await {
                Ok(response) => response,
                Err(error) => {
                    let taken = sent.as_ref().is_none_or(Sent::is_whole);
                    return Err(failed(&error, taken, before, refuse));
                }
            };
            // Another request to the same name may have stored another address meanwhile.
            let peer = response.remote_addr();
            if let Some(Err(reason)) = peer.map(|peer| self.settings.guard.check(peer)) {
                before = Effect::Unknown;
                return Err(refused(before, reason.to_string()));
            }
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return self.answer(response, before).await;
            }
            before = Effect::Unknown;
            if hops >= self.settings.redirects {
                let internal =
                    format!("the endpoint redirects (status {status}), which is not followed");
                return Err(ExecutionError::adapter(Effect::Unknown, internal)
                    .with_safe("the tool's endpoint redirects elsewhere"));
            }
            hops += 1;
            (request, headers) = follow(request, headers, &response)
                .map_err(|error| ExecutionError::adapter(Effect::Unknown, with_causes(&error)))?;
        }
    }

    /// Returns the secrets given to the endpoint.
    fn secrets(&self) -> KnownSecrets {
        let headers = self.settings.headers.iter();
        Setting::known(headers.map(|(name, value)| (name.as_str(), value)))
    }
}

/// Returns the next request of a redirect (RFC 9110, 15.4). Headers and bodies for one origin are
/// never sent to another.
fn follow(
    request: Request,
    mut headers: HeaderMap,
    response: &reqwest::Response,
) -> Result<(Request, HeaderMap), RedirectError> {
    let status = response.status();
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or(RedirectError::NoLocation(status))?;
    let url = request.url.join(location).map_err(RedirectError::NoUrl)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(RedirectError::Scheme(url.scheme().to_owned()));
    }
    if request.url.scheme() == "https" && url.scheme() == "http" {
        return Err(RedirectError::Downgrade);
    }
    let (mut method, mut body) = (request.method, request.body);
    let again = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    if !again && method != Method::GET && method != Method::HEAD {
        (method, body) = (Method::GET, None);
    }
    if url.origin() != request.url.origin() {
        if body.is_some() {
            return Err(RedirectError::OtherOrigin);
        }
        headers.clear();
    }
    headers.remove(HOST);
    Ok((Request { method, url, body }, headers))
}

fn host_and_port(url: &Url) -> (String, u16) {
    let host = url.host_str().unwrap_or_default().to_owned();
    (host, url.port_or_known_default().unwrap_or_default())
}

fn refused(effect: Effect, reason: String) -> ExecutionError {
    ExecutionError {
        code: ErrorCode::SandboxDenied,
        effect,
        safe: Some("the tool's endpoint is at an address that is not reached from here".to_owned()),
        internal: reason,
    }
}

#[async_trait]
impl Executor for Endpoint {
    fn may_block(&self) -> bool {
        false
    }

    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        tokio::select! {
            biased;
            () = conversation.cancelled() => Outcome::Failed(ExecutionError {
                code: ErrorCode::Cancelled,
                effect: Effect::Unknown,
                safe: None,
                internal: "the request was given up".to_owned(),
            }),
            answer = self.ask(&dispatch) => match answer {
                Ok(output) => Outcome::Done(output),
                Err(error) => Outcome::Failed(error),
            },
        }
    }

    async fn readiness(&self, contract: &ToolContract, probe: bool) -> Readiness {
        let missing = self.settings.headers.iter().find_map(|(_, value)| value.resolve().err());
        if let Some(error) = missing {
            return Readiness::NotConfigured(error.to_string());
        }
        if let Plan::Operations(operations) = &self.settings.plan {
            let target = contract.execution.target.as_deref();
            let target = target.unwrap_or_else(|| contract.tool_id.as_str());
            if !operations.has(target) {
                return Readiness::NotConfigured(self.no_operation(target));
            }
        }
        if !probe {
            return Readiness::Ready;
        }
        match self.client() {
            Ok(_) => Readiness::Ready,
            Err(error) => Readiness::Unhealthy(with_causes(&error)),
        }
    }
}

/// An endpoint with a missing setting.
#[derive(Debug)]
pub struct NotConfigured(String);

impl NotConfigured {
    /// Creates the endpoint; `reason` states the missing setting.
    #[must_use]
    pub fn new(reason: String) -> Self {
        Self(reason)
    }
}

#[async_trait]
impl Executor for NotConfigured {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        Outcome::Failed(ExecutionError {
            safe: Some("a setting of the tool's endpoint is missing".to_owned()),
            ..ExecutionError::not_configured(self.0.clone())
        })
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::NotConfigured(self.0.clone())
    }
}
