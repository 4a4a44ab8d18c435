//! `serve`, `stdio` and `worker`: run until they are stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::id::nearest;
use toolbooth_registry::Source;
use toolbooth_server::auth::{Credentials, Loopback};
use toolbooth_server::http::{self, HttpDoor};
use toolbooth_server::mcp::serve_stdio;
use toolbooth_server::peer::SocketDiagnostics;
use toolbooth_store::sqlite::StartCheck;

use super::maintenance::Maintenance;
use super::signals::{Signals, interrupted};
use crate::certificate;
use crate::compose::Runtime;
use crate::config::RuleMode;
use crate::config::{self, Loaded};
use crate::door;
use crate::failure::{Failure, OUT_OF_REACH};
use crate::issuers;
use crate::offline::{self, OfflineGateway, report_assumptions};
use crate::output;
use crate::trust::Trusted;

/// How long the doors wait for unknown sources; clients are notified of later ones. The doors do not wait for
/// sources with tools that are known from the lock or from pins.
/// Some clients wait 10 s for their servers.
const START_PATIENCE: Duration = Duration::from_secs(8);

/// The default number of concurrent asynchronous calls of `serve`.
const WORKERS: usize = 4;

pub(super) async fn serve(loaded: Trusted, listen: Option<String>) -> Result<bool, Failure> {
    report_assumptions(&loaded);
    let given = listen
        .or_else(|| loaded.config.http.listen.clone())
        .unwrap_or_else(|| config::LISTEN.to_owned());
    let address: SocketAddr = given.parse().map_err(|_| {
        Failure::usage(format!("`{}` is not an address", given.escape_debug()))
            .hint("give an address and a port, such as 127.0.0.1:7717; port 0 picks a free one")
    })?;
    let names = door::names(&loaded.config.http, address)?;
    let limits = door::limits(&loaded.config)?;
    let certificate = certificate::read(&loaded)?;
    let loopback = match names.is_behind_proxy() {
        true => Loopback::None,
        false => loaded.config.http.loopback,
    };
    let operator_key = crate::records::operator_key(&loaded)?;
    // Refuses wrong settings before anything starts; the port may be another one later.
    issuers::accepted(&loaded.config, address)?;
    let mut signals = Signals::new()?;
    let runtime = build(loaded).await?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(OUT_OF_REACH, "cannot-listen", format!("cannot listen on {address}: {error}"))
            .hint("another program may have the port; `--http 127.0.0.1:0` picks a free one")
    });
    let listener = match listener {
        Ok(listener) => listener,
        Err(failure) => {
            runtime.shut_down().await?;
            return Err(failure);
        }
    };
    let address = listener.local_addr().unwrap_or(address);
    runtime.offline.launcher.doors().add(address);
    begin(&runtime).await;
    let socket = runtime.operator_socket().await;
    let mut maintenance = Maintenance::start(&runtime, socket);
    let (stopping, ending) = (CancellationToken::new(), CancellationToken::new());
    let (reads, ordered) = (Arc::clone(&runtime.reads), runtime.proxy.clone());
    let mut authenticator = Credentials::new(runtime.proxy.clone(), loopback, &operator_key);
    let mut resource = None;
    let accepted = match issuers::accepted(&runtime.offline.loaded.config, address) {
        Ok(accepted) => accepted,
        Err(failure) => {
            maintenance.end().await;
            runtime.shut_down().await?;
            return Err(failure);
        }
    };
    if let Some(accepted) = accepted {
        let scopes = accepted.resource.scopes.clone();
        authenticator = authenticator.with_tokens(Arc::new(accepted.tokens), scopes);
        resource = Some(Arc::new(accepted.resource));
    }
    let http_door = HttpDoor {
        gateway: runtime.gateway(),
        authenticator: Arc::new(authenticator),
        resource,
        peers: Arc::new(SocketDiagnostics::default()),
        limits,
        names: Arc::new(names),
        tls: certificate.as_ref().map(|own| Arc::clone(&own.tls)),
        readiness: Arc::new(move || {
            let (reads, proxy) = (Arc::clone(&reads), ordered.clone());
            Box::pin(async move {
                if proxy.are_orders_overdue() {
                    return Err("the orders of operators cannot be read".into());
                }
                if proxy.are_claims_failing() {
                    return Err("calls cannot be recorded".into());
                }
                Ok(reads.healthy().await?)
            })
        }),
    };
    if let Some(certificate) = certificate {
        tokio::spawn(certificate.watch());
    }
    let workers = runtime.offline.loaded.config.proxy.workers.unwrap_or(WORKERS);
    if workers > 0 {
        let (calls, stopping) = (runtime.calls.clone(), stopping.clone());
        tokio::spawn(async move { calls.work(workers, stopping).await });
    }
    let serving = tokio::spawn(http::serve(listener, http_door, stopping.clone(), ending.clone()));
    let url = format!("{}://{address}", runtime.offline.loaded.config.http.scheme());
    output::line(&format!("listening on {url}"));
    hints(&url, &runtime, loopback);
    let defect = tokio::select! {
        () = signals.received() => None,
        failure = maintenance.failed() => Some(failure),
    };
    tracing::info!(calls = runtime.proxy.running(), "stopping");
    stopping.cancel();
    let ended = tokio::select! {
        ended = async {
            let closed = runtime.shut_down().await;
            ending.cancel();
            // Streams end with the token. A client that does not disconnect is abandoned.
            let _ = tokio::time::timeout(Duration::from_secs(3), serving).await;
            closed
        } => ended,
        () = signals.received() => Err(interrupted()),
    };
    maintenance.end().await;
    ended.and_then(|()| defect.map_or(Ok(true), Err))
}

