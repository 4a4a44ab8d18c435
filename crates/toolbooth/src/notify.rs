//! Reports a requested approval to those who decide: runs a command, or posts to a URL.
//!
//! Doc: policy.md#notifications

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::task::TaskTracker;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::process::{self, Bounds};
use toolbooth_adapters::secrets::{SecretError, Setting};
use toolbooth_adapters::webhook::Webhook;
use toolbooth_adapters::{CommandLine, ProgramEnd};
use toolbooth_contracts::Conversation;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_proxy::{ApprovalNotice, ApprovalNotifier};

use crate::config::{Loaded, Notify};
use crate::executors::{location, setting};
use crate::failure::Failure;

/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before further attempts.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Maximum number of notifications that are not delivered yet, in all and of one caller; further ones are
/// dropped.
const WAITING_MAX: usize = 100;
const WAITING_PER_CALLER_MAX: usize = 20;
/// Notifications that are delivered at once.
const AT_ONCE: usize = 2;
/// Bytes of the command's output that are read.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Delivers notifications in the background.
pub(crate) struct Notifier {
    target: Arc<Target>,
    /// Notifications that are not delivered yet, by callers.
    waiting: Arc<Mutex<BTreeMap<String, usize>>>,
    at_once: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// How notifications are made.
pub(crate) enum Channel {
    /// By this program.
    Command(String),
    /// To this host.
    Http(String),
    /// To this host on another machine, without TLS: others on the network can read them.
    PlainHttp(String),
}

impl Channel {
    /// Returns a warning if others on the network can read the notifications.
    pub(crate) fn warning(&self) -> Option<String> {
        let Self::PlainHttp(host) = self else { return None };
        Some(format!(
            "notifications to {host} go without TLS: others on the network can read the arguments"
        ))
    }
}

enum Target {
    Command {
        launcher: Launcher,
        line: Box<CommandLine>,
    },
    /// The settings are resolved when they are needed: operators' commands do not need them.
    Url {
        url: Setting,
        secret: Setting,
        webhook: Box<OnceCell<(Webhook, url::Url)>>,
    },
}

impl Target {
    /// Returns the webhook of a URL, whose settings are resolved once.
    async fn webhook<'t>(
        url: &Setting,
        secret: &Setting,
        webhook: &'t OnceCell<(Webhook, url::Url)>,
    ) -> Result<&'t (Webhook, url::Url), String> {
        let make = || async {
            let (url, secret) = (url.clone(), secret.clone());
            // The look-up can be slow.
            let found =
                tokio::task::spawn_blocking(move || Ok((url.resolve()?, secret.resolve()?)));
            let found: Result<_, SecretError> = found.await.map_err(|error| with_causes(&error))?;
            let (url, secret) = found.map_err(|error| with_causes(&error))?;
            let is_http = |url: &url::Url| matches!(url.scheme(), "http" | "https");
            let parsed = url::Url::parse(url.expose_secret()).ok().filter(is_http);
            let parsed = parsed.ok_or_else(|| "`url` is no URL of HTTP".to_owned())?;
            let webhook = Webhook::new(url.expose_secret().to_owned(), secret, TIMEOUT);
            webhook.map(|webhook| (webhook, parsed)).map_err(|error| with_causes(&error))
        };
        webhook.get_or_try_init(make).await
    }
}

/// Returns the configured notifier.
///
/// # Errors
/// [`Failure`] if `[approvals] notify` is not valid.
pub(crate) fn notifier(
    loaded: &Loaded,
    launcher: &Launcher,
) -> Result<Option<Arc<Notifier>>, Failure> {
    let Some(notify) = &loaded.config.approvals.notify else { return Ok(None) };
    let wrong = |message: String| Failure::configuration(message).at("approvals.notify");
    let target = match notify {
        Notify { command: Some(words), url: None, secret: None } if !words.is_empty() => {
            let line = CommandLine {
                argv: words.iter().map(|word| setting(loaded, word)).collect(),
                cwd: Some(Setting::Literal(loaded.folder.display().to_string())),
                written: words.len(),
                ..CommandLine::default()
            };
            Target::Command { launcher: launcher.clone(), line: Box::new(line) }
        }
        Notify { command: None, url: Some(url), secret: Some(secret) } => Target::Url {
            url: setting(loaded, url),
            secret: Setting::Secret(location(loaded, &secret.secret_ref)),
            webhook: Box::default(),
        },
        _ => {
            return Err(wrong("it needs either `command`, or `url` and `secret`".to_owned()));
        }
    };
    Ok(Some(Arc::new(Notifier {
        target: Arc::new(target),
        waiting: Arc::default(),
        at_once: Arc::new(Semaphore::new(AT_ONCE)),
        tasks: TaskTracker::new(),
    })))
}

