use serde_json::json;

use super::*;

fn told(direction: Direction, before: Value, after: Value) -> Vec<(String, Compatibility)> {
    let mut changes = Vec::new();
    compare("s", direction, &before, &after, &mut changes);
    changes.into_iter().map(|change| (change.path, change.verdict)).collect()
}

#[test]
fn each_change_of_arguments_has_its_verdict() {
    use Compatibility::{Breaking, Compatible};
    let base = json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "integer", "maximum": 10}, "b": {"enum": ["x", "y"]}}});
    let with = |pointer: &str, value: Value| {
        let mut changed = base.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value;
        changed
    };
    for (after, path, verdict) in [
        (with("/properties/c", json!({"type": "string"})), "/properties/c", Compatible),
        (with("/properties/a/type", json!("number")), "/properties/a/type", Compatible),
        (with("/properties/a/type", json!("string")), "/properties/a/type", Breaking),
        (with("/properties/a/maximum", json!(5)), "/properties/a/maximum", Breaking),
        (with("/properties/a/maximum", json!(50)), "/properties/a/maximum", Compatible),
        (with("/properties/a/minimum", json!(1)), "/properties/a/minimum", Breaking),
        (with("/properties/b/enum", json!(["x"])), "/properties/b/enum", Breaking),
        (with("/properties/b/enum", json!(["x", "y", "z"])), "/properties/b/enum", Compatible),
        (with("/required", json!(["a", "b"])), "/required", Breaking),
        (with("/required", json!([])), "/required", Compatible),
        (with("/additionalProperties", json!(false)), "/additionalProperties", Breaking),
        (with("/properties/a/description", json!("d")), "/properties/a/description", Compatible),
        (with("/properties/a/pattern", json!("x")), "/properties/a/pattern", Breaking),
        (with("/properties/a/if", json!({})), "/properties/a/if", Breaking),
        (
            with("/properties", json!({"a": {"type": "integer", "maximum": 10}})),
            "/properties/b",
            Breaking,
        ),
    ] {
        assert_eq!(
            told(Direction::Input, base.clone(), after.clone()),
            [(path.to_owned(), verdict)],
            "{after}"
        );
    }
    let mut required = with("/properties/c", json!({"type": "string"}));
    required["required"] = json!(["a", "c"]);
    assert_eq!(
        told(Direction::Input, base.clone(), required),
        [("/properties/c".into(), Breaking)]
    );
}

#[test]
fn results_are_judged_the_other_way() {
    use Compatibility::{Breaking, Compatible};
    let one = json!({"required": ["a"], "properties": {"a": {"type": "integer"}}});
    let two = json!({"required": [], "properties": {"a": {"type": "number"}}});
    let wider = told(Direction::Output, one.clone(), two.clone());
    assert!(wider.iter().all(|(_, verdict)| *verdict == Breaking) && wider.len() == 2);
    let narrower = told(Direction::Output, two, one);
    assert!(narrower.iter().all(|(_, verdict)| *verdict == Compatible) && narrower.len() == 2);
}

#[test]
fn order_and_white_space_are_no_change() {
    let one = json!({"type": "object", "properties": {"a": {"description": "x y"}, "b": {}}});
    let two = json!({"properties": {"b": {}, "a": {"description": " x\n y"}}, "type": "object"});
    assert_eq!(told(Direction::Input, one, two), []);
}

proptest::proptest! {
    #[test]
    fn a_schema_never_differs_from_itself_and_always_from_another(
        a in proptest::collection::vec(("[a-e]", 0u8..5), 0..5),
        b in proptest::collection::vec(("[a-e]", 0u8..5), 0..5),
    ) {
        let schema = |parts: &[(String, u8)]| {
            let mut out = json!({"type": "object", "properties": {}});
            for (name, kind) in parts {
                out["properties"][name] = match kind {
                    0 => json!({"type": "string"}), 1 => json!({"type": "integer"}),
                        2 => json!(true), 3 => json!({"enum": [1, 2]}),
                    _ => json!({"type": "object", "properties": {"x": {"type": "null"}}}),
                };
            }
            out
        };
        let (a, b) = (schema(&a), schema(&b));
        proptest::prop_assert!(told(Direction::Input, a.clone(), a.clone()).is_empty());
        proptest::prop_assert_eq!(told(Direction::Input, a.clone(), b.clone()).is_empty(), a == b);
    }
}
