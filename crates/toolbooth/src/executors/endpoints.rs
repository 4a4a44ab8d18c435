//! Builds the executors of HTTP endpoints.
//!
//! Doc: execution.md#endpoints

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use toolbooth_adapters::endpoint::{
    self, Endpoint, EndpointSettings, NotConfigured, Operations, Plan, REDIRECTS_MAX,
    RequestTemplate,
};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::net_guard::Guard;
use toolbooth_adapters::{OwnDoors, secrets};
use toolbooth_contracts::Executor;
use toolbooth_contracts::contract::AdapterId;

use super::{Adapters, settings};
use crate::config::{self, Loaded};
use crate::failure::Failure;
use crate::{files, openapi_file};

/// The maximum size of a file of certificate authorities, in bytes.
const AUTHORITIES_BYTES_MAX: u64 = 32 << 20;

/// Adds an executor for each endpoint. If the URL contains an unset variable, the tools of the endpoint are
/// registered but not configured.
pub(super) fn add(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<(), Failure> {
    for (name, endpoint) in &loaded.config.endpoints {
        let doors = launcher.doors();
        let executor: Arc<dyn Executor> = match settings_of(loaded, name, endpoint, doors)? {
            Ok(settings) => Arc::new(Endpoint::new(settings)),
            Err(error) => Arc::new(NotConfigured::new(error.to_string())),
        };
        adapters.add(AdapterId::Endpoint(name.clone()), executor);
    }
    Ok(())
}

/// Returns the settings of an HTTP endpoint, or the error of its URL if a variable is not set.
fn settings_of(
    loaded: &Loaded,
    name: &str,
    said: &config::endpoints::Endpoint,
    doors: &OwnDoors,
) -> Result<Result<EndpointSettings, secrets::SecretError>, Failure> {
    let setting = format!("endpoints.{name}");
    let wrong = |message: &dyn std::fmt::Display| {
        Failure::configuration(message.to_string()).at(setting.clone())
    };
    let url = match &said.url {
        Some(url) => {
            match secrets::Setting::Template(url.clone()).resolve() {
                Ok(filled) => Some(filled),
                // An unset variable disables only this endpoint.
                Err(error) => return Ok(Err(error)),
            }
        }
        None => None,
    };
    let url = url.as_ref().map(ExposeSecret::expose_secret);
    let plan = match (&said.openapi, url) {
        (Some(file), base) => {
            if said.method.is_some() || !said.query.is_empty() || said.body.is_some() {
                let message = "`method`, `query` and `body` come from the OpenAPI document";
                return Err(wrong(&message));
            }
            let path = loaded.path(file);
            let document = openapi_file::configured(&path)?;
            let operations = Operations::read(&document, base);
            Plan::Operations(Box::new(operations.map_err(|error| wrong(&error))?))
        }
        (None, Some(url)) => {
            let query: Vec<(String, String)> =
                said.query.iter().map(|(name, text)| (name.clone(), text.clone())).collect();
            let template =
                RequestTemplate::parse(said.method.as_deref(), url, &query, said.body.clone());
            Plan::Template(Box::new(template.map_err(|error| wrong(&error))?))
        }
        (None, None) => return Err(wrong(&"an endpoint needs `url` or `openapi`")),
    };
    if said.redirects > REDIRECTS_MAX {
        return Err(wrong(&format!("`redirects` is at most {REDIRECTS_MAX}")));
    }
    let idempotency_header = said.idempotency_header.as_deref().map(http::HeaderName::from_str);
    let authorities = said.ca_file.as_ref().map(|file| authorities(&loaded.path(file)));
    Ok(Ok(EndpointSettings {
        name: name.to_owned(),
        plan,
        headers: settings(loaded, &said.headers),
        guard: Guard::new(said.allow_private).refusing(doors.clone()),
        redirects: said.redirects,
        response_bytes_max: said.response_bytes_max.unwrap_or(endpoint::RESPONSE_BYTES_MAX),
        connect_timeout: said
            .connect_timeout_ms
            .map_or(endpoint::CONNECT_TIMEOUT, Duration::from_millis),
        idempotency_header: idempotency_header
            .transpose()
            .map_err(|_| wrong(&"`idempotency_header` is not a header"))?
            .unwrap_or(endpoint::IDEMPOTENCY_HEADER),
        authorities: authorities
            .transpose()
            .map_err(|failure| wrong(&format!("`ca_file`: {}", failure.message)))?,
    }))
}

/// Reads a file of certificate authorities (PEM).
fn authorities(path: &Path) -> Result<Vec<u8>, Failure> {
    files::read_within(path, AUTHORITIES_BYTES_MAX).map_err(|error| {
        let message = format!("the file cannot be read: {error}");
        Failure::configuration(message).at(path.display().to_string())
    })
}
