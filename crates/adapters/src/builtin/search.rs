//! Implements `web_search`: queries a configured endpoint with the JSON interface of SearXNG.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::json::{parse, read_as};
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Effect, ErrorCode, Outcome, ToolOutput};

use crate::functions::{Functions, entry};
use crate::text::plain;

const SETTING: &str = "builtin.web_search.endpoint";
const RESPONSE_BYTES_MAX: usize = 4 << 20;
const LIMIT_DEFAULT: usize = 10;

/// The endpoint for searches.
#[derive(Debug, Clone)]
pub struct SearchEndpoint {
    /// The URL, such as `http://127.0.0.1:8888/search`.
    pub url: String,
    /// Time limit for a response.
    pub timeout: Duration,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// The search query.
    #[schemars(length(min = 1, max = 1000))]
    query: String,
    /// Maximum number of results.
    #[schemars(range(min = 1, max = 50))]
    limit: Option<usize>,
}

pub(super) fn add(functions: &mut Functions, endpoint: Option<SearchEndpoint>) -> Value {
    let missing = || format!("the tool is not configured: `{SETTING}` is missing");
    let ready = {
        let there = endpoint.is_some();
        move || {
            if there {
                Readiness::Ready
            } else {
                Readiness::NotConfigured(format!("`{SETTING}` is missing"))
            }
        }
    };
    let endpoint = endpoint.map(Arc::new);
    functions.insert(
        "web_search",
        Arc::new(move |arguments, conversation| {
            let endpoint = endpoint.clone();
            Box::pin(async move {
                let Some(endpoint) = endpoint else {
                    return Outcome::Failed(ExecutionError::not_configured(missing()));
                };
                let search: Search = match read_as(arguments.tree()) {
                    Ok(search) => search,
                    Err(error) => {
                        let told = format!("the arguments do not fit the tool: {error}");
                        let failed = ExecutionError::adapter(Effect::NotStarted, &*told);
                        return Outcome::Failed(failed.with_safe(told));
                    }
                };
                tokio::select! {
                    answer = ask(&endpoint, search) => answer.map_or_else(Outcome::Failed, Outcome::Done),
                    () = conversation.cancelled() => Outcome::Failed(
                        ExecutionError::adapter(Effect::Unknown, "the search was cancelled"),
                    ),
                }
            })
        }),
        Arc::new(ready),
    );
    entry::<Search>("web_search", "Searches the web through the configured search endpoint.")
}

/// Returns the error of a search that was not answered. A search changes nothing, so it can be repeated.
fn unanswered(code: ErrorCode, safe: &str, internal: impl Into<String>) -> ExecutionError {
    let failed = ExecutionError::adapter(Effect::NotStarted, internal);
    ExecutionError { code, ..failed.with_safe(safe) }
}

/// Returns the error of a request that failed, with its causes.
fn failed(error: reqwest::Error) -> ExecutionError {
    let (code, safe) = match error.is_timeout() {
        true => (ErrorCode::Timeout, "the search endpoint did not answer in time"),
        false => (ErrorCode::AdapterFailed, "the search endpoint cannot be reached"),
    };
    // The address can contain a secret.
    unanswered(code, safe, with_causes(&error.without_url()))
}

async fn ask(endpoint: &SearchEndpoint, search: Search) -> Result<ToolOutput, ExecutionError> {
    let odd = |internal: String| {
        let safe = "the search endpoint did not answer as it should";
        unanswered(ErrorCode::AdapterFailed, safe, internal)
    };
    let client = crate::tls::client()
        .timeout(endpoint.timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(failed)?;
    let query = [("q", search.query.as_str()), ("format", "json")];
    let response = client.get(&endpoint.url).query(&query).send().await.map_err(failed)?;
    let status = response.status();
    if !status.is_success() {
        return Err(odd(format!("the endpoint answered with status {status}")));
    }
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(chunk) = stream.next().await {
        body.extend_from_slice(&chunk.map_err(failed)?);
        if body.len() > RESPONSE_BYTES_MAX {
            return Err(odd(format!("the answer has more than {RESPONSE_BYTES_MAX} bytes")));
        }
    }
    let document = parse(&body).map_err(|fault| odd(format!("the answer is no JSON: {fault}")))?;
    let results = document
        .get("results")
        .and_then(Value::as_array)
        .ok_or_else(|| odd("the answer has no list `results`".to_owned()))?;
    let text = |result: &Value, name: &str| {
        plain(result.get(name).and_then(Value::as_str).unwrap_or_default().as_bytes())
    };
    let found: Vec<Value> = results
        .iter()
        .take(search.limit.unwrap_or(LIMIT_DEFAULT))
        .map(|result| {
            json!({
                "title": text(result, "title"),
                "url": text(result, "url"),
                "snippet": text(result, "content"),
            })
        })
        .collect();
    Ok(ToolOutput::data(&json!({ "results": found })))
}
