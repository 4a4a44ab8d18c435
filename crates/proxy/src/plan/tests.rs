use serde_json::json;

use super::*;

fn plan(text: &str) -> Result<Vec<Step>, String> {
    let plan: Plan = serde_json::from_str(text).map_err(|error| error.to_string())?;
    checked(plan, 10).map_err(|error| error.message)
}

#[test]
fn plans_are_checked_before_anything_runs() {
    let bad = |text: &str| plan(text).err().unwrap_or_default();
    assert!(bad(r#"{"steps":[],"tools":[]}"#).contains("not both"));
    assert!(
        bad(r#"{"steps":[{"id":"a","tool":"t"},{"id":"a","tool":"t"}]}"#).contains("two steps")
    );
    assert!(bad(r#"{"steps":[{"id":"a","tool":"t","needs":["b"]}]}"#).contains("no step"));
    assert!(
        bad(
            r#"{"steps":[{"id":"a","tool":"t","needs":["b"]},{"id":"b","tool":"t","needs":["a"]}]}"#
        )
        .contains("cycle")
    );
    assert!(bad(r#"{"steps":[{"id":"a","tool":"t"},{"id":"b","tool":"t","args":{"x":[{"$from":"a"}]}}]}"#).contains("does not need"));
    assert!(bad(r#"{"steps":[{"id":"a","tool":"t","nedes":[]}]}"#).contains("nedes"));
    for (reference, told) in [
        (r#"{"$from":"a","pointer":"x"}"#, "a pointer"),
        (r#"{"$from":"a","pointer":"/x~2"}"#, "a pointer"),
        (r#"{"$from":"a","pointer":"/~"}"#, "a pointer"),
        (r#"{"$from":"a","pointer":1}"#, "a reference"),
        (r#"{"$from":"a","pointr":"/x"}"#, "a reference"),
        (r#"{"$from":"a","pointer":"","x":1}"#, "a reference"),
        (r#"{"$from":1}"#, "a reference"),
    ] {
        let step = |reference: &str| {
            let second =
                format!(r#"{{"id":"b","tool":"t","needs":["a"],"args":{{"x":{reference}}}}}"#);
            format!(r#"{{"steps":[{{"id":"a","tool":"t"}},{second}]}}"#)
        };
        assert!(bad(&step(reference)).contains(told), "{reference}");
        assert!(plan(&step(r#"{"$from":"a","pointer":"/x~1y~0/0"}"#)).is_ok());
    }
    // Steps are objects: a list of the values of their members is none.
    assert!(bad(r#"{"steps":[["a","t",{"x":1}]]}"#).contains("sequence"));
    let literal = r#"{"steps":[{"id":"a","tool":"t","args":{"x":{"$literal":{"$from":"z"}}}}]}"#;
    assert!(plan(literal).is_ok());
}

#[test]
fn short_form_runs_in_sequence_with_ids_of_its_own() {
    let steps = plan(r#"{"tools":["a","b","a"]}"#).unwrap();
    let ids: Vec<&str> = steps.iter().map(|step| step.step.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "a#2"]);
    assert!(steps[2].after.contains(&1) && steps[2].needs.is_empty());
}

#[test]
fn references_are_replaced_by_what_they_point_at() {
    let result = json!({"structuredContent": {"x": [1, 2]}});
    let results = HashMap::from([("a", Some(&result)), ("gone", None)]);
    let args = json!({"n": {"$from": "a", "pointer": "/structuredContent/x/1"}, "l": {"$literal": {"$from": "a"}}});
    let resolved = |args: &Value, mut left: usize| resolved(args, &results, &mut left);
    assert_eq!(resolved(&args, 100).unwrap(), json!({"n": 2, "l": {"$from": "a"}}));
    let missing = json!({"$from": "a", "pointer": "/nothing"});
    assert!(resolved(&missing, 100).unwrap_err().to_string().contains("/nothing"));
    for pointer in ["", "/content"] {
        let gone = json!({"$from": "gone", "pointer": pointer});
        assert!(resolved(&gone, 100).unwrap_err().to_string().contains("was not kept"));
    }
    // The values have the bytes of their text at least, together for all references.
    let whole = json!({"$from": "a"});
    let bytes = result.to_string().len();
    assert!(resolved(&whole, bytes).is_ok() && resolved(&whole, bytes / 2).is_err());
    let many = json!(vec![whole; 1_000]);
    assert!(resolved(&many, 10 * bytes).unwrap_err().to_string().contains("too large"));
}
