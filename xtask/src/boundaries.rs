//! The boundary rules: closed lists of who may depend on whom and who may name what.
//!
//! Pure functions over the output of `cargo metadata` and the texts of the sources. What is not
//! written in `boundaries.toml` is forbidden; an exception that matches nothing is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::run::{metadata, repository};

/// The rules, as they are written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(rename = "crate")]
    pub crates: BTreeMap<String, CrateRule>,
    #[serde(default)]
    pub words: Vec<WordRule>,
}

/// What one crate may do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrateRule {
    pub layer: u32,
    pub role: String,
    /// Workspace crates it may depend on.
    #[serde(default)]
    pub edges: Vec<String>,
    /// Third-party packages, each with the reason.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
    /// Packages it must never reach, not even through others.
    #[serde(default)]
    pub never: Vec<String>,
}

/// Words that some crates may not name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordRule {
    pub name: String,
    pub words: Vec<String>,
    /// Crates in which the words are forbidden.
    pub forbidden_in: Vec<String>,
    pub reason: String,
    pub remedy: String,
    #[serde(default)]
    pub exceptions: Vec<Exception>,
}

/// A place where a word is allowed all the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// A part of the file's path.
    pub file: String,
    pub word: String,
    pub reason: String,
}

/// A letter to the person who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: String,
    pub place: String,
    pub reason: String,
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.rule, self.place)?;
        writeln!(f, "  why:     {}", self.reason)?;
        write!(f, "  instead: {}", self.remedy)
    }
}

/// A source file.
#[derive(Debug, Clone)]
pub struct Source {
    pub krate: String,
    pub path: String,
    pub text: String,
}

const LAYERS: &str =
    "a crate may lean only on what lies below it, or the house cannot be taken apart";

fn finding(rule: &str, place: String, reason: &str, remedy: String) -> Finding {
    Finding { rule: rule.to_owned(), place, reason: reason.to_owned(), remedy }
}

/// The workspace's packages by name, each with its direct dependencies that are not for tests.
fn packages(metadata: &Value) -> BTreeMap<String, Vec<String>> {
    let members: BTreeSet<&str> = metadata["workspace_members"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|package| package["id"].as_str().is_some_and(|id| members.contains(id)))
        .map(|package| {
            let dependencies = package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
                .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
                .collect();
            (package["name"].as_str().unwrap_or_default().to_owned(), dependencies)
        })
        .collect()
}

/// Everything that a package reaches without dev-dependencies, by name.
fn reached(metadata: &Value, package: &str) -> BTreeSet<String> {
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let nodes: BTreeMap<&str, Vec<&str>> = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| {
            let deps = node["deps"]
                .as_array()?
                .iter()
                .filter(|dep| {
                    dep["dep_kinds"].as_array().is_none_or(|kinds| {
                        kinds.iter().any(|kind| kind["kind"].as_str() != Some("dev"))
                    })
                })
                .filter_map(|dep| dep["pkg"].as_str())
                .collect();
            Some((node["id"].as_str()?, deps))
        })
        .collect();
    let mut open: Vec<&str> =
        names.iter().filter(|(_, name)| **name == package).map(|(id, _)| *id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(nodes.get(id).into_iter().flatten());
        }
    }
    seen.into_iter().filter_map(|id| names.get(id)).map(|name| (*name).to_owned()).collect()
}

/// Everything that breaks a rule.
pub fn check(rules: &Rules, metadata: &Value, sources: &[Source]) -> Vec<Finding> {
    let mut findings = edges(rules, metadata);
    findings.extend(words(rules, sources));
    findings
}

