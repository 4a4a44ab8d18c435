//! The types of a tool's arguments in rules, by its input schema.
//!
//! Path: 5. Doc: policy.md#arguments-in-rules

use std::collections::BTreeMap;

use cedar_policy_core::ast::Value as RuleValue;
use serde_json::{Map, Value, json};

use super::reads::Reads;
use super::{numbers, values};

/// Maximum depth of types; deeper ones are left out.
const DEPTH_MAX: usize = 16;
/// Maximum number of parts of a schema that are read; further ones are left out.
const PARTS_MAX: usize = 10_000;

/// Keywords that compose schemas, and why rules cannot read the arguments that only these name.
const COMPOSED: [(&str, &str); 3] = [
    ("allOf", "its schema is composed by `allOf`"),
    ("anyOf", "its schema is composed by `anyOf`"),
    ("oneOf", "its schema is composed by `oneOf`"),
];

/// The type of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgumentType {
    Text,
    Whole,
    Decimal,
    Truth,
    Set(Box<ArgumentType>),
    Record(BTreeMap<String, Property>),
}

/// A property of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Property {
    of: ArgumentType,
    required: bool,
}

/// The arguments of a tool that rules can read, and those that they cannot, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArgumentTypes {
    pub(super) record: ArgumentType,
    /// JSON pointers of the arguments that are left out.
    pub(super) left_out: BTreeMap<String, &'static str>,
}

impl ArgumentTypes {
    /// Returns the types of an input schema.
    pub(super) fn of(schema: &Value) -> Self {
        let mut reader = Reader { root: schema, left_out: BTreeMap::new(), parts: 0 };
        let none = || ArgumentType::Record(BTreeMap::new());
        let record = match reader.read(schema, "", 0) {
            Ok((record @ ArgumentType::Record(_), _)) => record,
            Ok(_) => none(),
            Err(reason) => {
                reader.left_out.insert(String::new(), reason);
                none()
            }
        };
        Self { record, left_out: reader.left_out }
    }

    /// Returns the type of the argument at a JSON pointer. `Some(None)` means that the schema does not name the
    /// argument. `None` means that the type is unknown, because the argument is left out or is an item of an
    /// array.
    pub(super) fn at(&self, pointer: &str) -> Option<Option<&ArgumentType>> {
        let mut of = &self.record;
        for name in pointer.split('/').skip(1) {
            let ArgumentType::Record(record) = of else {
                return (!matches!(of, ArgumentType::Set(_))).then_some(None);
            };
            match record.get(&name.replace("~1", "/").replace("~0", "~")) {
                Some(property) => of = &property.of,
                None => {
                    let is_left_out = |own: &String| {
                        let rest = pointer.strip_prefix(own.trim_end_matches('*'));
                        rest.is_some_and(|rest| {
                            rest.is_empty() || rest.starts_with('/') || own.ends_with("/*")
                        })
                    };
                    return (!self.left_out.keys().any(is_left_out)).then_some(None);
                }
            }
        }
        Some(Some(of))
    }

    /// Returns the JSON pointers of all numbers, for corrections.
    pub(super) fn numbers(&self) -> Vec<String> {
        let mut numbers = Vec::new();
        self.record.numbers("", &mut numbers);
        numbers
    }

    /// Returns the names of all properties, for corrections.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.record.names(&mut names);
        names
    }
}

/// A type, and whether the value may be null instead.
type Nullable = (ArgumentType, bool);

struct Reader<'s> {
    root: &'s Value,
    left_out: BTreeMap<String, &'static str>,
    parts: usize,
}

