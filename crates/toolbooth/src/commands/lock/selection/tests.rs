use super::*;

fn named(given: &str) -> Selection<'_> {
    Selection::of(given).unwrap()
}

#[test]
fn an_item_without_its_kind_is_meant() {
    let known = ["S_1.note", "prompt:S_1.greet", "resource:S_1.note://c"];
    assert_eq!(meant("S_1.note://c", &known), Some("resource:S_1.note://c"));
    assert_eq!(meant("S_1.greet", &known), Some("prompt:S_1.greet"));
    assert_eq!(meant("S_1.noet", &known), Some("S_1.note"));
}

#[test]
fn arguments_name_tools_items_sources_and_patterns() {
    let item = "resource:s.https://ada@host/*";
    assert!(matches!(named(item), Selection::Tool(own, None) if own == item));
    let shown = format!("{item}@0123abcd");
    assert!(matches!(named(&shown), Selection::Tool(own, Some("0123abcd")) if own == item));
    assert!(matches!(named("s.read@0123abcd"), Selection::Tool("s.read", Some("0123abcd"))));
    assert!(named("s.*").selects("prompt:s.greet", "mcp:s"));
    assert!(named("s.*").selects("s.read", "mcp:s") && !named("s.*").selects("t.a", "mcp:t"));
    assert!(named("mcp:s").selects("template:s.x:{y}", "mcp:s"));
    assert!(!named("s.greet").selects("prompt:s.greet", "mcp:s"), "that is a tool");
    assert!(named("prompt:s.greet").selects("prompt:s.greet", "mcp:s"));
}
