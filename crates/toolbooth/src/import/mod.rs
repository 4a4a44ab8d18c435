//! Imports MCP clients' servers: writes their settings into the configuration, and Toolbooth into their
//! files.
//!
//! Doc: importing.md

pub(crate) mod containment;
mod install;
pub(crate) mod secrets;
pub(crate) mod trial;

use toolbooth_contracts::causes::with_causes;
use toolbooth_import::{Extended, ImportError, Sections};

use crate::failure::Failure;

pub(crate) use install::{Backup, Installed, install, undo};

/// Returns the configuration with the added sections. The result must parse again.
pub(crate) fn into_configuration(text: &str, sections: &Sections) -> Result<Extended, Failure> {
    let extended = toolbooth_import::into_configuration(text, sections).map_err(|error| {
        let failure = Failure::configuration(with_causes(&error));
        match error {
            ImportError::NoConfiguration => {
                failure.hint("`toolbooth doctor` says where; nothing was written")
            }
            _ => failure,
        }
    })?;
    crate::config::parse(&extended.text, "the imported configuration", Vec::new())?;
    Ok(extended)
}