impl<'s> Reader<'s> {
    /// Returns the type of a schema, or the reason why rules cannot read it.
    fn read(
        &mut self,
        schema: &'s Value,
        at: &str,
        depth: usize,
    ) -> Result<Nullable, &'static str> {
        if depth > DEPTH_MAX {
            return Err("its schema is too deep");
        }
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err("the schema of the tool is too large");
        }
        let Value::Object(schema) = schema else { return Err("any value fits its schema") };
        if let Some(reference) = schema.get("$ref") {
            let found = reference.as_str().and_then(|text| text.strip_prefix('#'));
            let found = found.and_then(|pointer| self.root.pointer(&decoded(pointer)));
            return self.read(
                found.ok_or("its reference is outside of the schema")?,
                at,
                depth + 1,
            );
        }
        // Beside a type, choices only narrow its values.
        if !schema.contains_key("type") {
            for name in ["anyOf", "oneOf"] {
                if let Some(Value::Array(choices)) = schema.get(name) {
                    return self.read_choices(choices, at, depth);
                }
            }
            if schema.contains_key("allOf") {
                return Err("its schema is composed by `allOf`");
            }
        }
        let (name, nullable) = match schema.get("type") {
            Some(Value::String(name)) => (name.as_str(), false),
            Some(Value::Array(names)) => {
                let mut others = names.iter().filter_map(Value::as_str).filter(|n| *n != "null");
                let (name, more) = (others.next(), others.next());
                let name = name.filter(|_| more.is_none()).ok_or("it has several types")?;
                (name, names.iter().any(|name| name == "null"))
            }
            _ => (type_of_values(schema).ok_or("its schema names no type")?, false),
        };
        let of = match name {
            "string" => ArgumentType::Text,
            "integer" => ArgumentType::Whole,
            "number" => ArgumentType::Decimal,
            "boolean" => ArgumentType::Truth,
            "array" => {
                let items = schema.get("items").ok_or("its items have no schema")?;
                let (of, nullable) = self.read(items, &format!("{at}/*"), depth + 1)?;
                if nullable {
                    return Err("its items may be null");
                }
                ArgumentType::Set(Box::new(of))
            }
            "object" => self.read_object(schema, at, depth),
            _ => return Err("it is always null"),
        };
        Ok((of, nullable))
    }

    fn read_choices(
        &mut self,
        choices: &'s [Value],
        at: &str,
        depth: usize,
    ) -> Result<Nullable, &'static str> {
        let is_null = |choice: &&Value| choice.get("type").is_some_and(|name| name == "null");
        let mut others = choices.iter().filter(|choice| !is_null(choice));
        let first = others.next().ok_or("it is always null")?;
        let (of, mut nullable) = self.read(first, at, depth + 1)?;
        for other in others {
            let (same, null) = self.read(other, at, depth + 1)?;
            if same != of {
                return Err("it has several types");
            }
            nullable |= null;
        }
        Ok((of, nullable || choices.iter().any(|choice| is_null(&choice))))
    }

    fn read_object(
        &mut self,
        schema: &'s Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> ArgumentType {
        let required = |name: &str| {
            let names = schema.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|own| own == name))
        };
        let mut record = BTreeMap::new();
        let named = schema.get("properties").and_then(Value::as_object);
        let is_named = |name: &str| named.is_some_and(|named| named.contains_key(name));
        for (name, own) in named.into_iter().flatten() {
            let at = format!("{at}/{}", escaped(name));
            match self.read(own, &at, depth + 1) {
                Ok((of, nullable)) => {
                    let required = required(name) && !nullable;
                    record.insert(name.clone(), Property { of, required });
                }
                Err(reason) => drop(self.left_out.insert(at, reason)),
            }
        }
        let open = schema.get("additionalProperties");
        // An object without a name in its schema is open unless it says otherwise.
        let is_map = matches!(open, Some(Value::Object(_) | Value::Bool(true)))
            || schema.contains_key("patternProperties")
            || (open.is_none() && named.is_none_or(Map::is_empty));
        if is_map {
            self.left_out.insert(format!("{at}/*"), "members without a name in the schema");
        }
        // Of what is composed beside the type, only the names are read.
        for (keyword, reason) in COMPOSED {
            let parts = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
            let names = parts.filter_map(|part| part.get("properties")?.as_object());
            for name in names.flat_map(Map::keys).filter(|name| !is_named(name)) {
                // References lead to the same names again and again.
                self.parts += 1;
                if self.parts > PARTS_MAX {
                    return ArgumentType::Record(record);
                }
                self.left_out.insert(format!("{at}/{}", escaped(name)), reason);
            }
        }
        ArgumentType::Record(record)
    }
}

/// Returns a name as a part of a JSON pointer (RFC 6901, 3).
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Decodes the fragment of a reference (RFC 6901, 6).
fn decoded(pointer: &str) -> String {
    pointer.replace("%24", "$").replace("%20", " ").replace("%25", "%")
}

/// Returns the type of the values of `enum` or `const`.
fn type_of_values(schema: &Map<String, Value>) -> Option<&'static str> {
    let one = schema.get("const").map(std::slice::from_ref);
    let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).or(one)?;
    let all = |fits: fn(&Value) -> bool| !values.is_empty() && values.iter().all(fits);
    [
        ("string", all(Value::is_string)),
        ("boolean", all(Value::is_boolean)),
        ("integer", all(|value| matches!(value, Value::Number(n) if numbers::whole(n).is_some()))),
        ("number", all(Value::is_number)),
    ]
    .into_iter()
    .find_map(|(name, fits)| fits.then_some(name))
}

