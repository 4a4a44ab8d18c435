//! Opens the records of a database server.
//!
//! Doc: records.md#stores

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use toolbooth_audit::LedgerReads;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::note::Signer;
use toolbooth_contracts::causes::with_causes;
use toolbooth_store::postgres::{self, PostgresOptions, PostgresReads};
use toolbooth_store::sqlite::{self, StoreFolder};

use super::{Records, key, opening_failed, url};
use crate::config::{DurabilitySetting, Loaded};
use crate::failure::{Failure, OUT_OF_REACH};

/// Opens the database of `store.url` for a gateway.
pub(super) async fn open(
    loaded: &Loaded,
    url: &SecretString,
    signer: Option<Signer>,
    writer: &str,
    at: Moment,
    accept_restored: bool,
) -> Result<Records, Failure> {
    if loaded.config.store.durability != DurabilitySetting::Full {
        return Err(Failure::configuration("a store with `url` is always durable in full")
            .at("store.durability"));
    }
    if loaded.config.store.bytes_max.is_some() {
        return Err(Failure::configuration("`bytes_max` is for stores without `url`")
            .at("store.bytes_max")
            .hint("bound the disk of a PostgreSQL server there; take the setting out"));
    }
    let Some(reference) = &loaded.config.store.digest_key else {
        return Err(Failure::configuration(
            "a store with `url` needs the digest key that all its replicas share",
        )
        .at("store.digest_key")
        .hint("`openssl rand -hex 32` makes one; give it as { secret_ref = \"env:NAME\" }"));
    };
    let digest_key = key(loaded, reference, "store.digest_key").await?;
    let mut older_digest_keys = Vec::new();
    for reference in &loaded.config.store.older_digest_keys {
        older_digest_keys.push(key(loaded, reference, "store.older_digest_keys").await?);
    }
    // The own data of this replica is in its data folder.
    let folder =
        StoreFolder::create(&loaded.data).map_err(|error| Failure::store(with_causes(&error)))?;
    let signer = match signer {
        Some(signer) => signer,
        None => folder.signer().map_err(|error| Failure::store(with_causes(&error)))?,
    };
    let kept = match folder.kept_checkpoints() {
        // Accepting a restored database does not require a readable checkpoint.
        Err(sqlite::OpenError::Note { .. }) if accept_restored => Vec::new(),
        kept => kept.map_err(|error| opening_failed(&error, true))?,
    };
    let url = url.expose_secret().to_owned();
    let options =
        PostgresOptions { url, digest_key, older_digest_keys, signer, kept, accept_restored };
    let opened = postgres::open(options, writer, &at).await.map(Records::of);
    if accept_restored && opened.is_ok() {
        folder.forget_checkpoints(None).map_err(|error| opening_failed(&error, false))?;
    }
    opened.map_err(|error| {
        let rolled_back = matches!(error, postgres::OpenError::RolledBack { .. });
        match error {
            postgres::OpenError::Key { .. } => {
                Failure::configuration(with_causes(&error)).at("store.digest_key")
            }
            postgres::OpenError::Url(_) => bad_url(&error),
            postgres::OpenError::Newer { .. } => {
                Failure::store(with_causes(&error)).at("store.url")
            }
            postgres::OpenError::Denied(_) => {
                Failure::store(with_causes(&error)).at("store.url").hint(RIGHTS)
            }
            other if rolled_back => opening_failed(&other, true).at("store.url"),
            other => Failure::store(with_causes(&other)).at("store.url").hint(
                "is the server running, and may this user log in? `toolbooth doctor` shows details",
            ),
        }
    })
}

/// What to do about the missing rights of a database user.
pub(crate) const RIGHTS: &str = "grant the user CREATE on the schema, SELECT, INSERT, UPDATE and DELETE on its tables, \
     and USAGE on its sequences; or make it the owner";

/// Returns the rights at the database that a gateway needs and that the configured user lacks.
pub(crate) async fn missing_rights(loaded: &Loaded) -> Result<Vec<String>, Failure> {
    let Some(url) = url(loaded).await? else { return Ok(Vec::new()) };
    let missing = postgres::missing_rights(url.expose_secret()).await;
    missing.map_err(|error| Failure::store(with_causes(&error)).at("store.url"))
}

fn bad_url(error: &postgres::OpenError) -> Failure {
    Failure::configuration(with_causes(error))
        .at("store.url")
        .hint("it should look like postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=require")
}

/// Opens the database of a URL for reading; `None` if nothing was ever recorded.
pub(super) async fn reads(url: &str) -> Result<Option<Arc<dyn LedgerReads>>, Failure> {
    match PostgresReads::open(url).await {
        Ok(reads) => Ok(Some(Arc::new(reads))),
        Err(postgres::OpenError::Empty) => Ok(None),
        Err(error @ postgres::OpenError::Url(_)) => Err(bad_url(&error)),
        Err(error @ (postgres::OpenError::Newer { .. } | postgres::OpenError::Older { .. })) => {
            Err(Failure::new(OUT_OF_REACH, "store-unavailable", with_causes(&error))
                .at("store.url"))
        }
        Err(error @ postgres::OpenError::Denied(_)) => {
            let failure = Failure::new(OUT_OF_REACH, "store-unavailable", with_causes(&error));
            Err(failure.at("store.url").hint(RIGHTS))
        }
        Err(error) => Err(Failure::new(OUT_OF_REACH, "store-unavailable", with_causes(&error))
            .at("store.url")
            .hint("is the server running, and may this user log in to this database?")),
    }
}
