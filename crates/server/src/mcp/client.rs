//! Describes the client of a request: its caller, protocol era, capabilities and tool set.
//!
//! Path: 1. Doc: front-doors.md#mcp

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Map, Value, json};
use toolbooth_contracts::conversation::LogLevel;
use toolbooth_contracts::{CallContext, Caller};
use toolbooth_mcp::{Era, code, version};

use super::page::DOCUMENT_PAGE_BYTES;
use super::rpc_error::RpcError;

/// The client of one request.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) caller: Caller,
    pub(super) era: Era,
    /// The name that the client claims; no decision depends on it.
    pub(super) name: Option<String>,
    /// The session of the connection, if it has one.
    pub(super) session: Option<String>,
    /// The lowest level of log lines that are sent; `None` = no log lines.
    pub(super) log_level: Option<LogLevel>,
    /// The names of its capabilities; empty in the legacy era.
    pub(super) capabilities: Vec<String>,
    /// The tool set of the door that it uses; `None` = everything.
    pub(super) toolset: Option<Arc<str>>,
    /// The headers of the request that repeat arguments; `None` for a transport without headers.
    pub(super) param_headers: Option<HeaderMap>,
    /// Bytes of the tools on one page of a listing.
    pub(super) page_bytes: usize,
}

impl Client {
    /// Creates the client of a request of the modern era.
    pub(super) fn modern(caller: Caller, stated: Stated, toolset: Option<Arc<str>>) -> Self {
        let Stated { name, log_level, capabilities } = stated;
        Self {
            caller,
            era: Era::Modern,
            name,
            session: None,
            log_level,
            capabilities,
            toolset,
            param_headers: None,
            page_bytes: DOCUMENT_PAGE_BYTES,
        }
    }

    /// Creates the client of a session.
    pub(super) fn legacy(
        caller: Caller,
        name: Option<String>,
        session: String,
        toolset: Option<Arc<str>>,
    ) -> Self {
        Self {
            caller,
            era: Era::Legacy,
            name,
            session: Some(session),
            log_level: None,
            capabilities: Vec::new(),
            toolset,
            param_headers: None,
            page_bytes: DOCUMENT_PAGE_BYTES,
        }
    }

    /// Whether a server's `requiredCapabilities` contain one that the client lacks. Always false in
    /// the legacy era, because its clients state no capabilities here.
    pub(super) fn lacks(&self, data: Option<&Value>) -> bool {
        let required = data.and_then(|data| data.get("requiredCapabilities"));
        let names = required.and_then(Value::as_object).filter(|_| self.is_modern());
        names.is_some_and(|names| names.keys().any(|name| !self.capabilities.contains(name)))
    }

    pub(super) fn is_modern(&self) -> bool {
        self.era == Era::Modern
    }

    /// Returns the agent's claims in `_meta`. If it has no agent id, the client's name is used; if it has no
    /// session, that of the connection.
    ///
    /// # Errors
    /// `-32602` if a member has another type: without its key, a call that is repeated would run again.
    pub(super) fn context(&self, meta: &Map<String, Value>) -> Result<CallContext, RpcError> {
        let own = |key: &str| meta.get(&format!("toolbooth/{key}")).filter(|own| !own.is_null());
        let wrong = |key: &str, kind: &str| {
            RpcError::invalid_params(format!("`_meta` has no {kind} as `toolbooth/{key}`"))
        };
        let text = |key: &str| match own(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong(key, "text")),
        };
        let number = |key: &str| match own(key) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| wrong(key, "whole number")),
        };
        Ok(CallContext {
            call_id: text("callId")?,
            agent_id: text("agentId")?.or_else(|| self.name.clone()),
            turn_index: number("turnIndex")?,
            phase_id: text("phaseId")?,
            epic_id: text("epicId")?,
            session_id: text("sessionId")?.or_else(|| self.session.clone()),
            idempotency_key: text("idempotencyKey")?,
            deadline_ms: number("deadlineMs")?,
        })
    }
}

/// The client data in each request of the modern era.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stated {
    pub(super) name: Option<String>,
    pub(super) log_level: Option<LogLevel>,
    pub(super) capabilities: Vec<String>,
}

const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Returns the protocol version that a request states in its `_meta`.
pub(super) fn stated_version(meta: &Map<String, Value>) -> Option<&str> {
    meta.get(PROTOCOL_VERSION).and_then(Value::as_str)
}

/// Returns the era of a request by the version in the head of its transport and in its `_meta`.
///
/// # Errors
/// `-32022` for a version of neither era.
pub(super) fn era(
    head: Option<&str>,
    method: &str,
    meta: &Map<String, Value>,
) -> Result<Era, RpcError> {
    let stated = [head, stated_version(meta)];
    if method == "server/discover" || stated.contains(&Some(version::modern())) {
        return Ok(Era::Modern);
    }
    let is_known = |own: &&str| version::legacy().iter().any(|known| known == own);
    match stated.into_iter().flatten().find(|own| !is_known(own)) {
        Some(unknown) => Err(unsupported(unknown)),
        None => Ok(Era::Legacy),
    }
}

