//! Builds the executors of the tools that clients run themselves.
//!
//! Doc: hooks.md#tools

use std::sync::Arc;

use serde_json::Value;
use toolbooth_adapters::ClientTools;
use toolbooth_import::HookClient;

use super::Adapters;
use crate::config::Loaded;

/// Adds the tools of the clients whose hooks are configured, and returns their entries for the registry.
pub(super) fn add(loaded: &Loaded, adapters: &mut Adapters) -> Vec<Value> {
    let mut entries = Vec::new();
    for client in HookClient::ALL {
        if loaded.config.hooks.of(client).is_some() {
            adapters.add_local(&client.runtime_id(), Arc::new(ClientTools));
            entries.extend(client.tools());
        }
    }
    entries
}
