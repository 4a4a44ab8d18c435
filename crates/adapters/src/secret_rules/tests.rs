use toolbooth_contracts::secret::SecretShapes;

use super::*;

/// The published rules of gitleaks.
const GITLEAKS: &str = include_str!("../../rules/gitleaks.toml");
/// Rules for further services.
const SERVICES: &str = include_str!("../../rules/services.toml");
/// Rules that guess. They would reject too many names and numbers.
const LEFT_OUT: [&str; 1] = ["generic-api-key"];

/// Returns the rules of both files that can be used, a line each.
fn used() -> String {
    #[derive(Deserialize)]
    struct Published {
        allowlist: Allowed,
        rules: Vec<toml::Table>,
    }
    let published: Published = toml::from_str(GITLEAKS).unwrap();
    let own: Published = toml::from_str(SERVICES).unwrap();
    let usable = |rule: &toml::Table| {
        let id = rule["id"].as_str().unwrap();
        rule.contains_key("regex")
            && !rule.contains_key("path")
            && rule
                .get("keywords")
                .and_then(toml::Value::as_array)
                .is_some_and(|all| !all.is_empty())
            && !LEFT_OUT.contains(&id)
    };
    let rules = published.rules.into_iter().chain(own.rules).filter(usable).map(|rule| {
        let rule: RuleText = rule.try_into().unwrap();
        serde_json::to_string(&rule).unwrap()
    });
    let rules: Vec<String> = rules.collect();
    let allowed = serde_json::to_string(&published.allowlist).unwrap();
    format!("{{\"allowlist\":{allowed},\"rules\":[\n{}\n]}}\n", rules.join(",\n"))
}

/// `UPDATE_GOLDEN` writes the file.
#[test]
fn the_rules_that_are_used_are_those_of_the_published_files() {
    let used = used();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/rules/used.json");
        std::fs::write(file, &used).unwrap();
        return;
    }
    assert!(used == USED, "rules/used.json differs; run this test with UPDATE_GOLDEN=1");
}

#[test]
fn every_rule_is_read_and_compiles() {
    let rules = RULES.as_ref().unwrap();
    assert!(rules.rules.len() > 200, "{}", rules.rules.len());
    for rule in &rules.rules {
        let compiled = rule.compiled().unwrap_or_else(|| panic!("{}", rule.text.id));
        let listed: usize = rule.text.allowlists.iter().map(|list| list.regexes.len()).sum();
        let kept: usize = compiled.allowed.iter().map(|(_, regexes, _)| regexes.len()).sum();
        assert_eq!(listed, kept, "{}", rule.text.id);
    }
    let global = rules.allowed.regexes.iter().filter_map(|text| compile(text)).count();
    assert_eq!(global, rules.allowed.regexes.len());
}

#[test]
fn known_shapes_are_found_and_examples_are_not() {
    let shapes = SecretShapes::with([super::shapes()]);
    // Assembled here, so that no file of this project contains text that secret scanners report.
    let cases = [
        (format!("{}{}", "ghp_", "x7Kq2Lm9Rt4Vw8Zb3Nc6Yd1Pf5Hs0Jg2Qk7T"), "github-pat"),
        (format!("{}{}", "AKIA", "Z5TQ7XW2LM4R3YKC"), "aws-access-token"),
        (
            format!("{}-{}-{}", "xoxb", "123456789012-1234567890123", "AbCdEfGhIjKlMnOpQrStUvWx"),
            "slack-bot-token",
        ),
    ];
    for (secret, id) in cases {
        let text = format!("use {secret} for it");
        assert_eq!(shapes.recognise(&text), Some(id), "{id}");
        let clean = shapes.redact(&text);
        assert_eq!(clean, "use [redacted] for it", "{id}");
    }
    for harmless in [
        "AKIAIOSFODNN7EXAMPLE",
        "a description of tokens, keys and secrets",
        "d41d8cd98f00b204e9800998ecf8427e",
        "550e8400-e29b-41d4-a716-446655440000",
        "https://github.com/rust-lang/rust/pull/12345",
    ] {
        assert_eq!(shapes.recognise(harmless), None, "{harmless}");
    }
}

/// Hand-made samples, at least five of each shape, which were not derived from the rules.
const SAMPLES: &str = include_str!("../../tests/data/secret_samples.tsv");
/// Strings that are not secrets, one per line.
const ORDINARY: &str = include_str!("../../tests/data/ordinary_strings.txt");

#[test]
fn hand_made_samples_are_found_and_ordinary_strings_are_not() {
    let shapes = SecretShapes::with([super::shapes()]);
    let samples: Vec<(&str, String)> = SAMPLES
        .lines()
        .filter_map(|line| line.split_once('\t').filter(|(shape, _)| !shape.starts_with('#')))
        .map(|(shape, text)| (shape, text.replace('¦', "").replace("\\n", "\n")))
        .collect();
    let missed: Vec<&(&str, String)> =
        samples.iter().filter(|(_, text)| shapes.recognise(text).is_none()).collect();
    let ordinary: Vec<&str> = ORDINARY.lines().collect();
    let taken: Vec<(&str, &str)> =
        ordinary.iter().filter_map(|text| Some((shapes.recognise(text)?, *text))).collect();
    println!("{} of {} samples missed: {missed:#?}", missed.len(), samples.len());
    println!("{} of {} ordinary strings taken: {taken:#?}", taken.len(), ordinary.len());
    assert!(samples.len() >= 150 && missed.len() * 100 <= samples.len() * 5);
    assert!(ordinary.len() >= 2_000 && taken.len() * 100 <= ordinary.len());
}

#[test]
fn many_secrets_take_no_longer_than_their_text() {
    let one = format!("{}{} ", "ghp_", "x7Kq2Lm9Rt4Vw8Zb3Nc6Yd1Pf5Hs0Jg2Qk7T");
    let text = one.repeat(5_000);
    let shapes = SecretShapes::with([super::shapes()]);
    let clean = shapes.redact(&text);
    assert_eq!(clean.matches("[redacted]").count(), 5_000);
    let odd = "eyJ".repeat(100_000);
    assert_eq!(SecretShapes::builtin().redact(&odd), odd);
}
