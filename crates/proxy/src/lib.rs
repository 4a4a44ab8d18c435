#![doc = include_str!("../README.md")]

mod asynchronous;
mod catalogue;
mod executors;
mod keeping;
mod limits;
mod operations;
mod path;
mod pins;
mod plan;
mod port;
mod proxy;
mod world;

pub use asynchronous::{AsyncCall, AsyncCalls, Handed};
pub use catalogue::{Catalogue, Quarantined, SourceEntry, SourceState, View, Visible, declaration};
pub use executors::Executors;
pub use keeping::{Keeping, Results};
pub use limits::{Limits, OutputRule};
pub use operations::{Operations, RecordRoom, ResolveError};
pub use pins::{FirstListing, FirstUse, PinStore, Pinned, PinnedTool, UnkeptPins};
pub use plan::{InvalidPlan, check_plan};
pub use port::{Clock, IdSource, SystemClock, SystemIds};
pub use proxy::{Parts, StageNote, ToolProxy};
pub use toolbooth_audit::reads::{LogFilter, ReceiptFilter};
pub use world::{ToolState, World, Worlds};
