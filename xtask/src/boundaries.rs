//! Checks the boundary rules: closed lists of dependencies.
//!
//! Uses the output of `cargo metadata` and the texts of the sources. A dependency that is not in
//! `boundaries.toml` is forbidden; an exception that matches nothing is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::finding::{Finding, finding};
use crate::packages::{self, Licences};
use crate::run::{metadata, repository};
use crate::source_texts::{Source, sources};
use crate::tables::{self, TABLES, names_path};
use crate::words::{self, WordRule};

/// The rules in `boundaries.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(rename = "crate")]
    pub crates: BTreeMap<String, CrateRule>,
    #[serde(default)]
    pub words: Vec<WordRule>,
    pub licences: Licences,
}

/// The rule of one crate.
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

const LAYERS: &str =
    "a crate may depend only on lower layers, so that each can be used without the rest";

/// Returns the workspace's packages by name, each with its direct dependencies except dev-dependencies.
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

/// Returns the names of all direct and indirect dependencies of a package, without dev-dependencies.
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

/// Finds all violations of the rules.
pub fn check(rules: &Rules, metadata: &Value, sources: &[Source]) -> Vec<Finding> {
    let mut findings = edges(rules, metadata);
    findings.extend(unused(metadata, sources));
    findings.extend(reserved(sources));
    findings.extend(words::check(&rules.words, sources));
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
                    "an unused permission hides the next one",
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

/// Finds error codes and event kinds that no code returns and that are not listed as reserved, and the
/// reverse.
fn reserved(sources: &[Source]) -> Vec<Finding> {
    let text = |file: &str| {
        let path = format!("{}{file}", tables::FOLDER);
        sources.iter().find(|source| source.path == path).map_or("", |source| &source.text)
    };
    let mut own: Vec<String> =
        TABLES.iter().map(|(file, _)| format!("{}{file}", tables::FOLDER)).collect();
    own.push(format!("{}{}", tables::FOLDER, tables::RESERVED));
    let code = sources.iter().filter(|source| source.is_code());
    let users: Vec<&str> =
        code.filter(|source| !own.contains(&source.path)).map(Source::without_tests).collect();
    let list = text(tables::RESERVED);
    let mut findings = Vec::new();
    for (table, kind) in TABLES {
        let rows = tables::rows(text(table));
        if rows.is_empty() && !list.is_empty() {
            let (reason, remedy) = ("its rows are checked", "name its file in xtask/src/tables.rs");
            findings.push(finding("empty table", kind.to_owned(), reason, remedy.to_owned()));
        }
        for name in rows.iter().map(|row| row.name) {
            let path = format!("{kind}::{name}");
            // A code also determines the kind of its event.
            let of_code = kind == "AuditEventKind"
                && text("code.rs").lines().any(|line| line.contains(&format!("Event::{name})")));
            let used = of_code || users.iter().any(|text| names_path(text, &path));
            let listed = names_path(list, &path);
            let (rule, remedy) = match (used, listed) {
                (false, false) => ("unused code or kind", "give it somewhere, or list it there"),
                (true, true) => ("reserved code or kind in use", "take it out of the list"),
                _ => continue,
            };
            let reason = "what is reserved is listed in crates/contracts/src/reserved.rs";
            findings.push(finding(rule, path, reason, remedy.to_owned()));
        }
    }
    findings
}

/// Returns the names that paths of a line begin or go on with: those before `::`, and that of `use NAME;`.
fn paths_of(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let before = line.match_indices("::").filter_map(move |(at, _)| {
        let head = line.get(..at)?;
        head.rsplit(move |c: char| !is_name(c)).next()
    });
    let used = line.trim_start().strip_prefix("use ");
    before.chain(
        used.into_iter().flat_map(move |rest| rest.split(move |c: char| !is_name(c)).take(1)),
    )
}

/// Finds dependencies that no line of their crate's code names in a path.
fn unused(metadata: &Value, sources: &[Source]) -> Vec<Finding> {
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let names = named.entry(&source.krate).or_default();
        let code = source.without_tests().lines();
        for line in code.filter(|line| !line.trim_start().starts_with("//")) {
            names.extend(paths_of(line));
        }
    }
    let mut findings = Vec::new();
    for (name, dependencies) in packages(metadata) {
        let Some(names) = named.get(name.as_str()) else { continue };
        let own = dependencies.iter().collect::<BTreeSet<_>>().into_iter();
        for dependency in own.filter(|own| !names.contains(own.replace('-', "_").as_str())) {
            findings.push(finding(
                "unused dependency",
                format!("{name} -> {dependency}"),
                "a dependency that the code does not name costs build time and trust",
                "take it out of the crate's Cargo.toml and of xtask/boundaries.toml".to_owned(),
            ));
        }
    }
    findings
}

