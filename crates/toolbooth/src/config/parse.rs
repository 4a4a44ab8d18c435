//! Parses a configuration from its text and from variables; errors contain no values of it.

use std::path::PathBuf;

use toml::{Table, Value};
use toolbooth_contracts::id::nearest;

use super::document::Config;
use crate::failure::Failure;

/// The prefix of names that the JSON library interprets.
const PRIVATE: &str = "$serde_json::private::";

fn has_private_name(table: &Table) -> bool {
    fn any(value: &Value) -> bool {
        match value {
            Value::Table(table) => has_private_name(table),
            Value::Array(items) => items.iter().any(any),
            _ => false,
        }
    }
    table.iter().any(|(name, value)| name.starts_with(PRIVATE) || any(value))
}

/// Parses a configuration from text and overrides.
pub(crate) fn parse(
    text: &str,
    file: &str,
    overrides: Vec<(String, String)>,
) -> Result<Config, Failure> {
    let mut table: Table = toml::from_str(text).map_err(|error| failure_of(&error, text, file))?;
    if has_private_name(&table) {
        let message = format!("no setting has a name that begins with `{PRIVATE}`");
        return Err(Failure::configuration(message).at(file.to_owned()));
    }
    let mut config: Config =
        toml::from_str(text).map_err(|error| failure_of(&error, text, file))?;
    if overrides.is_empty() {
        config.secret_files = secret_files(&table);
        return Ok(config);
    }
    for (name, value) in &overrides {
        let path: Vec<String> = name.split("__").map(str::to_lowercase).collect();
        set(&mut table, &path, scalar(value)).map_err(|message| {
            Failure::configuration(message).at(format!("the variable TOOLBOOTH__{name}"))
        })?;
    }
    let secret_files = secret_files(&table);
    let config: Config = Value::Table(table).try_into().map_err(|error: toml::de::Error| {
        let names: Vec<String> =
            overrides.iter().map(|(name, _)| format!("TOOLBOOTH__{name}")).collect();
        failure_of(&error, "", &format!("the variables {}", names.join(", ")))
    })?;
    Ok(Config { secret_files, ..config })
}

