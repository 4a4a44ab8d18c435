//! Tests of the comparison of two sets of rules.
//!
//! Doc: policy.md#comparing

use super::*;

#[test]
fn rules_are_compared_by_what_they_say() {
    let before = set("@id(\"gone\") permit (principal, action, resource);\n\
         @id(\"same\") permit (principal, action == Action::\"pay.send\", resource);\n\
         @id(\"turned\") permit (principal, action, resource) when { context.claimed has epicId };\n\
         @id(\"told\") @reason(\"Once.\") forbid (principal, action, resource);\n");
    let after = set("// Written in another way.\n\
         @id(\"same\")\npermit (\n  principal,\n  action == Action::\"pay.send\", // Only this.\n  resource\n);\n\
         @id(\"turned\") forbid (principal, action == Action::\"pay.send\", resource);\n\
         @id(\"told\") @reason(\"Twice.\") forbid (principal, action, resource);\n\
         @id(\"new\") permit (principal, action, resource);\n");
    let found = before.differences(&after);
    let ids = |rules: &[StatedRule]| rules.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>();
    assert_eq!((ids(&found.added), ids(&found.removed)), (vec!["new".into()], vec!["gone".into()]));
    let changed: Vec<(&str, &[&str])> =
        found.changed.iter().map(|rule| (rule.after.id.as_str(), rule.parts.as_slice())).collect();
    assert_eq!(
        changed,
        [("told", &["annotations"][..]), ("turned", &["effect", "scope", "conditions"][..])]
    );
    assert_eq!(found.same, 1);
    let turned = &found.changed[1];
    assert!(
        turned.before.text.contains("epicId") && turned.after.place.ends_with(":8:1"),
        "{turned:?}"
    );
    let none = after.differences(&after);
    assert_eq!((none.same, none.added.len() + none.removed.len() + none.changed.len()), (4, 0));
}