fn hints(url: &str, runtime: &Runtime, loopback: Loopback) {
    let world = runtime.offline.worlds.now();
    crate::notice(&format!(
        "{} tool(s); records under {}",
        world.registry().len(),
        crate::records::store_location(&runtime.offline.loaded)
    ));
    if loopback == Loopback::Any {
        crate::notice(&format!("risk: {}", door::ANY_USER));
    }
    crate::notice("paste into an MCP client:");
    crate::notice(&format!(
        "  {}",
        json!({ "mcpServers": { "toolbooth": { "type": "http", "url": format!("{url}/mcp") } } })
    ));
}

pub(super) async fn stdio(loaded: Trusted, toolset: Option<String>) -> Result<bool, Failure> {
    report_assumptions(&loaded);
    if let Some(name) = &toolset {
        check_toolset(&loaded, name)?;
    }
    let caller = crate::callers::of_stdio(&loaded).await?;
    let mut signals = Signals::new()?;
    let runtime = build(loaded).await?;
    begin(&runtime).await;
    let socket = runtime.operator_socket().await;
    let mut maintenance = Maintenance::start(&runtime, socket);
    let (served, signalled, defect) = tokio::select! {
        served = serve_stdio(runtime.gateway(), caller, toolset.as_deref()) => (served, false, None),
        () = signals.received() => (Ok(()), true, None),
        failure = maintenance.failed() => (Ok(()), true, Some(failure)),
    };
    let patience = async {
        // A client that has closed the input can also send a signal.
        if !signalled {
            signals.received().await;
        }
        signals.received().await;
    };
    let ended = tokio::select! {
        ended = runtime.shut_down() => ended,
        () = patience => Err(interrupted()),
    };
    maintenance.end().await;
    ended?;
    if let Some(defect) = defect {
        return Err(defect);
    }
    served.map(|()| true).map_err(|error| {
        Failure::new(
            OUT_OF_REACH,
            "protocol",
            format!("the client did not begin as the protocol has it: {error}"),
        )
    })
}

/// Reports to a client why the gateway does not start, because an editor does not show standard error.
pub(super) async fn refuse_stdio(failure: Failure) -> Result<bool, Failure> {
    let hint = failure.hint.as_deref().unwrap_or_default();
    let shown_path = failure.path.as_deref().unwrap_or_default();
    let _ = toolbooth_server::mcp::refuse_stdio(&format!(
        "Toolbooth does not start: {}: {shown_path}; {hint}",
        failure.message
    ))
    .await;
    Err(failure)
}

