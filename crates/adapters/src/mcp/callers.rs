//! Holds separate connections per caller, with the caller's own credentials.
//!
//! Path: 7. Doc: execution.md#callers-of-their-own

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{Caller, Effect};

use super::link::Link;
use crate::secrets::Setting;

/// Maximum number of callers connected to one server at once.
const CALLERS_MAX: usize = 64;

/// A function that returns the variables or headers of a caller for one server; `None` = the caller
/// has none.
pub type Credentials = Arc<dyn Fn(&Caller) -> Option<Vec<(String, Setting)>> + Send + Sync>;

/// Settings for connections per caller.
#[derive(Clone)]
pub struct CallerSettings {
    /// The server in configuration, for messages.
    pub server: String,
    /// The callers' own credentials; `None` = only the connections are separate.
    pub credentials: Option<Credentials>,
}

impl fmt::Debug for CallerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerSettings").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The link of one caller.
struct CallerLink {
    used: Instant,
    credentials: Vec<(String, Setting)>,
    link: Arc<Link>,
}

/// A connection for each caller.
pub(super) struct CallerLinks {
    settings: CallerSettings,
    links: tokio::sync::Mutex<Links>,
}

#[derive(Default)]
struct Links {
    current: HashMap<Caller, CallerLink>,
    /// Links whose credentials are no longer in force. They close once their requests have ended.
    replaced: Vec<Weak<Link>>,
    /// The subscriptions of callers that have no credentials at the moment.
    suspended: HashMap<Caller, BTreeSet<String>>,
}

impl Links {
    /// Keeps the subscriptions of a caller without a link. There are at most as many of these as callers with
    /// subscriptions.
    fn suspend(&mut self, caller: &Caller, subscribed: BTreeSet<String>) {
        if !subscribed.is_empty() {
            self.suspended.entry(caller.clone()).or_default().extend(subscribed);
        }
    }

    /// Takes the link of a caller out of use; requests in flight get their answers. Returns the resources that it was
    /// subscribed to.
    fn replace(&mut self, caller: &Caller) -> BTreeSet<String> {
        let Some(CallerLink { link, .. }) = self.current.remove(caller) else {
            return BTreeSet::new();
        };
        self.replaced.retain(|link| link.strong_count() > 0);
        self.replaced.push(Arc::downgrade(&link));
        let subscribed = link.take_subscriptions();
        tokio::spawn(async move { link.close_when_idle().await });
        subscribed
    }
}

impl CallerLinks {
    pub(super) fn new(settings: CallerSettings) -> Self {
        Self { settings, links: tokio::sync::Mutex::default() }
    }

    /// Returns the link of `caller`, never that of another caller.
    pub(super) async fn of(
        &self,
        caller: &Caller,
        template: &Link,
    ) -> Result<Arc<Link>, ExecutionError> {
        // Credentials are read while the links are held: a request never puts back those that another one replaced.
        let mut links = self.links.lock().await;
        let credentials = match &self.settings.credentials {
            Some(own) => own(caller),
            None => Some(Vec::new()),
        };
        let Some(credentials) = credentials else {
            // Its subscriptions begin again with its next credentials.
            let subscribed = links.replace(caller);
            links.suspend(caller, subscribed);
            let server = &self.settings.server;
            return Err(ExecutionError::not_configured(format!(
                "you have no credentials for this tool's server: `[callers.NAME.secrets.{server}]` is missing"
            )));
        };
        let own = links.current.get_mut(caller);
        if let Some(own) = own.filter(|own| own.credentials == credentials) {
            own.used = Instant::now();
            return Ok(Arc::clone(&own.link));
        }
        // The caller has other credentials than before: it never uses a connection with the earlier ones again.
        let mut subscribed = links.replace(caller);
        let mut put_away = None;
        if links.current.len() >= CALLERS_MAX {
            // A link with subscriptions is in use even while it receives no requests.
            let idle = links.current.iter().filter(|(_, CallerLink { link, .. })| {
                Arc::strong_count(link) == 1 && !link.is_subscribed()
            });
            let longest = idle.min_by_key(|(_, own)| own.used).map(|(caller, _)| caller.clone());
            let Some(longest) = longest else {
                links.suspend(caller, subscribed);
                return Err(ExecutionError::adapter(
                    Effect::NotStarted,
                    format!("{CALLERS_MAX} callers use the server at this moment"),
                ));
            };
            put_away = links.current.remove(&longest);
        }
        subscribed.extend(links.suspended.remove(caller).unwrap_or_default());
        let link = template.of_caller(caller.name(), credentials.clone()).subscribed_to(subscribed);
        let own = CallerLink { used: Instant::now(), credentials, link: Arc::clone(&link) };
        links.current.insert(caller.clone(), own);
        drop(links);
        if let Some(CallerLink { link: old, .. }) = put_away {
            old.close().await;
        }
        Ok(link)
    }

    /// Ends a subscription of a caller that has no credentials.
    pub(super) async fn forget(&self, caller: &Caller, uri: &str) {
        let mut links = self.links.lock().await;
        let Some(uris) = links.suspended.get_mut(caller) else { return };
        uris.remove(uri);
        if uris.is_empty() {
            links.suspended.remove(caller);
        }
    }

    pub(super) async fn close(&self) {
        let Links { current, replaced, .. } = std::mem::take(&mut *self.links.lock().await);
        let replaced = replaced.iter().filter_map(Weak::upgrade);
        for link in current.into_values().map(|own| own.link).chain(replaced) {
            link.close().await;
        }
    }
}