/// An argument that cannot be given to rules as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the argument `{at}` {reason}")]
pub(super) struct NotExact {
    at: String,
    reason: &'static str,
}

impl ArgumentType {
    /// Returns the JSON pointer of a part that rules read and that is not there.
    pub(super) fn missing(&self, reads: &Reads) -> Option<String> {
        let Self::Record(record) = self else { return None };
        reads.parts().find_map(|(name, reads)| {
            let own = match record.get(name) {
                None => Some(String::new()),
                Some(property) => property.of.missing(reads),
            };
            own.map(|rest| format!("/{name}{rest}"))
        })
    }

    /// Returns the JSON pointers of the decimals that rules read.
    pub(super) fn decimals(&self, reads: &Reads) -> Vec<String> {
        match self {
            Self::Decimal => vec![String::new()],
            Self::Set(of) => {
                of.decimals(reads).into_iter().map(|rest| format!("/*{rest}")).collect()
            }
            Self::Record(record) => {
                let read = record.iter().filter_map(|(name, property)| {
                    let all = property.of.decimals(&*reads.of(name)?);
                    let name = escaped(name);
                    Some(all.into_iter().map(move |rest| format!("/{name}{rest}")))
                });
                read.flatten().collect()
            }
            Self::Text | Self::Whole | Self::Truth => Vec::new(),
        }
    }

    fn numbers(&self, at: &str, numbers: &mut Vec<String>) {
        match self {
            Self::Whole | Self::Decimal => numbers.push(at.to_owned()),
            Self::Record(record) => {
                for (name, property) in record {
                    let at = format!("{at}/{}", escaped(name));
                    property.of.numbers(&at, numbers);
                }
            }
            Self::Set(_) | Self::Text | Self::Truth => (),
        }
    }

