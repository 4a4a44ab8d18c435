use serde_json::json;

use super::*;

fn item(document: Value, key: &str) -> DiscoveredItem {
    DiscoveredItem { key: key.into(), document: document.as_object().unwrap().clone() }
}

fn listing() -> Listing {
    Listing {
        prompts: vec![
            item(json!({"name": "greet", "icons": [1]}), "greet"),
            item(json!({"name": "greet"}), "greet"),
            item(json!({"name": "other"}), "greeting"),
            item(json!({"name": "deep", "n": 1}), "deep"),
        ],
        resources: vec![item(json!({"uri": "a:b", "name": "B"}), "a:b")],
        templates: vec![item(json!({"uriTemplate": "a:{x}", "name": "X"}), "a:{x}")],
        ..Listing::default()
    }
}

#[test]
fn malformed_items_are_left_out_alone() {
    let source = Source::Mcp("My s".into());
    let (items, problems) = SourceItems::of_listing(&source, &listing());
    assert_eq!(problems.len(), 2, "{problems:?}");
    let ids: Vec<String> = items.iter().map(|item| item.locked_id()).collect();
    assert_eq!(
        ids,
        ["prompt:My_s.deep", "prompt:My_s.greet", "resource:My_s.a:b", "template:My_s.a:{x}"]
    );
    let resource = items.get(ItemKind::Resource, "a:b").unwrap();
    let shown = resource.shown(&resource.shown_uri(&ResourceUris::default()));
    assert_eq!(Value::Object(shown), json!({"uri": "toolbooth+.4dy.20s:a:b", "name": "B"}));
}

#[test]
fn templates_are_bounded() {
    let listed = |uri: String| item(json!({"uriTemplate": uri, "name": "N"}), &uri);
    let mut templates = vec![listed(format!("x:{}", "{a}".repeat(65)))];
    templates.extend((0..1_001).map(|n| listed(format!("x:{n}{{a}}"))));
    let listing = Listing { templates, ..Listing::default() };
    let (items, problems) = SourceItems::of_listing(&Source::Mcp("s".into()), &listing);
    assert_eq!((items.count(ItemKind::Template), problems.len()), (999, 2), "{problems:?}");
    assert!(problems[1].contains("64 expressions"), "{problems:?}");
}

#[test]
fn one_spelling_is_asked_for() {
    let listed = |uri: &str| item(json!({"uri": uri, "name": "N"}), uri);
    let resources = ["file:///a b", "file:///c", "X:/d", "x:/./d", "x:e#f"].map(listed);
    let listing = Listing { resources: resources.into(), ..Listing::default() };
    let (items, _) = SourceItems::of_listing(&Source::Mcp("s".into()), &listing);
    assert_eq!(items.asked_uri("file:///a b"), Some("file:///a b"));
    assert_eq!(items.asked_uri("file:///a%20b"), Some("file:///a b"));
    assert_eq!((items.asked_uri("x:e#f"), items.asked_uri("x:e")), (Some("x:e#f"), Some("x:e#f")));
    assert_eq!(items.asked_uri("x:/d"), None, "of two");
    assert_eq!(items.asked_uri("x:/./d"), Some("x:/./d"));
    assert_eq!(items.asked_uri("file:///new"), Some("file:///new"));
    for odd in ["file:///c/../c", "FILE:///c", "file:///%63", "file:///c#x", "file:///c "] {
        assert_eq!(items.asked_uri(odd), None, "{odd}");
    }
}

#[test]
fn pages_go_on_after_a_key() {
    let source = Source::Mcp("s".into());
    let (items, _) = SourceItems::of_listing(&source, &listing());
    let keys = |after| -> Vec<&str> {
        items.of_kind(ItemKind::Prompt, after).map(|item| item.key()).collect()
    };
    assert_eq!(keys(None), ["deep", "greet"]);
    assert_eq!(keys(Some("deep")), ["greet"]);
    assert_eq!(keys(Some("e")), ["greet"], "a key that has gone");
    assert!(keys(Some("greet")).is_empty());
}

#[test]
fn a_prompt_never_takes_the_id_of_another_sources() {
    let mut all = ItemRegistry::default();
    let (one, two) = (Source::Mcp("a b".into()), Source::Mcp("a_b".into()));
    let (items, _) = SourceItems::of_listing(&one, &listing());
    assert!(all.replace_source(&one, items.clone()).0);
    assert!(!all.replace_source(&one, items).0, "the same again");
    let (items, _) = SourceItems::of_listing(&two, &listing());
    let (_, problems) = all.replace_source(&two, items);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(all.prompt("a_b.greet").unwrap().source(), &one);
    let _ = all.replace_source(&one, SourceItems::default());
    assert!(all.prompt("a_b.greet").is_none());
    for item in all.iter() {
        assert_eq!(all.locked(&item.locked_id()).map(|found| found.key()), Some(item.key()));
    }
    assert!(all.locked("prompt:a_b.greet").is_none() && all.locked("a_b.greet").is_none());
}
