//! Functions of the host program as tools, with schemas derived from their argument types.
//!
//! Each function runs in a task of its own. The proxy provides the task and the time limit, and
//! catches panics.
//!
//! Path: 7. Doc: execution.md#local

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolbooth_contracts::contract::{BUILTIN_RUNTIME, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{
    Arguments, Conversation, Dispatch, Effect, Executor, Outcome, ToolOutput,
};

type Answer = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Function = Arc<dyn Fn(Arguments, Conversation) -> Answer + Send + Sync>;
type Ready = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// An executor for functions of the host program.
#[derive(Clone, Default)]
pub struct Functions {
    functions: HashMap<String, (Function, Ready)>,
}

/// The error of a function. The agent sees its text as the tool's own error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FunctionError(pub String);

impl From<String> for FunctionError {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

impl From<&str> for FunctionError {
    fn from(sentence: &str) -> Self {
        Self(sentence.to_owned())
    }
}

impl Functions {
    /// Adds a function under a tool id and returns its registry entry in canonical form: category
    /// `function`, trust `builtin`, 30 s. The caller may change the entry before it is loaded.
    pub fn add<A, F>(
        &mut self,
        tool_id: &str,
        description: &str,
        function: impl Fn(A) -> F + Send + Sync + 'static,
    ) -> Value
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Future<Output = Result<ToolOutput, FunctionError>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.insert(
            tool_id,
            Arc::new(move |arguments, _conversation| {
                let function = Arc::clone(&function);
                Box::pin(async move {
                    match A::deserialize(arguments.tree()) {
                        Ok(arguments) => match function(arguments).await {
                            Ok(output) => Outcome::Done(output),
                            Err(FunctionError(sentence)) => {
                                Outcome::Done(ToolOutput::text(sentence).into_error())
                            }
                        },
                        // The schema is derived from the type, so the two differ here.
                        Err(error) => Outcome::Failed(ExecutionError::adapter(
                            Effect::NotStarted,
                            format!("the arguments do not fit the function: {error}"),
                        )),
                    }
                })
            }),
            Arc::new(|| Readiness::Ready),
        );
        entry::<A>(tool_id, description)
    }

    /// Adds a function that returns any outcome and states whether it can run.
    pub(crate) fn insert(&mut self, tool_id: &str, function: Function, ready: Ready) {
        self.functions.insert(tool_id.to_owned(), (function, ready));
    }
}

/// Returns a registry entry with the schema of `A`.
pub(crate) fn entry<A: JsonSchema>(tool_id: &str, description: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    schema.remove("title");
    json!({
        "toolId": tool_id,
        "description": description,
        "category": "function",
        "inputSchema": schema,
        "outputSchema": {},
        "capabilities": {},
        "execution": { "localRuntimeId": BUILTIN_RUNTIME },
        "policy": { "timeoutMs": 30_000, "trustLevel": "builtin" },
        "idempotency": { "mode": "on-key" },
    })
}

#[async_trait]
impl Executor for Functions {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        match self.functions.get(dispatch.target()) {
            Some((function, _)) => {
                function(Arguments::clone(&dispatch.arguments), conversation).await
            }
            None => Outcome::Failed(ExecutionError::not_configured(format!(
                "there is no function `{}` in this runtime",
                dispatch.target()
            ))),
        }
    }

    async fn readiness(&self, contract: &ToolContract, _probe: bool) -> Readiness {
        let target = contract.execution.target.as_deref();
        let name = target.unwrap_or(contract.tool_id.as_str());
        match self.functions.get(name) {
            Some((_, ready)) => ready(),
            None => {
                Readiness::NotConfigured(format!("there is no function `{name}` in this runtime"))
            }
        }
    }
}
