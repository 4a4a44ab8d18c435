//! The hosts and ports that a tool may reach.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::net::IpAddr;

use toolbooth_launcher::order::Relay;

use crate::error::NetworkRuleError;

/// The entry that matches every public host.
pub(crate) const EVERYWHERE: &str = "*";

/// The port on which every program with a network can try to connect.
const HTTPS: u16 = 443;

/// The hosts that a profile names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<AllowedHost>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    /// In lower case, without a final dot or brackets. `*.` matches one or more labels, and `*`
    /// every public host.
    host: String,
    /// `None` = any.
    port: Option<u16>,
}

impl AllowList {
    /// Reads a list of `name:port`, `*.name:port`, `address:port` and `[address]:port`, where `*` as
    /// the port matches any. `*:port` is every public host, and `*` is every public host at port
    /// 443.
    ///
    /// # Errors
    /// [`NetworkRuleError`], for the first entry that is none of these.
    pub fn parse(entries: &[String]) -> Result<Self, NetworkRuleError> {
        let entry = |text: &String| {
            let wrong = || NetworkRuleError::NoHost(text.clone());
            if text == EVERYWHERE {
                return Ok(AllowedHost { host: EVERYWHERE.to_owned(), port: Some(HTTPS) });
            }
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let port = match port {
                "*" if host == EVERYWHERE => {
                    return Err(NetworkRuleError::NoPort(text.clone()));
                }
                "*" => None,
                digits => Some(digits.parse().map_err(|_| wrong())?),
            };
            if host == EVERYWHERE {
                return Ok(AllowedHost { host: EVERYWHERE.to_owned(), port });
            }
            let host = normal(host);
            let name = host.strip_prefix("*.").unwrap_or(&host);
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
            if name.is_empty() || !name.chars().all(fits) {
                return Err(wrong());
            }
            Ok(AllowedHost { host, port })
        };
        entries.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// Whether every public host is named, for some port.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE)
    }

    /// Returns the ports on which the gateway accepts connections of programs that use no proxy.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let named = self.0.iter().filter_map(|entry| entry.port);
        let mut ports: Vec<u16> = named.chain([HTTPS]).filter(|port| *port != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the listeners of a program's network; `None` = it has no network.
    #[must_use]
    pub(crate) fn relay(&self) -> Option<Relay> {
        // If every host can be reached, a proxy adds nothing, and some programs handle it
        // incorrectly.
        let proxy = self.0.iter().any(|entry| entry.host != EVERYWHERE);
        (!self.0.is_empty()).then(|| Relay { ports: self.ports(), proxy })
    }

    /// Whether a host is named: by its name, or by its literal address.
    pub(super) fn names(&self, host: &str, port: Option<u16>) -> bool {
        let host = normal(host);
        self.0.iter().filter(|entry| entry.host != EVERYWHERE).any(|entry| {
            let named = match entry.host.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == entry.host,
            };
            named && (port.is_none() || entry.port.is_none() || entry.port == port)
        })
    }

    /// Whether every public host can be reached at a port.
    pub(super) fn opens(&self, port: u16) -> bool {
        self.0.iter().any(|entry| entry.host == EVERYWHERE && entry.port == Some(port))
    }
}

/// Converts a host to the form that lists use.
pub(super) fn normal(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host,
    }
}