/// Reads the client data of a modern request from its `_meta`.
///
/// # Errors
/// `-32602` if a required member is missing or malformed, `-32022` for an unsupported version.
pub(super) fn stated(meta: &Map<String, Value>) -> Result<Stated, RpcError> {
    let mut missing = Vec::new();
    if stated_version(meta).is_none() {
        missing.push(PROTOCOL_VERSION);
    }
    if !meta.get(CLIENT_CAPABILITIES).is_some_and(Value::is_object) {
        missing.push(CLIENT_CAPABILITIES);
    }
    if !missing.is_empty() {
        return Err(RpcError::invalid_params(format!(
            "`_meta` lacks what every request of {} has: {}",
            version::modern(),
            missing.join(", ")
        ))
        .with_data(json!({ "missing": missing })));
    }
    if let Some(version) = stated_version(meta).filter(|version| *version != version::modern()) {
        return Err(unsupported(version));
    }
    let info = meta.get(CLIENT_INFO);
    let level = match meta.get(LOG_LEVEL) {
        None | Some(Value::Null) => None,
        Some(word) => match word.as_str().and_then(LogLevel::parse) {
            Some(level) => Some(level),
            None => {
                return Err(RpcError::invalid_params(format!("`{LOG_LEVEL}` is not a log level")));
            }
        },
    };
    Ok(Stated {
        name: info.and_then(|info| info.get("name")).and_then(Value::as_str).map(str::to_owned),
        log_level: level,
        capabilities: meta
            .get(CLIENT_CAPABILITIES)
            .and_then(Value::as_object)
            .map(|own| own.keys().cloned().collect())
            .unwrap_or_default(),
    })
}

/// Returns the error `-32022`, with the supported versions.
pub(super) fn unsupported(requested: &str) -> RpcError {
    let mut supported = version::legacy().to_vec();
    supported.push(version::modern().to_owned());
    let shown: String = requested.chars().take(100).collect();
    RpcError::new(code::UNSUPPORTED_VERSION, "the protocol version is not supported")
        .with_data(json!({ "supported": supported, "requested": shown }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn modern_requests_state_version_and_capabilities() {
        let said = stated(&meta(json!({
            PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {"roots": {}},
            CLIENT_INFO: {"name": "agent"}, LOG_LEVEL: "warning",
        })));
        assert_eq!(
            said.unwrap(),
            Stated {
                name: Some("agent".into()),
                log_level: Some(LogLevel::Warning),
                capabilities: vec!["roots".into()],
            }
        );
        let error = stated(&meta(json!({ PROTOCOL_VERSION: "2026-07-28" }))).unwrap_err();
        assert_eq!((error.code, error.message.contains("clientCapabilities")), (-32_602, true));
        let error =
            stated(&meta(json!({ PROTOCOL_VERSION: "2099-01-01", CLIENT_CAPABILITIES: {} })));
        let error = error.unwrap_err();
        assert_eq!(error.code, -32_022);
        assert_eq!(error.data.unwrap()["requested"], "2099-01-01");
        let odd =
            json!({ PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}, LOG_LEVEL: "x" });
        assert_eq!(stated(&meta(odd)).unwrap_err().code, -32_602);
    }

    #[test]
    fn the_era_is_that_of_the_stated_version() {
        let modern = version::modern();
        let stating = |version: &str| meta(json!({ PROTOCOL_VERSION: version }));
        let of = |head, meta: &Map<String, Value>| era(head, "tools/list", meta);
        assert_eq!(of(None, &Map::new()).unwrap(), Era::Legacy);
        assert_eq!(of(Some("2025-06-18"), &stating("2025-06-18")).unwrap(), Era::Legacy);
        for (head, meta) in [
            (Some(modern), Map::new()),
            (None, stating(modern)),
            (Some("2025-06-18"), stating(modern)),
        ] {
            assert_eq!(of(head, &meta).unwrap(), Era::Modern);
        }
        assert_eq!(era(None, "server/discover", &stating("x")).unwrap(), Era::Modern);
        for (head, meta) in [(Some("2027-01-01"), Map::new()), (None, stating("draft"))] {
            let error = of(head, &meta).unwrap_err();
            assert_eq!(error.code, code::UNSUPPORTED_VERSION);
        }
    }

    #[test]
    fn the_agent_is_the_client_where_it_says_nothing() {
        let client = Client {
            caller: Caller::local(),
            era: Era::Modern,
            name: Some("editor".into()),
            session: Some("s1".into()),
            log_level: None,
            capabilities: Vec::new(),
            toolset: None,
            param_headers: None,
            page_bytes: DOCUMENT_PAGE_BYTES,
        };
        let own = client.context(&Map::new()).unwrap();
        assert_eq!(
            (own.agent_id.as_deref(), own.session_id.as_deref()),
            (Some("editor"), Some("s1"))
        );
        let claimed = client.context(&meta(json!({
            "toolbooth/agentId": "planner", "toolbooth/turnIndex": 3, "toolbooth/deadlineMs": 9,
            "toolbooth/sessionId": "s2", "toolbooth/callId": null
        })));
        let claimed = claimed.unwrap();
        for wrong in [
            json!({"toolbooth/idempotencyKey": 5}),
            json!({"toolbooth/callId": true}),
            json!({"toolbooth/deadlineMs": "100"}),
            json!({"toolbooth/deadlineMs": -1}),
            json!({"toolbooth/turnIndex": 1.5}),
        ] {
            assert_eq!(client.context(&meta(wrong)).unwrap_err().code, -32_602);
        }
        assert_eq!(claimed.agent_id.as_deref(), Some("planner"));
        assert_eq!(claimed.session_id.as_deref(), Some("s2"));
        assert_eq!((claimed.turn_index, claimed.deadline_ms), (Some(3), Some(9)));
    }
}
