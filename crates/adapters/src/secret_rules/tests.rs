use toolbooth_contracts::secret::SecretShapes;

use super::*;

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
