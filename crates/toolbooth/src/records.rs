//! Opens the records: for a gateway that writes them, and for operators who read them.
//!
//! Doc: records.md#stores

mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use toolbooth_adapters::secrets;
use toolbooth_audit::backend::disk_space::DiskSpace;
use toolbooth_audit::checkpoint::{Checkpoint, Due};
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::note::Signer;
use toolbooth_audit::{CallQueue, Ledger, LedgerReads};
use toolbooth_contracts::Caller;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::secret_location::SecretRef;
use toolbooth_policy::{Authorizer, FeatureFlags, Operator};
use toolbooth_proxy::Operations;
use toolbooth_store::sqlite::{
    self, DATABASE, Durability, SqliteOptions, SqliteReads, StartCheck, StoreFolder,
};

use crate::config::{Config, DurabilitySetting, Loaded};
use crate::failure::{FAILED, Failure, OUT_OF_REACH};
use crate::trust::Trusted;
pub(crate) use server::{RIGHTS, missing_rights};

/// The default maximum number of events of a checkpoint.
const CHECKPOINT_EVENTS: u64 = 1_000;
/// The default maximum age of the oldest event without a checkpoint.
const CHECKPOINT_INTERVAL_MS: u64 = 5_000;

/// A store that is open for writing.
pub(crate) struct Records {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) reads: Arc<dyn LedgerReads>,
    pub(crate) queue: Arc<dyn CallQueue>,
}

impl Records {
    fn of<T: Ledger + LedgerReads + CallQueue + 'static>(store: T) -> Self {
        let store = Arc::new(store);
        Self { ledger: Arc::clone(&store) as _, reads: Arc::clone(&store) as _, queue: store }
    }
}

/// Returns the conditions under which a checkpoint is signed.
pub(crate) fn due(config: &Config) -> Due {
    let audit = &config.audit;
    let age = audit.checkpoint_interval_ms.unwrap_or(CHECKPOINT_INTERVAL_MS);
    Due {
        events: audit.checkpoint_events.unwrap_or(CHECKPOINT_EVENTS).max(1),
        age_ms: i64::try_from(age).unwrap_or(i64::MAX),
    }
}

/// Reads a key from a secret of the configuration. The lookup can be slow.
pub(crate) async fn key(
    loaded: &Loaded,
    reference: &SecretRef,
    setting: &str,
) -> Result<[u8; 32], Failure> {
    let location = crate::executors::location(loaded, &reference.secret_ref);
    let looking = tokio::task::spawn_blocking(move || secrets::resolve_key(&location));
    let found = looking.await.map_err(|error| Failure::configuration(with_causes(&error)))?;
    found.map_err(|error| Failure::configuration(with_causes(&error)).at(setting.to_owned()))
}

async fn signer(loaded: &Loaded) -> Result<Option<Signer>, Failure> {
    match &loaded.config.audit.signing_key {
        Some(reference) => {
            key(loaded, reference, "audit.signing_key").await.map(|seed| Some(Signer::new(&seed)))
        }
        None => Ok(None),
    }
}

/// Returns the URL of a store for several replicas, if the configuration contains one.
async fn url(loaded: &Loaded) -> Result<Option<SecretString>, Failure> {
    let Some(url) = &loaded.config.store.url else { return Ok(None) };
    let url = crate::executors::setting(loaded, url);
    let looking = tokio::task::spawn_blocking(move || url.resolve());
    let found = looking.await.map_err(|error| Failure::configuration(with_causes(&error)))?;
    found.map(Some).map_err(|error| Failure::configuration(with_causes(&error)).at("store.url"))
}

