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
    let folder =
        StoreFolder::create(&loaded.data).map_err(|error| Failure::store(with_causes(&error)))?;
    let digester = folder.digester(false).map_err(|error| Failure::store(with_causes(&error)))?;
    Ok(Some(digester))
}

/// Returns the digest keys of this gateway's store for its verification; otherwise why they cannot be used: there are
/// none, or the store has another one.
pub(crate) async fn fitting_digester(
    loaded: &Loaded,
    reads: &dyn LedgerReads,
) -> Result<Result<Digester, String>, Failure> {
    let Some(digester) = own_digester(loaded).await? else {
        let missing = "the digest key is missing, so asynchronous calls cannot be compared";
        return Ok(Err(missing.to_owned()));
    };
    let stored = reads.key_ids().await.map_err(|error| Failure::store(error.to_string()))?;
    let is_unknown = |id: &String| digester.all().all(|own| own.key_id() != id);
    match stored.unwrap_or_default().into_iter().find(is_unknown) {
        None => Ok(Ok(digester)),
        Some(id) => Ok(Err(format!(
            "the digest key has the id {}, and the store has one with the id {id}, which is not known here, so \
             asynchronous calls cannot be compared",
            digester.key_id()
        ))),
    }
}
