#![doc = include_str!("../README.md")]

mod catalogue;
mod executors;
mod limits;
mod operations;
mod path;
mod plan;
mod port;
mod proxy;
mod world;

pub use catalogue::{Catalogue, Quarantined, SourceEntry, SourceState, View, Visible, declaration};
pub use executors::Executors;
pub use limits::{Limits, OutputRule};
pub use operations::Operations;
pub use plan::{InvalidPlan, check_plan};
pub use port::{Clock, IdSource, SystemClock, SystemIds};
pub use proxy::{Parts, StageNote, ToolProxy};
pub use world::{ToolState, World, Worlds};
