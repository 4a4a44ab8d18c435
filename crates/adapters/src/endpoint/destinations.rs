//! Checks the destinations of requests, and connects only to checked addresses.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use url::{Host, Url};

use super::Endpoint;
use crate::error::AddressError;
use crate::net_guard::{Guard, ResolveError};

/// Maximum number of cached names of an endpoint.
pub(super) const NAMES_MAX: usize = 64;

/// How long the addresses of a name are cached. They are checked at each request.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);

/// The addresses of a name that were checked with the requested port.
#[derive(Debug, Clone)]
pub(super) struct LookedUp {
    addresses: Vec<SocketAddr>,
    at: Instant,
}

pub(super) type Judged = Arc<Mutex<HashMap<String, LookedUp>>>;

/// The resolver for the HTTP library, which does not pass the port. It uses the checked addresses if
/// they exist.
pub(super) struct Resolver {
    pub(super) guard: Guard,
    pub(super) judged: Judged,
}

fn locked(judged: &Judged) -> MutexGuard<'_, HashMap<String, LookedUp>> {
    judged.lock().unwrap_or_else(PoisonError::into_inner)
}

impl reqwest::dns::Resolve for Resolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let known = locked(&self.judged).get(name.as_str()).cloned();
        let guard = self.guard.clone();
        Box::pin(async move {
            let found = match known {
                Some(known) => known.addresses,
                None => guard.resolve(name.as_str(), 0).await?,
            };
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

impl Endpoint {
    /// Checks the destination of a URL by address and port. The addresses of a name are stored, and
    /// the connection uses them.
    pub(super) async fn judge(&self, url: &Url) -> Result<(), AddressError> {
        let port = url.port_or_known_default().unwrap_or_default();
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(name)) => return self.judge_name(name, port).await,
            None => return Err(AddressError::NoHost),
        };
        self.settings.guard.check(SocketAddr::new(address, port))
    }

    async fn judge_name(&self, name: &str, port: u16) -> Result<(), AddressError> {
        let guard = &self.settings.guard;
        let known = locked(&self.judged).get(name).cloned();
        if let Some(known) = known.filter(|known| known.at.elapsed() < LOOK_UP_EVERY) {
            let mut addresses = known.addresses.iter();
            return addresses.try_for_each(|address| {
                let judged = guard.check(SocketAddr::new(address.ip(), port));
                judged.map_err(|reason| reason.of_name(name))
            });
        }
        match guard.resolve(name, port).await {
            Ok(mut addresses) => {
                // The HTTP library sets the port of the URL.
                addresses.iter_mut().for_each(|address| address.set_port(0));
                let mut judged = locked(&self.judged);
                if judged.len() >= NAMES_MAX {
                    judged.clear();
                }
                judged.insert(name.to_owned(), LookedUp { addresses, at: Instant::now() });
                Ok(())
            }
            Err(ResolveError::Refused(reason)) => Err(reason),
            // The connection attempt fails and reports the error.
            Err(ResolveError::Unresolved(_)) => {
                locked(&self.judged).remove(name);
                Ok(())
            }
        }
    }
}
