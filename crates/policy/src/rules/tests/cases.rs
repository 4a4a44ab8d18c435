//! Tests of cases beside the rules.
//!
//! Doc: policy.md#cases

use super::*;

#[test]
fn cases_are_run_when_the_rules_are_loaded() {
    let rules = "@id(\"all\") permit (principal, action, resource);\n\
                 @id(\"large\") forbid (principal, action == Action::\"pay.send\", resource)\n\
                 when { context.args has cents && context.args.cents > 100 };\n\
                 @id(\"guests\") @approval(\"one\") forbid (principal in Group::\"guests\", action, resource);\n";
    let run = |cases: &str| -> Vec<String> {
        let cases = Some(("main.cases.toml".to_owned(), cases.to_owned()));
        told(&RuleFile { cases, ..file(rules) }, &HistoryWindows::default())
    };
    let good = "[[case]]\nname = \"small\"\ntool = \"pay.send\"\nargs = { cents = 100 }\n\
                decision = \"permit\"\nmatch = [\"all\"]\nnot_match = [\"large\"]\n\
                [[case]]\nname = \"large\"\ntool = \"pay.send\"\nargs = { cents = 101 }\n\
                decision = \"deny\"\nmatch = [\"all\", \"large\"]\n\
                [[case]]\nname = \"guest\"\ncaller = \"key:bob\"\ngroups = [\"guests\"]\n\
                tool = \"files.read\"\ndecision = \"approval\"\n";
    assert_eq!(run(good), Vec::<String>::new());
    for (from, to, told) in [
        (
            "decision = \"permit\"",
            "decision = \"deny\"",
            "failed-case main.cases.toml:1:1: the case `small` fails: `deny` is expected, and it is `permit` by `all`",
        ),
        (
            "not_match = [\"large\"]",
            "not_match = [\"all\"]",
            "failed-case main.cases.toml:1:1: the case `small` fails: `all` applies",
        ),
        (
            "match = [\"all\", \"large\"]",
            "match = [\"guests\"]",
            "failed-case main.cases.toml:8:1: the case `large` fails: `guests` does not apply; these do: all, large",
        ),
        (
            "tool = \"files.read\"",
            "tool = \"files.raed\"",
            "unbound-case main.cases.toml:14:1: the case `guest` is about `files.raed`, no known tool",
        ),
        (
            "decision = \"approval\"\n",
            "",
            "invalid-case main.cases.toml:14:1: the case `guest` expects nothing (write `decision`, `match` or `not_match`)",
        ),
        (
            "caller = \"key:bob\"",
            "caller = \"bob\"",
            "invalid-case main.cases.toml:14:1: the case `guest` has a caller that is no name: `bob`",
        ),
        (
            "not_match = [\"large\"]",
            "not_match = [\"lagre\"]",
            "invalid-case main.cases.toml:1:1: the case `small` names `lagre`, which is no rule (is `large` meant?)",
        ),
        (
            "match = [\"all\", \"large\"]",
            "match = [\"nothing-like-it\"]",
            "invalid-case main.cases.toml:8:1: the case `large` names `nothing-like-it`, which is no rule",
        ),
        (
            "decision = \"permit\"",
            "decision = \"permit\"\nat = \"yesterday\"",
            "invalid-case main.cases.toml:1:1: the case `small` has a time in another form: `yesterday`",
        ),
        (
            "args = { cents = 100 }",
            "args = { cent = 100 }",
            "failed-case main.cases.toml:1:1: the case `small` fails: `pay.send` has no argument `cent`; is `cents` meant?",
        ),
        (
            "args = { cents = 100 }",
            "args = { cents = nan }",
            "invalid-case main.cases.toml:1:1: the case `small` has an argument that JSON does not have",
        ),
        (
            "args = { cents = 100 }",
            "args = { cents = 2026-01-01 }",
            "invalid-case main.cases.toml:1:1: the case `small` has an argument that JSON does not have",
        ),
        ("groups", "group", "invalid-case main.cases.toml:17:1: unknown field `group`"),
    ] {
        let found = run(&good.replace(from, to));
        assert!(found.len() == 1 && found[0].starts_with(told), "{told}\n{found:#?}");
    }
}