/// Opens the store for writing and begins the log of a writer.
pub(crate) async fn open(
    loaded: &Trusted,
    writer: String,
    at: Moment,
    accept_restored: bool,
    check: StartCheck,
) -> Result<Records, Failure> {
    let signer = signer(loaded).await?;
    if let Some(url) = url(loaded).await? {
        return server::open(loaded, &url, signer, &writer, at, accept_restored).await;
    }
    let store = &loaded.config.store;
    if store.digest_key.is_some() || !store.older_digest_keys.is_empty() {
        return Err(Failure::configuration("`digest_key` is for stores with `url`")
            .at("store.digest_key")
            .hint("SQLite keeps its digest key in the data folder; take the setting out"));
    }
    let durability = match loaded.config.store.durability {
        DurabilitySetting::Memory => {
            let mut key = [0u8; 32];
            getrandom::fill(&mut key).map_err(|error| Failure::store(with_causes(&error)))?;
            return Ok(Records::of(MemoryLedger::new(&writer, &key, &at)));
        }
        DurabilitySetting::Process => Durability::Process,
        DurabilitySetting::Full => Durability::Full,
    };
    let bytes_max = store.bytes_max;
    if let Some(bytes) = bytes_max.filter(|bytes| *bytes < sqlite::BYTES_MAX_LEAST) {
        return Err(Failure::configuration(format!(
            "a store of {bytes} bytes is too small to be of use"
        ))
        .at("store.bytes_max")
        .hint(format!("at least {} bytes", sqlite::BYTES_MAX_LEAST)));
    }
    let folder = loaded.data.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let bytes_max = Some(match bytes_max {
            None => sqlite::standard_bytes_max(&StoreFolder::create(&folder)?)?,
            Some(chosen) => chosen,
        });
        let options = SqliteOptions {
            durability,
            signer,
            bytes_max,
            accept_restored,
            check,
            ..SqliteOptions::default()
        };
        sqlite::open(&folder, &writer, options, &at)
    });
    let opened = opening.await.map_err(|error| Failure::store(with_causes(&error)))?;
    opened.map(Records::of).map_err(|error| {
        let rolled_back = matches!(
            error,
            sqlite::OpenError::RolledBack { .. }
                | sqlite::OpenError::Restored { .. }
                | sqlite::OpenError::Note { .. }
        );
        opening_failed(&error, rolled_back)
    })
}

