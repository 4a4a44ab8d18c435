//! Rule 3: no secrets in an entry.
//!
//! Doc: contract.md#no-secrets

use serde_json::{Map, Value};

use super::Report;
use crate::finding::ContractCode::ForbiddenSecretField;
use crate::json::{Step, dotted};
use crate::secret::{SecretShapes, is_reference, names_a_secret};

/// The meaning of the names of members.
#[derive(Clone, Copy)]
enum Reading {
    /// Plain data: a key that names a secret is rejected.
    Data,
    /// A JSON Schema; `secret` if it belongs to a property that names a secret.
    Schema { secret: bool },
    /// Names of properties, each with a schema.
    Properties { secret: bool },
    /// Names of definitions, each with a schema.
    Definitions { secret: bool },
    /// Names of properties, each with plain data.
    Names,
}

/// Whether a value cannot be a secret: null, an empty text, or a list of these.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(says_nothing),
        _ => false,
    }
}

pub(super) fn examine(entry: &Map<String, Value>, shapes: &SecretShapes, report: &mut Report) {
    let mut walk = Walk { shapes, report, path: Vec::new() };
    for (key, value) in entry {
        match key.as_str() {
            "inputSchema" | "input_schema" | "outputSchema" | "output_schema" => {
                walk.member(key, value, Reading::Schema { secret: false });
            }
            "sandbox" => walk.sandbox(key, value),
            _ => {
                walk.path.push(Step::Key(key.clone()));
                walk.named(key, value, Reading::Data);
                walk.path.pop();
            }
        }
    }
}

struct Walk<'w> {
    shapes: &'w SecretShapes,
    report: &'w mut Report,
    path: Vec<Step>,
}

impl Walk<'_> {
    fn refuse(&mut self, message: String) {
        let hint = "keep secrets out of contracts; a `secretRef` is allowed in the configuration \
                    file and in `sandbox.env.secrets`";
        self.report.error_with(ForbiddenSecretField, &dotted(&self.path), message, hint.to_owned());
    }

    fn member(&mut self, key: &str, value: &Value, reading: Reading) {
        self.path.push(Step::Key(key.to_owned()));
        self.value(value, reading);
        self.path.pop();
    }

    /// Examines a member of plain data; the path already contains its key.
    fn named(&mut self, key: &str, value: &Value, reading: Reading) {
        if names_a_secret(key) {
            self.refuse(format!("the key `{}` names a secret", key.escape_debug()));
        } else if key == "secretRef" {
            self.refuse("a secret reference is not allowed here".to_owned());
        } else {
            self.value(value, reading);
        }
    }

    fn value(&mut self, value: &Value, reading: Reading) {
        match value {
            Value::String(text) => {
                if let Some(shape) = self.shapes.recognise(text) {
                    let message = format!("the value has the shape of {shape}");
                    self.refuse(message);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.path.push(Step::Index(index));
                    self.value(item, reading);
                    self.path.pop();
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    self.path.push(Step::Key(key.clone()));
                    match reading {
                        Reading::Data => self.named(key, member, Reading::Data),
                        Reading::Names => self.value(member, Reading::Data),
                        Reading::Definitions { secret } => {
                            self.value(member, Reading::Schema { secret });
                        }
                        Reading::Properties { secret } => {
                            let secret = secret || names_a_secret(key);
                            self.value(member, Reading::Schema { secret });
                        }
                        Reading::Schema { secret } => self.keyword(key, member, secret),
                    }
                    self.path.pop();
                }
            }
            _ => (),
        }
    }

    fn keyword(&mut self, keyword: &str, value: &Value, secret: bool) {
        match keyword {
            "properties" | "patternProperties" => {
                self.value(value, Reading::Properties { secret });
            }
            // These are names of schemas, which do not indicate secret values.
            "$defs" | "definitions" | "dependentSchemas" | "dependencies" => {
                self.value(value, Reading::Definitions { secret });
            }
            "dependentRequired" => self.value(value, Reading::Names),
            "default" | "const" | "enum" | "examples" if secret && !says_nothing(value) => {
                self.refuse(format!("`{keyword}` of a property that names a secret"));
            }
            "default" | "const" | "enum" | "examples" => self.value(value, Reading::Data),
            _ => self.named(keyword, value, Reading::Schema { secret }),
        }
    }

    fn sandbox(&mut self, key: &str, value: &Value) {
        self.path.push(Step::Key(key.to_owned()));
        if !value.is_object() {
            self.value(value, Reading::Data);
        }
        if let Some(members) = value.as_object() {
            for (key, member) in members {
                self.path.push(Step::Key(key.clone()));
                match (key.as_str(), member.as_object()) {
                    ("env", Some(env)) => self.sandbox_env(env),
                    _ => self.named(key, member, Reading::Data),
                }
                self.path.pop();
            }
        }
        self.path.pop();
    }

    fn sandbox_env(&mut self, env: &Map<String, Value>) {
        for (key, member) in env {
            self.path.push(Step::Key(key.clone()));
            match (key.as_str(), member.as_object()) {
                // The names of the variables are not examined; their values must be references.
                ("secrets", Some(secrets)) => {
                    for (name, reference) in secrets {
                        self.path.push(Step::Key(name.clone()));
                        if !is_reference(reference) {
                            self.refuse("expected `{\"secretRef\": \"env:NAME\"}`".to_owned());
                        }
                        self.path.pop();
                    }
                }
                _ => self.named(key, member, Reading::Data),
            }
            self.path.pop();
        }
    }
}
