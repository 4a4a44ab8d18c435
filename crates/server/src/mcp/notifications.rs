//! Notifies each client of changes in its own view of listings and resources.
//!
//! Doc: front-doors.md#changes

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use toolbooth_contracts::Caller;
use toolbooth_proxy::{Catalogue, ListingDigests, ResourceUpdate, Subscription, ToolProxy, View};

use super::outbox::{List, Outbox};

/// Changes within this time become one notification.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Maximum resources that one client may subscribe to.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1_000;

/// The listings for which a client receives change notifications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lists {
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
}

impl Lists {
    pub(super) const ALL: Self = Self { tools: true, prompts: true, resources: true };
}

/// The owner of a view: a caller in a tool set.
type Viewer = (Caller, Option<Arc<str>>);

struct Member {
    viewer: Viewer,
    lists: Lists,
    known: ListingDigests,
    resources: BTreeMap<String, Subscription>,
    outbox: Outbox,
}

#[derive(Default)]
struct Members {
    next: u64,
    all: HashMap<u64, Member>,
}

/// All clients that are notified of changes.
#[derive(Clone)]
pub(super) struct Notifications {
    catalogue: Arc<Catalogue>,
    members: Arc<Mutex<Members>>,
}

/// The registration of one client, which ends when it is dropped.
pub(super) struct Membership {
    notifications: Notifications,
    id: u64,
    pub(super) outbox: Outbox,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let member = self.notifications.members().all.remove(&self.id);
        // Its subscriptions are dropped outside of the lock.
        drop(member);
    }
}

impl Membership {
    /// Adds the subscription to a resource; false if the client has too many.
    #[must_use]
    pub(super) fn add(&self, subscription: Subscription) -> bool {
        let mut members = self.notifications.members();
        let Some(member) = members.all.get_mut(&self.id) else { return false };
        if member.resources.len() >= SUBSCRIPTIONS_MAX
            && !member.resources.contains_key(subscription.uri())
        {
            // The subscription is dropped outside of the lock.
            drop(members);
            return false;
        }
        let replaced = member.resources.insert(subscription.uri().to_owned(), subscription);
        drop(members);
        drop(replaced);
        true
    }

    /// Ends the subscription to a resource.
    pub(super) fn remove(&self, uri: &str) {
        let mut members = self.notifications.members();
        let removed = members.all.get_mut(&self.id).and_then(|one| one.resources.remove(uri));
        drop(members);
        drop(removed);
    }
}

impl Notifications {
    /// Starts without clients; two tasks follow changes until the end of the process.
    pub(super) fn new(catalogue: Arc<Catalogue>, proxy: &ToolProxy) -> Self {
        let this = Self { catalogue, members: Arc::default() };
        tokio::spawn(this.clone().follow_lists());
        tokio::spawn(this.clone().follow_resources(proxy.updates()));
        this
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self, viewer: &Viewer) -> View {
        self.catalogue.view(&viewer.0).within(viewer.1.clone())
    }

    fn digest(&self, viewer: &Viewer) -> ListingDigests {
        self.view(viewer).digest()
    }

    /// Registers a client for notifications of changes.
    pub(super) fn join(
        &self,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
        lists: Lists,
    ) -> Membership {
        let viewer = (caller.clone(), toolset.cloned());
        let outbox = Outbox::default();
        let changes = self.catalogue.changes();
        let known = self.digest(&viewer);
        let resources = BTreeMap::new();
        let again = viewer.clone();
        let member = Member { viewer, lists, known, resources, outbox: outbox.clone() };
        let mut members = self.members();
        members.next += 1;
        let id = members.next;
        members.all.insert(id, member);
        drop(members);
        // A change after the digest was taken may have been handled before the client was
        // registered.
        if changes.has_changed().unwrap_or(false) {
            let now = self.digest(&again);
            if let Some(member) = self.members().all.get_mut(&id) {
                member.tell(now);
            }
        }
        Membership { notifications: self.clone(), id, outbox }
    }

    async fn follow_lists(self) {
        let mut changes = self.catalogue.changes();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(DEBOUNCE).await;
            changes.mark_unchanged();
            let viewers: Vec<Viewer> = {
                let members = self.members();
                members.all.values().map(|member| member.viewer.clone()).collect()
            };
            let mut digests: HashMap<Viewer, ListingDigests> = HashMap::new();
            for viewer in viewers {
                if let Entry::Vacant(vacant) = digests.entry(viewer) {
                    let digest = self.digest(vacant.key());
                    vacant.insert(digest);
                    // The digest of a large view is slow to compute, so other tasks may run in
                    // between.
                    tokio::task::yield_now().await;
                }
            }
            for member in self.members().all.values_mut() {
                if let Some(now) = digests.get(&member.viewer) {
                    member.tell(*now);
                }
            }
        }
    }

    async fn follow_resources(self, mut updates: tokio::sync::broadcast::Receiver<ResourceUpdate>) {
        loop {
            match updates.recv().await {
                Ok(update) => self.updated(&update),
                // The lost updates are unknown, so every subscription is notified.
                Err(RecvError::Lagged(_)) => {
                    for member in self.members().all.values() {
                        let view = self.view(&member.viewer);
                        for uri in member.resources.keys().filter(|uri| view.reads(uri)) {
                            member.outbox.resource_updated(uri);
                        }
                    }
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn updated(&self, update: &ResourceUpdate) {
        for member in self.members().all.values() {
            let meant = update.caller.as_deref().is_none_or(|name| name == member.viewer.0.name());
            if meant
                && member.resources.contains_key(&update.uri)
                && self.view(&member.viewer).reads(&update.uri)
            {
                member.outbox.resource_updated(&update.uri);
            }
        }
    }
}

impl Member {
    fn tell(&mut self, now: ListingDigests) {
        let known = std::mem::replace(&mut self.known, now);
        let changed = [
            (self.lists.tools && known.tools != now.tools, List::Tools),
            (self.lists.prompts && known.prompts != now.prompts, List::Prompts),
            (self.lists.resources && known.resources != now.resources, List::Resources),
        ];
        for (_, list) in changed.into_iter().filter(|(changed, _)| *changed) {
            self.outbox.list_changed(list);
        }
    }
}
