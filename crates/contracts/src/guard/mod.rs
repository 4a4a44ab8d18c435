//! The guard, which decides deterministically whether an entry is a contract.
//!
//! It is pure: the same entry has the same findings on every machine. The checks run in a fixed order,
//! so the first error found is always the first of all errors.
//!
//! Doc: contract.md#guard

mod fields;
mod idempotency_rules;
mod normalise;
mod policy_rules;
mod rules;
mod secrets;
mod values;

use serde_json::{Map, Value};

use crate::contract::ToolContract;
use crate::finding::{ContractCode, ContractError, ContractFinding, Severity};
use crate::json;
use crate::secret::SecretShapes;

/// A guard that judges entries by the rules of the contract and by its secret shapes.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    shapes: SecretShapes,
}

/// A contract with its compiled schemas.
#[derive(Debug)]
pub struct Guarded {
    /// The contract, in canonical form.
    pub contract: ToolContract,
    /// Warnings, in order.
    pub warnings: Vec<ContractFinding>,
    /// The compiled input schema.
    #[cfg(feature = "schema")]
    pub input: crate::schema::CompiledSchema,
    /// The compiled output schema.
    #[cfg(feature = "schema")]
    pub output: crate::schema::CompiledSchema,
}

impl Guard {
    /// Creates a guard that recognises secrets by `shapes`.
    #[must_use]
    pub fn new(shapes: SecretShapes) -> Self {
        Self { shapes }
    }

    /// Returns the entry as a contract.
    ///
    /// # Errors
    /// The first error, in the order of [`ContractCode::ALL`].
    pub fn validate_entry(&self, entry: &Value) -> Result<ToolContract, ContractError> {
        match self.examine(entry) {
            Ok(guarded) => Ok(guarded.contract),
            Err(findings) => Err(first_error(findings)),
        }
    }

    /// Returns every error and warning, in the order of [`ContractCode::ALL`].
    #[must_use]
    pub fn check_entry(&self, entry: &Value) -> Vec<ContractFinding> {
        match self.examine(entry) {
            Ok(guarded) => guarded.warnings,
            Err(findings) => findings,
        }
    }

    /// Returns the entry as a contract with its compiled schemas, so that they are compiled only once.
    ///
    /// # Errors
    /// Every finding, as [`Guard::check_entry`]; at least one is an error.
    pub fn examine(&self, entry: &Value) -> Result<Guarded, Vec<ContractFinding>> {
        match self.judge(entry) {
            Ok(guarded) => Ok(Guarded { warnings: self.clean(guarded.warnings), ..guarded }),
            Err(findings) => Err(self.clean(findings)),
        }
    }

    /// Redacts findings, because they can repeat names and values of the entry that look like secrets.
    fn clean(&self, mut findings: Vec<ContractFinding>) -> Vec<ContractFinding> {
        for finding in &mut findings {
            for text in [&mut finding.path, &mut finding.message] {
                if self.shapes.recognise(text).is_some() {
                    *text = self.shapes.redact(text).into_owned();
                }
            }
            if let Some(hint) =
                finding.hint.as_mut().filter(|hint| self.shapes.recognise(hint).is_some())
            {
                *hint = self.shapes.redact(hint).into_owned();
            }
        }
        findings
    }

    fn judge(&self, entry: &Value) -> Result<Guarded, Vec<ContractFinding>> {
        let mut report = Report::default();
        let Some(members) = entry.as_object() else {
            report.error(
                ContractCode::InvalidRoot,
                "root",
                format!("expected an object, found {}", kind(entry)),
            );
            return Err(report.findings);
        };
        if let Err(fault) = json::check_value(entry) {
            // The content of such an entry cannot be examined safely.
            report.error(ContractCode::NotJsonSafe, &fault.dotted(), fault.message);
            return Err(report.findings);
        }
        rules::texts(members, &mut report);
        secrets::examine(members, &self.shapes, &mut report);
        let entry = fields::RegistryEntry::read(members, &mut report);
        let schemas = rules::examine(&entry, &mut report);
        let failed = report.findings.iter().any(|finding| finding.severity == Severity::Error);
        if failed {
            return Err(report.findings);
        }
        let contract = normalise::contract(&entry).map_err(|error| {
            let mut findings = std::mem::take(&mut report.findings);
            findings.push(ContractFinding {
                severity: Severity::Error,
                code: ContractCode::InvalidRoot,
                path: "root".to_owned(),
                message: error.to_string(),
                hint: None,
            });
            findings
        })?;
        let _ = &schemas;
        #[cfg(feature = "schema")]
        {
            match schemas {
                (Some(input), Some(output)) => {
                    Ok(Guarded { contract, warnings: report.findings, input, output })
                }
                // Without an error both schemas have compiled.
                _ => Err(report.findings),
            }
        }
        #[cfg(not(feature = "schema"))]
        Ok(Guarded { contract, warnings: report.findings })
    }
}

fn first_error(findings: Vec<ContractFinding>) -> ContractError {
    findings.into_iter().find(|finding| finding.severity == Severity::Error).map_or_else(
        || ContractError {
            code: ContractCode::InvalidRoot,
            path: "root".to_owned(),
            message: "the entry is not a contract".to_owned(),
        },
        ContractError::from,
    )
}

/// Findings, in the order in which they were made.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<ContractFinding>,
}

impl Report {
    fn error(&mut self, code: ContractCode, path: &str, message: impl Into<String>) {
        self.push(Severity::Error, code, path, message.into(), None);
    }

    fn error_with(
        &mut self,
        code: ContractCode,
        path: &str,
        message: impl Into<String>,
        hint: String,
    ) {
        self.push(Severity::Error, code, path, message.into(), Some(hint));
    }

    fn warning(
        &mut self,
        code: ContractCode,
        path: &str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        self.push(Severity::Warning, code, path, message.into(), hint);
    }

    fn push(
        &mut self,
        severity: Severity,
        code: ContractCode,
        path: &str,
        message: String,
        hint: Option<String>,
    ) {
        self.findings.push(ContractFinding {
            severity,
            code,
            path: path.to_owned(),
            message,
            hint,
        });
    }
}

/// Returns the kind of a value for a message; never the value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(text) if text.trim().is_empty() => "blank text",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn found(value: Option<&Value>) -> &'static str {
    value.map_or("nothing", kind)
}

fn object_of(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

#[cfg(test)]
mod tests;
