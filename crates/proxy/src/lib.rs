#![doc = include_str!("../README.md")]

mod allowance;
mod approvals;
mod argument_rules;
mod asynchronous;
mod catalogue;
mod cursor;
mod deliveries;
mod entry;
mod error;
mod executors;
mod inline_task;
mod kept_documents;
mod large_results;
mod limits;
mod operations;
mod orders;
mod own_tools;
mod path;
mod payload_retention;
mod pins;
mod plan;
mod port;
mod proxy;
mod refusal_limits;
mod requests;
mod server_error;
mod shadow;
mod shown;
mod state;
mod stops;
mod tool_documents;
mod trail;
mod view;
mod view_cache;
mod worker_place;
mod world;
mod worlds;

pub use approvals::APPROVAL_REASON_BYTES_MAX;
pub use argument_rules::ArgumentRules;
pub use asynchronous::{AsyncCall, AsyncCalls, Submission};
pub use catalogue::{Catalogue, Quarantined, SourceEntry, SourceState};
pub use error::{InvalidPlan, KeyRefusal, OperationsError, PinError, ResolveError};
pub use executors::Executors;
pub use limits::{Limits, OutputRule};
pub use operations::Operations;
pub use orders::{ORDERS_AGE_MAX, ORDERS_EVERY, secret_digest, stored_pauses};
pub use own_tools::{READ_RESULT, SEARCH_TOOLS, own_tools};
pub use path::StageNote;
pub use payload_retention::{Intent, PayloadRetention, Results};
pub use pins::{FirstListing, FirstUse, InMemoryPins, PinStore, Pinned, PinnedTool};
pub use plan::check_plan;
pub use port::{ApprovalNotice, ApprovalNotifier, Clock, IdSource, SystemClock, SystemIds};
pub use proxy::ToolProxy;
pub use requests::{
    RequestError, ResourceUpdate, ServerRequest, SubscribeRequest, Subscription, UpstreamEntry,
    UpstreamRefusal, Upstreams,
};
pub use state::{DeniedAuthentication, ProxyParts};
pub use tool_documents::{DocumentForm, ToolDocuments};
pub use toolbooth_audit::approvals::{ApprovalFilter, Decided};
pub use toolbooth_audit::ledger::Moment;
pub use toolbooth_audit::reads::{LogFilter, ReceiptFilter};
pub use view::{View, Visible, VisibleItem, declaration};
pub use view_cache::ListingDigests;
pub use world::{Judged, ToolState, World, WorldSettings};
pub use worlds::Worlds;
