//! Loads and commits the batches of one writer, usually in two round trips.
//!
//! The first round trip locks and loads, the second writes and commits. The statements of a round
//! trip are sent together and executed in order. A statement that affects too few rows divides by
//! zero, so that the `COMMIT` sent after it rolls back.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::pruning::Progress;
use toolbooth_audit::backend::working::{Batch, Needs, WorkingSet};
use toolbooth_audit::backend::writer::{Backend, Failure, LogEnd};

use super::connect::{Connection, Server};
use super::statements::{Parameters, Statements};
use super::windows::LockedWindows;
use super::{schema, unavailable};
use crate::newer;

/// Time limit for loading a batch, and for writing it.
const BATCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for reconnecting and reading the end of the log.
const RECOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time to wait for more steps: the resolution of the timer.
const GATHER: Duration = Duration::from_millis(1);

/// A connection with its prepared statements.
pub(super) struct Session {
    connection: Connection,
    pub(super) statements: Statements,
}

impl Session {
    async fn begin(server: &Server) -> Result<Self, Error> {
        Self::over(server.connect().await?).await
    }

    async fn over(connection: Connection) -> Result<Self, Error> {
        let statements = Statements::prepare(&connection.client).await?;
        Ok(Self { connection, statements })
    }

    pub(super) fn client(&self) -> &Client {
        &self.connection.client
    }

    pub(super) async fn ask(
        &self,
        statement: &Statement,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        let parameters: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        self.client().query(statement, &parameters).await
    }

    async fn roll_back(&self) -> Result<(), Failure> {
        let ended = self.ask(&self.statements.rollback, &Parameters::new()).await;
        ended.map(drop).map_err(|error| Failure::Unknown(unavailable(error)))
    }