fn edges(rules: &Rules, metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let packages = packages(metadata);
    for (name, dependencies) in &packages {
        let Some(rule) = rules.crates.get(name) else {
            findings.push(finding(
                "unknown crate",
                name.clone(),
                "every crate has a layer and a role",
                format!("describe it as [crate.{name}] in xtask/boundaries.toml"),
            ));
            continue;
        };
        for dependency in dependencies {
            let inside = packages.contains_key(dependency);
            let allowed = rule.edges.contains(dependency) || rule.packages.contains_key(dependency);
            if allowed {
                continue;
            }
            let remedy = if inside {
                format!(
                    "take what you need from a crate that `{name}` may use ({}), or move it down",
                    rule.edges.join(", ")
                )
            } else {
                format!("do without it, or write its reason under [crate.{name}.packages]")
            };
            let (what, reason) = if inside {
                ("forbidden edge", LAYERS)
            } else {
                ("unlisted package", "each package is a decision, with its reason written down")
            };
            findings.push(finding(what, format!("{name} -> {dependency}"), reason, remedy));
        }
        for edge in &rule.edges {
            let below = rules.crates.get(edge).is_some_and(|other| other.layer < rule.layer);
            if !below {
                findings.push(finding(
                    "edge upwards",
                    format!("{name} -> {edge}"),
                    LAYERS,
                    "change the layers, with a decision record".to_owned(),
                ));
            }
        }
        for listed in rule.packages.keys().chain(&rule.edges) {
            if !dependencies.contains(listed) {
                findings.push(finding(
                    "unused permission",
                    format!("{name} -> {listed}"),
                    "a permission that nobody uses hides the next one",
                    "take the line out of xtask/boundaries.toml".to_owned(),
                ));
            }
        }
        let reached = if rule.never.is_empty() { BTreeSet::new() } else { reached(metadata, name) };
        for never in rule.never.iter().filter(|never| reached.contains(*never)) {
            findings.push(finding(
                "forbidden package reached",
                format!("{name} -> … -> {never}"),
                "this crate must stay usable without it",
                format!("find the way with `cargo tree -p {name} -i {never}` and cut it"),
            ));
        }
    }
    for name in rules.crates.keys().filter(|name| !packages.contains_key(*name)) {
        findings.push(finding(
            "rule without a crate",
            name.clone(),
            "a rule that matches nothing hides the next one",
            "take it out of xtask/boundaries.toml".to_owned(),
        ));
    }
    findings
}

fn words(rules: &Rules, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in &rules.words {
        let mut used = vec![false; rule.exceptions.len()];
        for source in sources.iter().filter(|source| rule.forbidden_in.contains(&source.krate)) {
            for (number, line) in without_tests(&source.text).lines().enumerate() {
                for word in rule.words.iter().filter(|word| names(line, word)) {
                    let exception = rule.exceptions.iter().position(|exception| {
                        source.path.contains(&exception.file) && exception.word == *word
                    });
                    match exception {
                        Some(at) => used[at] = true,
                        None => findings.push(finding(
                            &format!("forbidden word `{word}` ({})", rule.name),
                            format!("{}:{}", source.path, number + 1),
                            &rule.reason,
                            rule.remedy.clone(),
                        )),
                    }
                }
            }
        }
        for (exception, used) in rule.exceptions.iter().zip(used) {
            if !used || exception.reason.trim().is_empty() {
                findings.push(finding(
                    "exception without use or reason",
                    format!("{} in {}", exception.word, exception.file),
                    "an exception that matches nothing hides the next one",
                    "take it out of xtask/boundaries.toml, or give its reason".to_owned(),
                ));
            }
        }
    }
    findings
}

/// The part of a file that is not its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

/// Whether a line names a word: as it is where the word has punctuation, else as a whole word in
/// any case.
fn names(line: &str, word: &str) -> bool {
    if word.chars().any(|c| !c.is_alphanumeric()) {
        return line.contains(word);
    }
    line.to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .any(|part| part == word.to_lowercase())
}

pub fn rules() -> Result<Rules> {
    let path = repository().join("xtask/boundaries.toml");
    toml::from_str(&std::fs::read_to_string(&path)?).context("xtask/boundaries.toml")
}

/// The sources of the crates.
pub fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(repository().join("crates"))? {
        let folder = entry?.path();
        let manifest: toml::Table =
            toml::from_str(&std::fs::read_to_string(folder.join("Cargo.toml"))?)?;
        let name = manifest["package"]["name"].as_str().context("a package has a name")?.to_owned();
        for path in crate::docs_map::rust_files(&folder.join("src"))? {
            let text = std::fs::read_to_string(&path)?;
            let path = path.strip_prefix(repository())?.display().to_string();
            sources.push(Source { krate: name.clone(), path, text });
        }
    }
    Ok(sources)
}

pub fn run() -> Result<()> {
    let findings = check(&rules()?, &metadata()?, &sources()?);
    if findings.is_empty() {
        println!("boundaries: everything is where it belongs");
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}\n");
    }
    bail!("boundaries: {} finding(s)", findings.len())
}

