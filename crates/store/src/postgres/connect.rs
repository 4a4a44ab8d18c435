//! Connects to the server by URL, with TLS if the URL asks for it, under timeouts.
//!
//! Doc: records.md#stores

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::config::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::OpenError;

/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum connections of the read pool.
pub(super) const READERS: usize = 4;
/// Settings of connections outside the pool: timeouts, plans that use indexes, durable commits.
///
/// The server ends the transaction of a replica that has stopped, with its locks, before others give up waiting for
/// them.
const SESSION: &str = "SET lock_timeout = '8s'; SET statement_timeout = '15s'; \
                       SET idle_in_transaction_session_timeout = '5s'; \
                       SET plan_cache_mode = 'force_generic_plan'; SET enable_seqscan = off; \
                       SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
                       SELECT set_config('synchronous_commit', 'on', false) \
                       WHERE current_setting('synchronous_commit') = 'off'";
/// Settings of the pool's connections: read-only, with a longer statement timeout.
const READ_SESSION: &str = "SET default_transaction_read_only = on; SET statement_timeout = '120s'";

/// A server and its TLS configuration, from a URL.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
}

/// A client, and the task that drives its connection.
pub(super) struct Connection {
    pub(super) client: Client,
    carrier: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        // The library's message repeats no part of the URL, which may contain a password.
        let mut config = Config::from_str(url).map_err(OpenError::Url)?;
        config.connect_timeout(CONNECT_TIMEOUT);
        config.keepalives_idle(Duration::from_secs(10));
        config.tcp_user_timeout(Duration::from_secs(15));
        config.application_name("toolbooth");
        let mut roots = RootCertStore::empty();
        // `SSL_CERT_FILE` replaces the authorities that the machine trusts.
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| OpenError::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config, tls: MakeRustlsConnect::new(client) })
    }

    /// Opens a connection outside the pool.
    pub(super) async fn connect(&self) -> Result<Connection, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        let carrier = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the database ended");
            }
        });
        let connection = Connection { client, carrier };
        connection.client.batch_execute(SESSION).await?;
        Ok(connection)
    }

    /// Returns a pool of at most `size` read-only connections.
    pub(super) fn pool(&self, size: usize) -> Result<Pool, OpenError> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(self.config.clone(), self.tls.clone(), recycling);
        Pool::builder(manager)
            .max_size(size)
            .wait_timeout(Some(Duration::from_secs(10)))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .post_create(deadpool_postgres::Hook::async_fn(|client, _| {
                Box::pin(async move {
                    client
                        .batch_execute(READ_SESSION)
                        .await
                        .map_err(deadpool_postgres::HookError::Backend)
                })
            }))
            .build()
            .map_err(|error| OpenError::Tls(error.to_string()))
    }
}