    /// Sends all statements together and returns the rows of each, in order. The error is that of
    /// the first statement that failed. A failure clears `sound`, at the first poll if the
    /// statement cannot be sent.
    pub(super) async fn ask_all(
        &self,
        asked: &[(&Statement, Parameters<'_>)],
        sound: &AtomicBool,
    ) -> Result<Vec<Vec<Row>>, Failure> {
        let all = asked.iter().map(async |(statement, parameters)| {
            let answer = self.ask(statement, parameters).await;
            sound.fetch_and(answer.is_ok(), Ordering::Relaxed);
            answer
        });
        join_all(all).await.into_iter().collect::<Result<_, Error>>().map_err(failed)
    }
}

/// Classifies the failure of a statement in a transaction that is not committed.
pub(super) fn failed(error: Error) -> Failure {
    let Some(code) = error.code().cloned() else {
        return Failure::Unknown(unavailable(error));
    };
    let text = unavailable(error);
    if [SqlState::DIVISION_BY_ZERO, SqlState::T_R_DEADLOCK_DETECTED].contains(&code)
        || code == SqlState::T_R_SERIALIZATION_FAILURE
    {
        return Failure::Outdated;
    }
    match code.code().get(..2) {
        // SQLSTATE classes of data, constraints, syntax and access, and program limits.
        Some("22" | "23" | "42" | "54") => Failure::Refused(text),
        // The class of `lock_not_available`, which `lock_timeout` raises.
        Some("55") => Failure::Unavailable(text),
        _ => Failure::Unknown(text),
    }
}

/// The backend of one writer, over one connection.
pub(super) struct PostgresBackend {
    server: Server,
    writer: String,
    /// `None` after a commit with an unknown outcome, until a new connection has read the end of
    /// the log.
    session: Option<Session>,
    /// Whether a transaction has begun.
    begun: bool,
    /// The progress of pruning in each log.
    progress: HashMap<String, Progress>,
    /// The windows that the last transaction has locked.
    windows: LockedWindows,
}

impl PostgresBackend {
    pub(super) async fn new(server: Server, writer: String) -> Result<Self, Error> {
        let session = Some(Session::begin(&server).await?);
        let (progress, windows) = Default::default();
        Ok(Self { server, writer, session, begun: false, progress, windows })
    }

    fn session(&mut self) -> Result<Session, Failure> {
        self.session.take().ok_or_else(|| Failure::Unknown(late()))
    }

    /// Puts the session back if the transaction succeeded or could be rolled back. Otherwise the
    /// session is dropped, and the failure is `Unknown`.
    async fn keep(
        &mut self,
        session: Session,
        done: Result<Result<(), Failure>, Elapsed>,
    ) -> Result<(), Failure> {
        let failure = match done.unwrap_or_else(|_| Err(Failure::Unknown(late()))) {
            Ok(()) => {
                self.session = Some(session);
                return Ok(());
            }
            Err(failure) => failure,
        };
        self.begun = false;
        if matches!(failure, Failure::Unknown(_)) {
            return Err(failure);
        }
        // A `COMMIT` after the failed statement has already rolled back; another `ROLLBACK` is
        // harmless.
        let ended = timeout(RECOVER_TIMEOUT, session.roll_back()).await;
        match (ended, failure) {
            (Ok(Ok(())), failure) => {
                self.session = Some(session);
                Err(failure)
            }
            (_, Failure::Unavailable(error) | Failure::Refused(error)) => {
                Err(Failure::Unknown(error))
            }
            (_, _) => Err(Failure::Unknown(late())),
        }
    }
}

fn late() -> LedgerError {
    LedgerError::unavailable("the database did not answer in time")
}

impl Backend for PostgresBackend {
    async fn load(&mut self, needs: &Needs, _: bool, set: &mut WorkingSet) -> Result<(), Failure> {
        self.windows = LockedWindows::default();
        let missing = set.missing(needs);
        if missing.is_empty() {
            return Ok(());
        }
        self.begun = true;
        let session = self.session()?;
        let loading = session.load(missing, &self.writer, &self.progress, &mut self.windows, set);
        let done = timeout(BATCH_TIMEOUT, loading).await;
        self.keep(session, done).await
    }

    async fn write(&mut self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        let begun = std::mem::take(&mut self.begun);
        let session = self.session()?;
        let done =
            timeout(BATCH_TIMEOUT, session.write(batch, begun, &self.windows, from, to)).await;
        self.keep(session, done).await?;
        self.progress
            .extend(batch.upkeep.pruned.as_ref().and_then(|removal| removal.progress.clone()));
        Ok(())
    }

    async fn gather(&mut self, enough: &(dyn Fn() -> bool + Sync)) {
        if !enough() {
            sleep(GATHER).await;
        }
    }

    async fn release(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        let session = self.session()?;
        let done = timeout(BATCH_TIMEOUT, session.roll_back()).await;
        self.keep(session, done).await
    }

    /// Opens a new connection and reads the end of the log. A transaction that has not ended locks
    /// the writer's row, so that `FOR UPDATE` waits for its end.
    fn recover(
        &mut self,
        writer: &str,
    ) -> impl Future<Output = Result<LogEnd, LedgerError>> + Send {
        let writer = writer.to_owned();
        self.session = None;
        self.begun = false;
        async move {
            let asking = async {
                let connection = self.server.connect().await?;
                let version = schema::version(&connection.client).await?;
                if version > schema::VERSION {
                    // Its tables may be others than those of the statements.
                    return Ok(Err(newer(version.into(), schema::VERSION.into())));
                }
                let session = Session::over(connection).await?;
                let sql = "SELECT size, last_leaf FROM writers WHERE writer = $1 FOR UPDATE";
                let row = session.client().query_opt(sql, &[&writer]).await?;
                Ok::<_, Error>(Ok((session, row)))
            };
            let (session, row) = timeout(RECOVER_TIMEOUT, asking)
                .await
                .map_err(|_| late())?
                .map_err(unavailable)??;
            let row = row.ok_or_else(|| {
                let message = "the database does not know this writer; restart";
                LedgerError::unavailable(message)
            })?;
            self.session = Some(session);
            Ok(LogEnd { size: row.get::<_, i64>(0).unsigned_abs(), last_leaf: row.get(1) })
        }
    }
}
