//! The certificate of the HTTP door: read from its files, and again when they change.
//!
//! Doc: front-doors.md#tls

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use toolbooth_contracts::causes::with_causes;
use toolbooth_server::http::Tls;

use crate::config::Loaded;
use crate::failure::Failure;
use crate::files::{self, Changes, Stamp, stamp};

/// Maximum length of each file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The interval between checks of the files.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The files of a certificate chain and its key.
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// The door's certificate, and where it comes from.
pub(crate) struct Certificate {
    pub(crate) tls: Arc<Tls>,
    files: Files,
}

impl Files {
    fn of(loaded: &Loaded) -> Option<Self> {
        let tls = loaded.config.http.tls.as_ref()?;
        Some(Self { cert: loaded.path(&tls.cert), key: loaded.path(&tls.key) })
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let read = |path: &Path, name: &str| {
            files::read_within(path, FILE_BYTES_MAX).map_err(|error| {
                let message = format!("`{}` cannot be read: {error}", path.display());
                Failure::configuration(message)
                    .at(format!("http.tls.{name}"))
                    .hint("name a file in PEM that the user of the gateway can read")
            })
        };
        Ok((read(&self.cert, "cert")?, read(&self.key, "key")?))
    }

    fn stamps(&self) -> (Stamp, Stamp) {
        (stamp(&self.cert), stamp(&self.key))
    }
}

/// Reads the door's certificate; `None` if it speaks plain HTTP.
///
/// # Errors
/// [`Failure`], if a file cannot be read, or they do not fit each other.
pub(crate) fn read(loaded: &Loaded) -> Result<Option<Certificate>, Failure> {
    let Some(files) = Files::of(loaded) else { return Ok(None) };
    let (cert, key) = files.read()?;
    let tls = Tls::new(&cert, &key).map_err(|error| {
        Failure::configuration(with_causes(&error)).at("http.tls").hint(
            "`cert` has the certificate of the gateway and those of its issuers, `key` the private \
             key of the first, both in PEM",
        )
    })?;
    warn_of_others(&files.key);
    Ok(Some(Certificate { tls: Arc::new(tls), files }))
}

/// Warns if other users of the machine can read the key.
fn warn_of_others(key: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(key).map_or(0, |data| data.permissions().mode());
    if mode & 0o004 != 0 {
        let key = key.display();
        crate::notice(&format!("risk: every user of this machine can read the key `{key}`"));
    }
}

impl Certificate {
    /// Uses the files for new connections when they change, and at SIGHUP. Files that cannot be used are
    /// reported, and the last good ones stay.
    pub(crate) async fn watch(self) {
        let Ok(mut hang_up) = signal(SignalKind::hangup()) else { return };
        let mut changes = Changes::default();
        loop {
            let is_asked = tokio::select! {
                _ = hang_up.recv() => true,
                () = tokio::time::sleep(WATCH_EVERY) => false,
            };
            if changes.look(self.files.stamps()) || is_asked {
                self.replace();
            }
        }
    }

    fn replace(&self) {
        let replaced =
            self.files.read().map_err(|failure| failure.message).and_then(|(cert, key)| {
                self.tls.replace(&cert, &key).map_err(|error| with_causes(&error))
            });
        match replaced {
            Ok(()) => tracing::info!("the certificate is read"),
            Err(reason) => {
                tracing::error!(reason, "the certificate is refused, the last good one stays");
            }
        }
    }
}