fn opening_failed(error: &(dyn std::error::Error + 'static), rolled_back: bool) -> Failure {
    let failure = Failure::store(with_causes(error));
    if rolled_back {
        return failure.hint(
            "calls since then are unknown to it and may run twice; if it was put back on purpose, \
             `toolbooth audit accept-restore` takes it as it is",
        );
    }
    failure.hint("`toolbooth doctor` shows details")
}

/// Publishes a checkpoint: writes it to the program log and to the file that the configuration names.
pub(crate) fn hand_outside(loaded: &Loaded, note: Option<&str>) {
    let Some(note) = note else { return };
    if let Ok(checkpoint) = Checkpoint::of_note(note) {
        tracing::info!(
            audit.writer = checkpoint.writer,
            audit.size = checkpoint.size,
            audit.root = %checkpoint.root,
            audit.note = note,
            "checkpoint"
        );
    }
    if loaded.config.store.url.is_some() {
        let kept =
            StoreFolder::create(&loaded.data).and_then(|folder| folder.keep_checkpoint(note));
        if let Err(error) = kept {
            tracing::warn!(%error, "a checkpoint is not kept in the data folder");
        }
    }
    let Some(path) = &loaded.config.audit.checkpoint_file else { return };
    let path = loaded.path(path);
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{note}\n").as_bytes()));
    if let Err(error) = written {
        tracing::error!(path = %path.display(), %error, "a checkpoint is not handed outside");
    }
}

/// Rejects commands that act on other processes by their common records, where each process has its own.
pub(crate) fn need_shared(loaded: &Loaded) -> Result<(), Failure> {
    if loaded.config.store.durability != DurabilitySetting::Memory {
        return Ok(());
    }
    let message = "with `memory` the records end with each process, so that no other one sees what this one does";
    Err(Failure::configuration(message).at("store.durability").hint("use `full` or `process`"))
}

/// Rejects commands that only the embedded store supports; database servers have tools of their own.
pub(crate) fn only_sqlite(loaded: &Loaded) -> Result<(), Failure> {
    if loaded.config.store.url.is_none() {
        return Ok(());
    }
    Err(Failure::usage("these records are kept by a database server").at("store.url").hint(
        "use the server's own tools, such as pg_dump and pg_restore; after a restore, \
         `toolbooth audit accept-restore`",
    ))
}

/// Returns the location of the records for messages.
pub(crate) fn store_location(loaded: &Loaded) -> String {
    match &loaded.config.store.url {
        // A URL can contain a password.
        Some(_) => "the database of `store.url`".to_owned(),
        None => loaded.data.display().to_string(),
    }
}

/// Whether a store is named by the URL of a server, not by a folder.
pub(crate) fn is_url(store: &str) -> bool {
    store.starts_with("postgres://") || store.starts_with("postgresql://")
}

/// Opens the configured store for reading, or another one (a folder or a URL); `None` if nothing was ever
/// recorded.
pub(crate) async fn reads(
    loaded: &Loaded,
    other: Option<&str>,
) -> Result<Option<Arc<dyn LedgerReads>>, Failure> {
    let found = match other {
        Some(other) => other.to_owned().into(),
        None => url(loaded).await?.unwrap_or_default(),
    };
    if other.is_some_and(is_url) || (other.is_none() && loaded.config.store.url.is_some()) {
        return server::reads(found.expose_secret()).await;
    }
    let folder = other.map_or_else(|| loaded.data.clone(), PathBuf::from);
    folder_reads(&folder)
}

fn folder_reads(folder: &Path) -> Result<Option<Arc<dyn LedgerReads>>, Failure> {
    let path = folder.join(DATABASE);
    if !path.is_file() {
        return Ok(None);
    }
    let reads = SqliteReads::open(&path).map_err(|error| {
        Failure::new(OUT_OF_REACH, "store-unavailable", with_causes(&error))
            .at(path.display().to_string())
    })?;
    Ok(Some(Arc::new(reads)))
}

/// Returns the public key of this gateway, if it has signed or is configured to sign.
pub(crate) async fn own_key(loaded: &Loaded) -> Result<Option<String>, Failure> {
    if let Some(signer) = signer(loaded).await? {
        return Ok(Some(signer.verifier().to_string()));
    }
    if !loaded.data.join("signing.key").is_file() {
        return Ok(None);
    }
    let folder =
        StoreFolder::create(&loaded.data).map_err(|error| Failure::store(with_causes(&error)))?;
    let signer = folder.signer().map_err(|error| Failure::store(with_causes(&error)))?;
    Ok(Some(signer.verifier().to_string()))
}

/// Returns the operator: a user who can read the data folder is the operator.
pub(crate) fn operator() -> Result<Operator, Failure> {
    Authorizer::new(FeatureFlags::default())
        .operator(&Caller::operator())
        .map_err(|denial| Failure::new(FAILED, "policy-denied", denial.reason))
}

/// Returns the records with operator rights for the user of the command line.
pub(crate) fn operations(reads: Arc<dyn LedgerReads>) -> Result<Operations, Failure> {
    Ok(Operations::new(reads, operator()?))
}

/// Returns the operator key of the data folder.
pub(crate) fn operator_key(loaded: &Loaded) -> Result<String, Failure> {
    StoreFolder::create(&loaded.data)
        .and_then(|folder| folder.operator_key())
        .map_err(|error| Failure::store(with_causes(&error)))
}

/// Returns the used and the permitted space of the records as text, and the state that it has led to. `None` for
/// PostgreSQL, whose disk is bounded at its server.
pub(crate) fn space(loaded: &Loaded) -> Result<Option<(String, DiskSpace)>, Failure> {
    if loaded.config.store.url.is_some() || !loaded.data.exists() {
        return Ok(None);
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let failed = |error: sqlite::OpenError| opening_failed(&error, false);
    let folder = StoreFolder::create(&loaded.data).map_err(failed)?;
    let used = sqlite::used_bytes(&folder).map_err(failed)?;
    let bound = match loaded.config.store.bytes_max {
        Some(chosen) => Some(chosen),
        None => folder.kept_bytes_max().map_err(failed)?,
    };
    let state = sqlite::space_state(&folder, bound).map_err(failed)?;
    Ok(bound.map(|bound| (format!("{:.1} of {:.1} MiB used", mib(used), mib(bound)), state)))
}
