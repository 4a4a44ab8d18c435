//! Runs queries over the connections of a pool.
//!
//! Doc: records.md#reading

use deadpool_postgres::{Object, Pool, PoolError};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;

use super::conditions::Conditions;
use crate::postgres::unavailable;

/// Returns the rows of a query over a connection of a pool.
pub(super) async fn rows_over(
    pool: &Pool,
    sql: &str,
    conditions: &Conditions,
) -> Result<Vec<Row>, LedgerError> {
    let values: Vec<&(dyn ToSql + Sync)> =
        conditions.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
    let client = client_of(pool).await?;
    let statement = client.prepare_cached(sql).await.map_err(unavailable)?;
    client.query(&statement, &values).await.map_err(unavailable)
}

async fn client_of(pool: &Pool) -> Result<Object, LedgerError> {
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => unavailable(error),
        other => LedgerError::unavailable_by(other),
    })
}