/// Returns the paths of the files that settings name as secrets.
fn secret_files(table: &Table) -> Vec<PathBuf> {
    fn collect(value: &Value, is_reference: bool, found: &mut Vec<PathBuf>) {
        match value {
            Value::Table(members) => {
                for (name, member) in members {
                    let is_reference = ["secretRef", "secret_ref"].contains(&name.as_str());
                    collect(member, is_reference, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, false, found)),
            Value::String(text) if is_reference => {
                found.extend(text.strip_prefix("file:").map(PathBuf::from));
            }
            _ => (),
        }
    }
    let mut found = Vec::new();
    table.values().for_each(|value| collect(value, false, &mut found));
    found
}

/// Parses a value from the environment: a TOML value if it is one, else text.
fn scalar(text: &str) -> Value {
    let wrapped = format!("value = {text}");
    match toml::from_str::<Table>(&wrapped).ok().and_then(|mut table| table.remove("value")) {
        Some(value) => value,
        None => Value::String(text.to_owned()),
    }
}

fn set(table: &mut Table, path: &[String], value: Value) -> Result<(), String> {
    match path {
        [] => Err("the variable names no setting".to_owned()),
        [last] => {
            table.insert(last.clone(), value);
            Ok(())
        }
        [first, rest @ ..] => {
            let inner = table.entry(first.clone()).or_insert_with(|| Value::Table(Table::new()));
            match inner {
                Value::Table(inner) => set(inner, rest, value),
                _ => Err(format!("`{first}` is not a section")),
            }
        }
    }
}

/// Sections that operators know from other gateways and that this version lacks.
const NOT_YET: [&str; 1] = ["telemetry"];

/// Returns the failure for an error, with place and hint. It never contains the line, which can hold a
/// secret.
fn failure_of(error: &toml::de::Error, text: &str, file: &str) -> Failure {
    let location = match error.span().filter(|_| !text.is_empty()) {
        Some(span) => {
            let (line, column) =
                toolbooth_contracts::json::line_column(text.as_bytes(), span.start);
            format!("{file}:{line}:{column}")
        }
        None => file.to_owned(),
    };
    // `invalid type: string "…", expected a map` repeats the value. The part after `expected` does not.
    let message = error.message();
    let message = match message.find("expected ") {
        Some(at) if message.starts_with("invalid ") => message.get(at..).unwrap_or_default(),
        _ if message.starts_with("unknown variant") => {
            message.find("expected ").and_then(|at| message.get(at..)).unwrap_or("no such value")
        }
        _ => message,
    };
    let key = error.span().and_then(|span| key_before(text.get(..span.start)?));
    let message = match key.filter(|_| message.starts_with("expected ")) {
        Some(key) => format!("`{key}`: {message}"),
        None => message.to_owned(),
    };
    let failure = Failure::configuration(message.clone()).at(location);
    if key == Some("command") && message.ends_with("expected a string") {
        return failure.hint("it is one program; its arguments go into `args`");
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(unknown) = quoted.next().filter(|_| message.starts_with("unknown field")) else {
        return failure;
    };
    if NOT_YET.contains(&unknown) {
        return failure.hint(format!("this version has no `{unknown}`; take it out"));
    }
    match nearest(unknown, quoted) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure,
    }
}

/// Returns the key of the value that begins after `text`, if it is on the same line.
fn key_before(text: &str) -> Option<&str> {
    let line = text.rsplit('\n').next()?.trim_end().strip_suffix('=')?;
    let key = line.rsplit(['{', ',']).next()?.trim();
    let is_plain = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    Some(key).filter(|key| !key.is_empty() && is_plain(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_json_library_takes_for_something_else_are_refused() {
        for name in ["$serde_json::private::Number", "\\u0024serde_json::private::RawValue"] {
            for text in [
                format!("[servers.\"{name}\"]\ncommand = \"x\"\n"),
                format!("[servers.a]\ncommand = \"x\"\nenv = {{ \"{name}\" = \"1\" }}\n"),
                format!("[callers.\"{name}\"]\n"),
            ] {
                let failure = parse(&text, "t.toml", Vec::new()).unwrap_err();
                assert!(failure.message.contains("begins with"), "{text}: {failure:?}");
            }
        }
    }

    #[test]
    fn a_value_of_another_kind_is_told_with_its_key() {
        for (text, message, hint) in [
            (
                "[servers.x]\ncommand = [\"a\"]\n",
                "`command`: expected a string",
                Some("it is one program; its arguments go into `args`"),
            ),
            ("[http]\nlisten = 7\n", "`listen`: expected a string", None),
            ("servers = { x = { command = 1 } }\n", "`command`: expected a string", None),
        ] {
            let error = parse(text, "t.toml", Vec::new()).unwrap_err();
            assert_eq!(error.message, message);
            assert!(hint.is_none() || error.hint.as_deref() == hint, "{error:?}");
        }
    }

    #[test]
    fn the_full_example_is_loaded() {
        let text = include_str!("../../../../examples/toolbooth.toml");
        let config = parse(text, "toolbooth.toml", Vec::new()).unwrap();
        assert!(
            !config.servers.is_empty()
                && !config.commands.is_empty()
                && !config.runtimes.is_empty()
        );
        parse(include_str!("../../templates/toolbooth.toml"), "toolbooth.toml", Vec::new())
            .unwrap();
    }

    #[test]
    fn unknown_keys_name_their_location_and_the_nearest_name() {
        let error = parse("[flags]\nmcp_tool = true\n", "t.toml", Vec::new()).unwrap_err();
        assert_eq!(error.path.as_deref(), Some("t.toml:2:1"));
        assert_eq!(error.hint.as_deref(), Some("did you mean `mcp_tools`?"));
        let error = parse("[telemetry]\notlp = 1\n", "t.toml", Vec::new()).unwrap_err();
        assert!(error.hint.unwrap().contains("no `telemetry`"));
    }

    #[test]
    fn messages_hold_no_values_of_the_file() {
        let text =
            "[servers.x]\ncommand = \"a\"\nenv = { TOKEN = \"hunter2\", }\nargs = \"hunter3\"\n";
        let shown = parse(text, "t.toml", Vec::new()).unwrap_err().text();
        assert!(!shown.contains("hunter"), "{shown}");
        for text in ["[servers.x]\nheaders = \"hunter2\"\n", "[servers.x]\nverify = \"hunter2\"\n"]
        {
            let shown = parse(text, "t.toml", Vec::new()).unwrap_err().text();
            assert!(!shown.contains("hunter") && shown.contains("expected"), "{shown}");
        }
    }

    #[test]
    fn files_that_are_secrets_are_found_also_in_the_environment() {
        let text = "[servers.a]\ncommand = \"x\"\nenv = { T = { secret_ref = \"file:t\" }, U = \"file:u\" }\n";
        let overrides = vec![(
            "AUDIT__SIGNING_KEY".to_owned(),
            "{ secret_ref = \"file:audit.key\" }".to_owned(),
        )];
        let config = parse(text, "t", overrides).unwrap();
        let mut found = config.secret_files;
        found.sort();
        assert_eq!(found, [PathBuf::from("audit.key"), PathBuf::from("t")]);
        assert_eq!(parse(text, "t", Vec::new()).unwrap().secret_files, [PathBuf::from("t")]);
    }

    #[test]
    fn the_environment_overrides() {
        let overrides = vec![
            ("FLAGS__MCP_TOOLS".to_owned(), "false".to_owned()),
            ("HTTP__LISTEN".to_owned(), "127.0.0.1:0".to_owned()),
        ];
        let config = parse("[flags]\nmcp_tools = true\n", "t", overrides).unwrap();
        assert!(!config.flags.mcp_tools);
        assert_eq!(config.http.listen.as_deref(), Some("127.0.0.1:0"));
        assert!(parse("", "t", vec![("FLAGZ__X".into(), "1".into())]).is_err());
    }
}
