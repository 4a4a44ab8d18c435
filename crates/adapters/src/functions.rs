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
use toolbooth_contracts::json::read_as;
use toolbooth_contracts::port::ExecutionError;
use toolbooth_contracts::{
    Arguments, Conversation, Dispatch, Effect, Executor, Outcome, ToolOutput,
};

pub use crate::error::FunctionError;

type Answer = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Function = Arc<dyn Fn(Arguments, Conversation) -> Answer + Send + Sync>;
type Ready = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// An executor for functions of the host program.
#[derive(Clone, Default)]
pub struct Functions {
    functions: HashMap<String, (Function, Ready)>,
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
                    match read_as::<A>(arguments.tree()) {
                        Ok(arguments) => match function(arguments).await {
                            Ok(output) => Outcome::Done(output),
                            Err(FunctionError(sentence)) => {
                                Outcome::Done(ToolOutput::text(sentence).into_error())
                            }
                        },
                        // The schema is derived from the type, so the two differ here.
                        Err(error) => {
                            let told = format!("the arguments do not fit the tool: {error}");
                            let failed = ExecutionError::adapter(Effect::NotStarted, &*told);
                            Outcome::Failed(failed.with_safe(told))
                        }
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Number(f64),
        Text(String),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Price {
        price: f64,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        count: i64,
        amount: Amount,
        #[serde(flatten)]
        price: Price,
    }

    #[test]
    fn numbers_are_read_however_they_are_written() {
        let read = |text: &str| read_as::<Order>(&serde_json::from_str(text).unwrap());
        let expected = |amount| Order { count: 2, amount, price: Price { price: 1.5 } };
        for text in [
            r#"{"count": 2, "amount": 1000, "price": 1.5}"#,
            r#"{"count": 2.0, "amount": 1e3, "price": 1.50}"#,
            r#"{"count": 2e0, "amount": 1000.0, "price": 15e-1}"#,
        ] {
            assert_eq!(read(text).unwrap(), expected(Amount::Number(1000.0)), "{text}");
        }
        let text = r#"{"count": 2, "amount": "all", "price": 1.50}"#;
        assert_eq!(read(text).unwrap(), expected(Amount::Text("all".into())));
        for text in [
            r#"{"count": 2.5, "amount": 1, "price": 1}"#,
            r#"{"count": 1e400, "amount": 1, "price": 1}"#,
            r#"{"count": 2, "amount": true, "price": 1}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        // A type that keeps digits gets them.
        let digits: Value = read_as(&serde_json::from_str("1.50").unwrap()).unwrap();
        assert_eq!(digits.to_string(), "1.50");
    }

    #[tokio::test]
    async fn arguments_that_do_not_fit_are_told_to_the_agent() {
        #[derive(Deserialize, JsonSchema)]
        struct Even {
            #[expect(dead_code, reason = "it is only read")]
            #[schemars(with = "u8")]
            #[serde(deserialize_with = "even")]
            n: u8,
        }
        fn even<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
            let n = u8::deserialize(deserializer)?;
            let odd = || serde::de::Error::custom("n is odd");
            if n % 2 == 0 { Ok(n) } else { Err(odd()) }
        }
        let mut functions = Functions::default();
        functions.add("even.half", "Halves.", async |_: Even| Ok(ToolOutput::text("done")));
        let (function, _) = &functions.functions["even.half"];
        let call = |text: &str| {
            let arguments = Arguments::parse(serde_json::from_str(text).unwrap()).unwrap();
            function(arguments, Conversation::detached().0)
        };
        assert!(matches!(call(r#"{"n": 4.0}"#).await, Outcome::Done(_)));
        let Outcome::Failed(error) = call(r#"{"n": 3}"#).await else { panic!("it fits") };
        assert_eq!(error.effect, Effect::NotStarted);
        assert!(error.safe.unwrap().contains("n is odd"));
    }
}