pub fn rules() -> Result<Rules> {
    let path = repository().join("xtask/boundaries.toml");
    toml::from_str(&std::fs::read_to_string(&path)?).context("xtask/boundaries.toml")
}

pub fn run() -> Result<()> {
    let (rules, metadata) = (rules()?, metadata()?);
    let lock = std::fs::read_to_string(repository().join("Cargo.lock"))?;
    let mut findings = check(&rules, &metadata, &sources()?);
    findings.extend(packages::check(&rules.licences, &metadata, &lock)?);
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

    fn rules_of(text: &str) -> Rules {
        toml::from_str(&format!("{text}\n[licences]\nallowed = []\n")).unwrap()
    }

    fn found(rules: &str, metadata: &Value, text: &str) -> Vec<Finding> {
        let rules = rules_of(rules);
        let source = |path: &str, text: &str| Source {
            krate: "base".into(),
            path: path.into(),
            text: text.into(),
        };
        let uses = source("base/src/uses.rs", "use serde;\nuse rand::Rng;\nuse top;");
        check(&rules, metadata, &[source("base/src/lib.rs", text), uses])
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
        assert_eq!(finding.location, "base -> top");
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
    fn a_dependency_that_the_code_does_not_name_is_found() {
        let at = |text: &str| {
            let (krate, path) = ("base".into(), "base/src/lib.rs".into());
            let source = Source { krate, path, text: text.into() };
            unused(&metadata(&["serde"], &["base"]), &[source])
        };
        assert!(at("use serde::Serialize;").is_empty());
        for text in
            ["// use serde::Serialize;", "#[cfg(test)]\nmod tests { use serde; }", "let serde = 1;"]
        {
            assert_eq!(kinds(&at(text)), ["unused dependency"], "{text}");
        }
    }

    #[test]
    fn codes_and_kinds_are_given_or_reserved() {
        let source = |file: &str, text: &str| Source {
            krate: "toolbooth-contracts".into(),
            path: format!("crates/contracts/src/{file}"),
            text: text.into(),
        };
        let found = |reserved_list: &str, user: &str| {
            let code = source("code.rs", "    One \"one\" Denied 403 Some(Event::Third), \"s\";\n");
            let event = source("event_kind.rs", "    Second \"SECOND\";\n    Third \"THIRD\";\n");
            let all = [code, event, source("reserved.rs", reserved_list), source("a.rs", user)];
            let findings = reserved(&all);
            findings.iter().map(|f| format!("{}: {}", f.rule, f.location)).collect::<Vec<_>>()
        };
        let uses = "f(ErrorCode::One, AuditEventKind::Second)";
        assert!(found("", uses).is_empty());
        assert!(found("ErrorCode::One, AuditEventKind::Second", "").is_empty());
        let unused = ["unused code or kind: ErrorCode::One"];
        assert_eq!(found("AuditEventKind::Second", "ErrorCode::OneMore"), unused);
        let used = ["reserved code or kind in use: AuditEventKind::Second"];
        assert_eq!(found("AuditEventKind::Second", uses), used);
    }

    #[test]
    fn this_workspace_keeps_its_rules() {
        let findings =
            check(&super::rules().unwrap(), &crate::run::metadata().unwrap(), &sources().unwrap());
        let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}", told.join("\n\n"));
    }
}
