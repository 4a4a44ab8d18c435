//! Objections to a discovered tool or item.
//!
//! Doc: registry.md#the-lock

use crate::suspicion::Suspicion;

/// The result of judging a discovered tool or item, if there is an objection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objection {
    /// The reason for the quarantine; `None` if it is not quarantined.
    pub quarantine: Option<String>,
    /// Its unapproved suspicious text.
    pub suspicions: Vec<Suspicion>,
}