    fn names<'t>(&'t self, names: &mut Vec<&'t str>) {
        match self {
            Self::Record(record) => {
                for (name, property) in record {
                    names.push(name);
                    property.of.names(names);
                }
            }
            Self::Set(of) => of.names(names),
            Self::Text | Self::Whole | Self::Decimal | Self::Truth => (),
        }
    }

    /// Returns the type as a JSON schema of Cedar states it.
    pub(super) fn cedar(&self) -> Value {
        match self {
            Self::Text => json!({ "type": "String" }),
            Self::Whole => json!({ "type": "Long" }),
            Self::Truth => json!({ "type": "Boolean" }),
            Self::Decimal => json!({ "type": "Extension", "name": "decimal" }),
            Self::Set(of) => json!({ "type": "Set", "element": of.cedar() }),
            Self::Record(record) => {
                let attributes: Map<String, Value> = record
                    .iter()
                    .map(|(name, property)| {
                        let mut of = property.of.cedar();
                        if let Some(members) = of.as_object_mut() {
                            members.insert("required".to_owned(), property.required.into());
                        }
                        (name.clone(), of)
                    })
                    .collect();
                json!({ "type": "Record", "attributes": attributes })
            }
        }
    }

    /// Converts the parts of a value that rules read.
    ///
    /// # Errors
    /// [`NotExact`], if a rule could read another value than the tool gets.
    pub(super) fn convert(
        &self,
        value: &Value,
        reads: &Reads,
        at: &str,
    ) -> Result<RuleValue, NotExact> {
        let wrong = |reason| NotExact { at: at.to_owned(), reason };
        match (self, value) {
            (Self::Text, Value::String(text)) => Ok(values::text(text.clone())),
            (Self::Truth, Value::Bool(truth)) => Ok(values::truth(*truth)),
            (Self::Whole, Value::Number(number)) => match numbers::whole(number) {
                Some(whole) => Ok(values::whole(whole)),
                None => Err(wrong("is larger than a whole number of rules can be")),
            },
            (Self::Decimal, Value::Number(number)) => match numbers::decimal(number) {
                Some(decimal) => values::decimal(decimal).map_err(|_| wrong("cannot be read")),
                None => Err(wrong("is no decimal with at most four digits after the point")),
            },
            (Self::Set(of), Value::Array(items)) => {
                let items = items.iter().enumerate();
                let all: Result<Vec<_>, _> = items
                    .map(|(index, item)| of.convert(item, reads, &format!("{at}/{index}")))
                    .collect();
                Ok(values::set(all?))
            }
            (Self::Record(record), Value::Object(members)) => {
                let is_known = |(name, member): (&String, &Value)| {
                    record.contains_key(name) || member.is_null()
                };
                if reads.is_everything() && !members.iter().all(is_known) {
                    return Err(wrong("has members that rules cannot read"));
                }
                let mut fields = Vec::new();
                for (name, property) in record {
                    let Some(reads) = reads.of(name) else { continue };
                    let member = match members.get(name) {
                        None => continue,
                        Some(Value::Null) if !property.required => continue,
                        Some(member) => member,
                    };
                    let at = format!("{at}/{name}");
                    fields.push((name.clone(), property.of.convert(member, &reads, &at)?));
                }
                Ok(values::record(fields))
            }
            _ => Err(wrong("has another type than in the schema")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_become_types_and_the_rest_is_told() {
        let types = ArgumentTypes::of(&json!({
            "type": "object",
            "properties": {
                "to": { "type": "string" },
                "cents": { "type": "integer" },
                "rate": { "type": ["number", "null"] },
                "tags": { "type": "array", "items": { "enum": ["a", "b"] } },
                "who": { "$ref": "#/$defs/who" },
                "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "any": {},
                "mixed": { "type": ["string", "integer"] },
                "free": { "type": "object", "additionalProperties": { "type": "string" } },
                "loop": { "$ref": "#/properties/loop" },
                "a/b": { "type": "boolean" }
            },
            "required": ["to", "rate"],
            "$defs": { "who": { "type": "object", "properties": { "id": { "const": 1 } } } }
        }));
        let attributes = &types.record.cedar()["attributes"];
        let of = |name: &str| attributes[name].clone();
        assert_eq!(of("to"), json!({ "type": "String", "required": true }));
        assert_eq!(of("cents"), json!({ "type": "Long", "required": false }));
        let decimal = json!({ "type": "Extension", "name": "decimal", "required": false });
        assert_eq!(of("rate"), decimal);
        assert_eq!(of("tags")["element"], json!({ "type": "String" }));
        assert_eq!(of("who")["attributes"]["id"]["type"], "Long");
        assert_eq!(of("note")["type"], "String");
        assert_eq!(of("a/b")["type"], "Boolean");
        let left_out: Vec<&str> = types.left_out.keys().map(String::as_str).collect();
        assert_eq!(left_out, ["/any", "/free/*", "/loop", "/mixed"]);
    }

    #[test]
    fn schemas_with_choices_are_bounded_and_what_they_narrow_is_read() {
        let narrowed = ArgumentTypes::of(&json!({
            "type": "object", "properties": { "a": { "type": "string" } },
            "anyOf": [{ "required": ["a"] }, { "required": ["b"] }],
        }));
        assert_eq!(narrowed.names(), ["a"]);
        let composed = ArgumentTypes::of(&json!({ "allOf": [{ "type": "object" }] }));
        assert!(composed.left_out.contains_key(""));
        let mut defs = Map::new();
        defs.insert("d5".to_owned(), json!({ "type": "string" }));
        for level in 0..5 {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            let choice = json!({ "type": "array", "items": next });
            defs.insert(format!("d{level}"), json!({ "anyOf": vec![choice; 100] }));
        }
        let many = ArgumentTypes::of(&json!({
            "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } }, "$defs": defs,
        }));
        assert_eq!(many.left_out.keys().collect::<Vec<_>>(), ["/a"]);
    }

    #[test]
    fn only_what_is_read_is_converted_and_exactly() {
        let types = ArgumentTypes::of(&json!({
            "type": "object",
            "properties": {
                "cents": { "type": "integer" }, "rate": { "type": "number" },
                "tags": { "type": "array", "items": { "type": "string" } }
            }
        }));
        let mut reads = Reads::default();
        reads.add(["cents"]);
        let convert = |value: &str, reads: &Reads| {
            let value: Value = serde_json::from_str(value).unwrap();
            types.record.convert(&value, reads, "").map_err(|error| error.to_string())
        };
        assert!(convert(r#"{"cents": 5, "rate": 0.00001}"#, &reads).is_ok());
        let large = convert(r#"{"cents": 92233720368547758080}"#, &reads).unwrap_err();
        assert!(large.contains("`/cents`"), "{large}");
        reads.add(["rate"]);
        assert!(convert(r#"{"cents": 5, "rate": 0.00001}"#, &reads).is_err());
        assert!(convert(r#"{"cents": 5, "rate": null}"#, &reads).is_ok());
        assert!(convert(r#"{"cents": "5"}"#, &reads).is_err());
    }
}
