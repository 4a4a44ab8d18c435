//! The digest keys of the store, for its verification.
//!
//! Doc: records.md#digests

use toolbooth_audit::{Digester, LedgerReads};
use toolbooth_contracts::causes::with_causes;
use toolbooth_store::sqlite::StoreFolder;

use crate::config::Loaded;
use crate::failure::Failure;
use crate::records::key;

/// Returns the digest keys of this gateway's store, if they exist.
async fn own_digester(loaded: &Loaded) -> Result<Option<Digester>, Failure> {
    let store = &loaded.config.store;
    if let (Some(_), Some(reference)) = (&store.url, &store.digest_key) {
        let newest = key(loaded, reference, "store.digest_key").await?;
        let mut older = Vec::new();
        for reference in &store.older_digest_keys {
            older.push(key(loaded, reference, "store.older_digest_keys").await?);
        }
        return Ok(Some(Digester::new(&newest).with_older(&older)));
    }
    if !loaded.data.join("digest.key").is_file() {
        return Ok(None);
    }
    let folder = StoreFolder::at(&loaded.data);
    let digester = folder.digester(false).map_err(|error| Failure::store(with_causes(&error)))?;
    Ok(Some(digester))
}

/// How the digest keys of this gateway relate to its store.
pub(crate) enum StoreDigester {
    /// It has all keys of the store.
    Fits(Digester),
    /// It cannot be used: there are no keys, or the store has another one. The sentence is for operators.
    Lacks(String),
}

/// Returns the digest keys of this gateway's store for its verification.
pub(crate) async fn fitting_digester(
    loaded: &Loaded,
    reads: &dyn LedgerReads,
) -> Result<StoreDigester, Failure> {
    let Some(digester) = own_digester(loaded).await? else {
        let missing = "the digest key is missing, so asynchronous calls cannot be compared";
        return Ok(StoreDigester::Lacks(missing.to_owned()));
    };
    let stored = reads.key_ids().await.map_err(|error| Failure::store(with_causes(&error)))?;
    let is_unknown = |id: &String| digester.all().all(|own| own.key_id() != id);
    match stored.unwrap_or_default().into_iter().find(is_unknown) {
        None => Ok(StoreDigester::Fits(digester)),
        Some(id) => Ok(StoreDigester::Lacks(format!(
            "the digest key has the id {}, and the store has one with the id {id}, which is not known here, so \
             asynchronous calls cannot be compared",
            digester.key_id()
        ))),
    }
}