/// Rejects the name of an unknown tool set.
fn check_toolset(loaded: &Loaded, name: &str) -> Result<(), Failure> {
    let known = &loaded.config.toolsets;
    if known.contains_key(name) {
        return Ok(());
    }
    let message = format!("there is no tool set `{}`", name.escape_debug());
    let near = nearest(name, known.keys().map(String::as_str));
    Err(Failure::configuration(message).hint(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "write one as `[toolsets.NAME]`".to_owned(),
    }))
}

/// Runs once before the doors open: asks the sources and records the registry.
async fn begin(runtime: &Runtime) {
    let world = runtime.offline.worlds.now();
    let from_file = world.registry().iter().filter(|tool| *tool.source() == Source::File).count();
    runtime
        .record_all([
            (
                AuditEventKind::RegistryLoaded,
                json!({ "tools": world.registry().len(), "fromFile": from_file }),
            ),
            (AuditEventKind::PolicyLoaded, json!({ "policyVersion": world.policy().version() })),
        ])
        .await;
    if runtime.offline.loaded.config.policy.mode == RuleMode::Shadow {
        crate::notice(
            "risk: the rules are in shadow: what they would deny is recorded, and passes",
        );
    }
    crate::rules::report_warnings(runtime.offline.worlds.now().rule_fit());
    runtime.record_replaced(&runtime.offline.replaced).await;
    runtime.offline.catalogue.want_states().await;
    let catalogue = Arc::clone(&runtime.offline.catalogue);
    let unknown = catalogue.unknown_sources();
    let known = Arc::clone(&catalogue);
    let others = unknown.clone();
    tokio::spawn(async move { known.refresh_only(|source| !others.contains(source)).await });
    let asking =
        tokio::spawn(
            async move { catalogue.refresh_only(|source| unknown.contains(source)).await },
        );
    if tokio::time::timeout(START_PATIENCE, asking).await.is_err() {
        tracing::warn!("some sources have not answered yet; their tools appear when they do");
    }
    runtime.record_discovered().await;
    offline::remember_names(&runtime.offline);
    offline::report_lock(&runtime.offline);
}

/// Builds a gateway that accepts calls.
async fn build(loaded: Trusted) -> Result<Arc<Runtime>, Failure> {
    let offline = OfflineGateway::build(loaded).await?;
    let runtime = Arc::new(Runtime::build_checked(offline, StartCheck::Always).await?);
    if let Err(failure) = runtime.check_notifier().await {
        runtime.shut_down().await?;
        return Err(failure);
    }
    Ok(runtime)
}

/// Runs asynchronous calls until it is stopped.
pub(super) async fn worker(loaded: Trusted, at_once: u32) -> Result<bool, Failure> {
    crate::records::need_shared(&loaded)?;
    report_assumptions(&loaded);
    let mut signals = Signals::new()?;
    let runtime = build(loaded).await?;
    begin(&runtime).await;
    let socket = runtime.operator_socket().await;
    let mut maintenance = Maintenance::start(&runtime, socket);
    let stopping = CancellationToken::new();
    let working = {
        let (calls, stopping) = (runtime.calls.clone(), stopping.clone());
        let at_once = usize::try_from(at_once).unwrap_or(1);
        tokio::spawn(async move { calls.work(at_once, stopping).await })
    };
    crate::notice(&format!(
        "working; records under {}",
        crate::records::store_location(&runtime.offline.loaded)
    ));
    let defect = tokio::select! {
        () = signals.received() => None,
        failure = maintenance.failed() => Some(failure),
    };
    stopping.cancel();
    // Without the periodic tasks the lease ends soon, and others take the calls over.
    if defect.is_none() {
        let _ = working.await;
    }
    let ended = tokio::select! {
        ended = runtime.shut_down() => ended,
        () = signals.received() => Err(interrupted()),
    };
    maintenance.end().await;
    ended.and_then(|()| defect.map_or(Ok(true), Err))
}
