use super::*;

fn tool(name: &str, passes: bool) -> ListedTool {
    let expected = format!("hub_{name}");
    let wire_name = passes.then(|| expected.clone());
    ListedTool { name: name.to_owned(), wire_name, expected_name: expected }
}

fn hub() -> Vec<Switched> {
    let tools = vec![tool("make", true), tool("drop", true), tool("odd", false)];
    vec![Switched { name: "hub".to_owned(), tools }]
}

fn carried(text: &str, is_shared: bool, all: &[&str]) -> (String, Vec<Change>) {
    let all: Vec<String> = all.iter().map(|name| (*name).to_owned()).collect();
    let names = WireNames::default();
    let exchange = Exchange { switched: &hub(), all: &all, names: &names };
    carried_over(text, &file(is_shared), exchange).unwrap()
}

fn file(is_shared: bool) -> PermissionFile {
    PermissionFile { path: PathBuf::from("settings.json"), is_shared, project: None }
}

const TEXT: &str = "{\n  // mine\n  \"permissions\": {\n    \"allow\": [\"Bash(ls:*)\", \"mcp__hub\", \"mcp__hub2__x\"],\n    \"deny\": [\"mcp__hub__odd\", \"mcp__hub__gone\"]\n  },\n  \"model\":   \"m\"\n}\n";

#[test]
fn entries_become_those_of_single_tools_and_the_rest_stays() {
    let (text, changes) = carried(TEXT, false, &["hub", "hub2"]);
    let expected = TEXT
        .replace("\"mcp__hub\",", "\"mcp__toolbooth__hub_make\", \"mcp__toolbooth__hub_drop\",")
        .replace("mcp__hub__odd", "mcp__toolbooth__hub_odd")
        .replace("mcp__hub__gone", "mcp__toolbooth__hub_gone");
    assert_eq!(text, expected);
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(!text.contains("\"mcp__toolbooth\""));
}

#[test]
fn a_shared_file_keeps_its_entries() {
    let (text, _) = carried(TEXT, true, &["hub"]);
    for kept in ["\"mcp__hub\"", "\"mcp__hub__odd\"", "\"mcp__toolbooth__hub_odd\""] {
        assert!(text.contains(kept), "{text}");
    }
}

#[test]
fn what_is_not_passed_on_is_not_allowed() {
    let text = r#"{"permissions": {"allow": ["mcp__hub__odd", "mcp__hub__dr*"]}}"#;
    let (text, _) = carried(text, false, &["hub"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["permissions"]["allow"], serde_json::json!(["mcp__toolbooth__hub_drop"]));
}

#[test]
fn names_follow_the_configuration() {
    use toolbooth_registry::wire::{GivenNames, Naming, Prefix};
    let names = WireNames::new(Naming::Short, Prefix::Never, GivenNames::default());
    let all = ["hub".to_owned()];
    let exchange = Exchange { switched: &hub(), all: &all, names: &names };
    let (text, _) = carried_over(TEXT, &file(false), exchange).unwrap();
    assert!(text.contains("\"mcp__toolbooth__gone\""), "{text}");
}

#[test]
fn refusals_of_whole_servers_are_found() {
    let text = r#"{"permissions": {"deny": ["mcp__hub", "mcp__a-b__*", "mcp__c__x"]}}"#;
    let servers = ["hub", "a-b", "c"].map(str::to_owned);
    let found = wide_refusals(text, &file(false), &servers);
    let names: Vec<&str> = found.iter().map(|(server, _)| server.as_str()).collect();
    assert_eq!(names, ["hub", "a-b"]);
}