impl ApprovalNotifier for Notifier {
    fn requested(&self, notice: ApprovalNotice) {
        let Some(slot) = self.take_slot(&notice.caller) else {
            let id = notice.approval_id;
            tracing::warn!(approval.id = id, "too many notifications wait; this one is dropped");
            return;
        };
        let (target, at_once) = (Arc::clone(&self.target), Arc::clone(&self.at_once));
        self.tasks.spawn(async move {
            let _slot = slot;
            let Ok(_turn) = at_once.acquire().await else { return };
            let id = notice.approval_id.clone();
            let document = json!({
                "type": "approval.requested",
                "timestamp": notice.requested_at,
                "data": notice,
            });
            if let Err(reason) = deliver(&target, &id, &document.to_string()).await {
                tracing::warn!(
                    approval.id = id,
                    reason,
                    "the notification of an approval is not delivered"
                );
            }
        });
    }
}

/// The place of a notification that is not delivered yet.
struct QueueSlot {
    caller: String,
    waiting: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.caller);
            }
        }
    }
}

impl Notifier {
    /// Takes a place for a notification of a caller, if one is free.
    fn take_slot(&self, caller: &str) -> Option<QueueSlot> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let own = waiting.get(caller).copied().unwrap_or_default();
        if own >= WAITING_PER_CALLER_MAX || waiting.values().sum::<usize>() >= WAITING_MAX {
            return None;
        }
        waiting.insert(caller.to_owned(), own + 1);
        drop(waiting);
        Some(QueueSlot { caller: caller.to_owned(), waiting: Arc::clone(&self.waiting) })
    }

    /// Checks that notifications can be made, and returns how.
    ///
    /// # Errors
    /// [`Failure`], if a setting cannot be resolved or is not valid, or the program is not there.
    pub(crate) async fn check(&self) -> Result<Channel, Failure> {
        let wrong = |message: String| Failure::configuration(message).at("approvals.notify");
        match &*self.target {
            Target::Command { line, .. } => match line.readiness() {
                Readiness::Ready => Ok(Channel::Command(line.program())),
                Readiness::NotConfigured(why) | Readiness::Unhealthy(why) => Err(wrong(why)),
            },
            Target::Url { url, secret, webhook } => {
                let (_, found) = Target::webhook(url, secret, webhook).await.map_err(wrong)?;
                let host = found.host_str().unwrap_or_default().to_owned();
                let is_local = match found.host() {
                    Some(url::Host::Ipv4(address)) => address.is_loopback(),
                    Some(url::Host::Ipv6(address)) => address.is_loopback(),
                    Some(url::Host::Domain(name)) => name == "localhost",
                    None => false,
                };
                let is_plain = found.scheme() == "http" && !is_local;
                Ok(if is_plain { Channel::PlainHttp(host) } else { Channel::Http(host) })
            }
        }
    }

    /// Waits until all notifications are delivered, at most for a time.
    pub(crate) async fn finish(&self, grace: Duration) {
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "notifications are not delivered");
        }
    }
}

/// Tries until a notification is delivered, or returns why the last attempt failed.
async fn deliver(target: &Target, id: &str, document: &str) -> Result<(), String> {
    let mut pauses = PAUSES.into_iter();
    loop {
        match attempt(target, id, document).await {
            Ok(()) => return Ok(()),
            Err(reason) => match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(reason),
            },
        }
    }
}

async fn attempt(target: &Target, id: &str, document: &str) -> Result<(), String> {
    match target {
        Target::Url { url, secret, webhook } => {
            let (webhook, _) = Target::webhook(url, secret, webhook).await?;
            let posted = webhook.post(id, Timestamp::now().as_second(), document.to_owned()).await;
            posted.map_err(|error| with_causes(&error))
        }
        Target::Command { launcher, line } => {
            let input = document.as_bytes().to_vec();
            let bounds = Bounds { timeout: Some(TIMEOUT), ..Bounds::free(OUTPUT_BYTES_MAX) };
            let (conversation, _cancel) = Conversation::detached();
            let run = process::run(launcher, line, input, bounds, &conversation).await;
            let finished = run.map_err(|error| with_causes(&error))?;
            match finished.ended {
                ProgramEnd::Exit(0) => Ok(()),
                ended => Err(format!("`{}` ends: {ended:?}", line.shown())),
            }
        }
    }
}
