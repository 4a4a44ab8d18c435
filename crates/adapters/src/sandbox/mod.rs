//! Sandbox profiles: the choice of a profile for a process, its compilation for the launcher, and
//! the comparison of two profiles.
//!
//! Path: 7. Doc: execution.md#the-sandbox-profile, execution.md#trust-and-containment

mod compare;
mod compile;
pub(crate) mod profile;

pub use crate::program_location::ProgramLocation;
pub use crate::project::is_project;
pub use crate::visible_paths::{is_wide, opened_with};
pub use compare::exceeds;
pub use compile::{Applied, apply};
pub use profile::{ProfileSetting, default_profile, of_call, server_profile, trial_profile};
