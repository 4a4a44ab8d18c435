//! The settings of an issuer of access tokens, and their check.
//!
//! Doc: front-doors.md#access-tokens

use std::net::{Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::error::IssuerError;

/// An issuer of access tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The name with which the groups of its tokens begin: `NAME/GROUP`. No group of another issuer or
    /// of an API key is the same.
    pub name: String,
    /// The claim `iss` of its tokens, to the letter.
    pub issuer: String,
    /// The address of its keys; `None` = the one in its metadata.
    pub jwks_uri: Option<String>,
    /// The audiences of which a token must have one, beside the resource.
    pub audiences: Vec<String>,
    /// The resource for which tokens are issued (RFC 8707). A tool set is a resource of its own,
    /// `RESOURCE/NAME`; a token for it is not valid elsewhere.
    pub resource: Option<String>,
    /// The claim with the groups of the subject, by its name or as a JSON pointer.
    pub groups_claim: Option<String>,
}

impl IssuerSettings {
    pub(super) fn check(&self) -> Result<(), IssuerError> {
        let issuer = || self.issuer.clone();
        if self.issuer.contains('#') {
            return Err(IssuerError::Fragment { issuer: issuer() });
        }
        if self.issuer.contains('?') || !is_secure(&self.issuer) {
            return Err(IssuerError::NoUrl { issuer: issuer() });
        }
        if let Some(address) = self.jwks_uri.as_ref().filter(|address| !is_secure(address)) {
            return Err(IssuerError::Keys { address: address.clone() });
        }
        match self.audiences.iter().chain(&self.resource).any(|audience| !audience.is_empty()) {
            true => Ok(()),
            false => Err(IssuerError::NoAudience { issuer: issuer() }),
        }
    }

    /// Whether a token with one of these audiences is valid for a tool set, or for everything.
    pub(super) fn admits(&self, audiences: &[String], toolset: Option<&str>) -> bool {
        audiences.iter().any(|audience| {
            let is_own = |resource: &String| {
                let rest = audience.strip_prefix(resource.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty()
                        || rest.strip_prefix('/').is_some_and(|name| Some(name) == toolset)
                })
            };
            self.audiences.contains(audience) || self.resource.as_ref().is_some_and(is_own)
        })
    }
}

/// Whether an address is an HTTPS URL, or an HTTP URL of this machine.
pub(super) fn is_secure(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else { return false };
    let is_own = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address == Ipv4Addr::LOCALHOST,
        Some(Host::Ipv6(address)) => address == Ipv6Addr::LOCALHOST,
        None => return false,
    };
    url.username().is_empty()
        && url.password().is_none()
        && (url.scheme() == "https" || (url.scheme() == "http" && is_own))
}