pub fn explain(name: &str, dependency: Option<&str>) -> Result<()> {
    let rules = rules()?;
    let full = format!("toolbooth-{name}");
    let (name, rule) = rules
        .crates
        .get_key_value(name)
        .or_else(|| rules.crates.get_key_value(&full))
        .with_context(|| {
            format!(
                "there is no crate `{name}`; there are: {}",
                rules.crates.keys().cloned().collect::<Vec<_>>().join(", ")
            )
        })?;
    if let Some(dependency) = dependency {
        let full = format!("toolbooth-{dependency}");
        let reason = rule.packages.get(dependency);
        match reason {
            Some(reason) => println!("{name} uses {dependency}: {reason}"),
            None if rule.edges.iter().any(|edge| edge == dependency || *edge == full) => {
                println!(
                    "{name} (layer {}) leans on {dependency}, which lies below it",
                    rule.layer
                );
            }
            None => bail!("{name} may not use {dependency}; {LAYERS}"),
        }
        return Ok(());
    }
    println!("{name}, layer {}: {}", rule.layer, rule.role);
    println!("  may lean on: {}", rule.edges.join(", "));
    for (package, reason) in &rule.packages {
        println!("  uses {package}: {reason}");
    }
    for word in rules.words.iter().filter(|word| word.forbidden_in.contains(name)) {
        println!("  may not name {} ({}): {}", word.name, word.words.join(", "), word.reason);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = r#"
[crate.base]
layer = 0
role = "words"
packages = { serde = "data" }
never = ["tokio"]
[crate.top]
layer = 1
role = "doors"
edges = ["base"]
[[words]]
name = "providers"
words = ["gemini"]
forbidden_in = ["base"]
reason = "neutral"
remedy = "move it to adapters"
"#;

    fn metadata(base: &[&str], top: &[&str]) -> Value {
        let package = |name: &str, dependencies: &[&str]| {
            let dependencies: Vec<Value> =
                dependencies.iter().map(|name| json!({"name": name, "kind": null})).collect();
            json!({"id": name, "name": name, "dependencies": dependencies})
        };
        let node = |name: &str, dependencies: &[&str]| {
            let deps: Vec<Value> = dependencies
                .iter()
                .map(|name| json!({"pkg": name, "dep_kinds": [{"kind": null}]}))
                .collect();
            json!({"id": name, "deps": deps})
        };
        json!({
            "workspace_members": ["base", "top"],
            "packages": [package("base", base), package("top", top), package("serde", &[]), package("tokio", &[])],
            "resolve": {"nodes": [node("base", base), node("top", top), node("serde", &["tokio"]), node("tokio", &[])]}
        })
    }

    fn found(rules: &str, metadata: &Value, text: &str) -> Vec<Finding> {
        let rules: Rules = toml::from_str(rules).unwrap();
        let source =
            Source { krate: "base".into(), path: "base/src/lib.rs".into(), text: text.into() };
        check(&rules, metadata, &[source])
    }

    fn kinds(findings: &[Finding]) -> Vec<&str> {
        assert!(
            findings.iter().all(|f| !f.reason.is_empty() && !f.remedy.is_empty()),
            "{findings:?}"
        );
        findings.iter().map(|finding| finding.rule.as_str()).collect()
    }

    #[test]
    fn a_broken_edge_is_found_with_reason_and_remedy() {
        let findings = found(RULES, &metadata(&["top"], &["base"]), "");
        assert!(kinds(&findings).contains(&"forbidden edge"), "{findings:?}");
        let finding = findings.iter().find(|f| f.rule == "forbidden edge").unwrap();
        assert_eq!(finding.place, "base -> top");
    }

    #[test]
    fn packages_need_a_reason_and_must_be_used() {
        assert_eq!(
            kinds(&found(RULES, &metadata(&["serde", "rand"], &["base"]), "")),
            ["unlisted package", "forbidden package reached"]
        );
        assert!(kinds(&found(RULES, &metadata(&[], &["base"]), "")).contains(&"unused permission"));
    }

    #[test]
    fn a_provider_named_in_a_neutral_crate_is_found() {
        let rules = RULES.replace("never = [\"tokio\"]", "");
        let at = |text: &str| found(&rules, &metadata(&["serde"], &["base"]), text);
        assert_eq!(
            kinds(&at("let x = 1;\n// for Gemini\n")),
            ["forbidden word `gemini` (providers)"]
        );
        assert_eq!(at("\n// Gemini")[0].place, "base/src/lib.rs:2");
        assert!(at("// geminis").is_empty());
        assert!(at("#[cfg(test)]\nmod tests { /* gemini */ }").is_empty());
    }

    #[test]
    fn an_exception_that_matches_nothing_is_found() {
        let rules = format!(
            "{}\n[[words.exceptions]]\nfile = \"lib.rs\"\nword = \"gemini\"\nreason = \"r\"\n",
            RULES.replace("never = [\"tokio\"]", "")
        );
        assert!(found(&rules, &metadata(&["serde"], &["base"]), "// gemini").is_empty());
        assert_eq!(
            kinds(&found(&rules, &metadata(&["serde"], &["base"]), "")),
            ["exception without use or reason"]
        );
    }

    #[test]
    fn this_workspace_keeps_its_rules() {
        let findings =
            check(&super::rules().unwrap(), &crate::run::metadata().unwrap(), &sources().unwrap());
        let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}", told.join("\n\n"));
    }
}
