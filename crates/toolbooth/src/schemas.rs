//! The JSON Schemas of all public types, for `docs/schemas`.
//!
//! Doc: formats.md#schemas

use schemars::{JsonSchema, schema_for};
use serde_json::{Map, Value};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::plan::{Plan, PlanReport};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::{CallRequest, ToolResult};
use toolbooth_registry::file::RegistryFile;
use toolbooth_registry::lock::LockFile;

use crate::config::Config;

/// Returns every schema under the name of its file.
pub(crate) fn all() -> Value {
    fn of<T: JsonSchema>() -> Value {
        schema_for!(T).to_value()
    }
    let all: [(&str, Value); 10] = [
        ("registry-file", of::<RegistryFile>()),
        ("lock-file", of::<LockFile>()),
        ("call-request", of::<CallRequest>()),
        ("tool-result", of::<ToolResult>()),
        ("receipt", of::<Receipt>()),
        ("agent-log", of::<AgentLog>()),
        ("audit-event", of::<AuditEvent>()),
        ("plan", of::<Plan>()),
        ("plan-report", of::<PlanReport>()),
        ("configuration", of::<Config>()),
    ];
    let all: Map<String, Value> =
        all.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    Value::Object(all)
}
