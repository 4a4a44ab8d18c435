//! Generates `docs/map.md` from the sources, the rules and the reference, and checks their tags.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::boundaries::{self, Rules};
use crate::run::{metadata, repository, rust_files};
use crate::tables;

const STAGES: [(&str, &str); 10] = [
    ("receive", "a request from the wire, a caller from authentication"),
    ("enter", "call id, deadline, a slot, size"),
    ("resolve", "the tool in one world, and whether the caller may know it"),
    ("guard arguments", "final arguments"),
    ("authorize", "a permit"),
    ("claim", "the right to dispatch once, durable"),
    ("execute", "an outcome with its effect"),
    ("guard the result", "a screened result"),
    ("settle", "receipt, agent log and audit events, durable"),
    ("reply", "the answer on the wire"),
];

/// The header of a source file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    pub path: String,
    /// The first sentence of its first comment.
    pub sentence: String,
    /// The stages of the call path.
    pub stages: Vec<usize>,
    /// Sections of the reference, `FILE#ANCHOR`.
    pub sections: Vec<String>,
    pub is_test: bool,
}

/// Reads the header of a file.
pub fn module(path: &str, text: &str, is_test: bool) -> Module {
    let head: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let first: Vec<&str> = head.iter().take_while(|line| !line.is_empty()).copied().collect();
    let joined = first.join(" ");
    let sentence = joined.split_inclusive(". ").next().unwrap_or_default().trim().to_owned();
    let tags = head.join(" ");
    let tag = |name: &str| -> Vec<String> {
        tags.split(name)
            .skip(1)
            .flat_map(|rest| {
                let end = rest.find(". ").unwrap_or(rest.len());
                let rest = rest.get(..end).unwrap_or_default().trim_end_matches('.');
                rest.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>()
            })
            .collect()
    };
    Module {
        path: path.to_owned(),
        sentence,
        stages: tag("Path:").iter().filter_map(|stage| stage.parse().ok()).collect(),
        sections: tag("Doc:").into_iter().filter(|section| section.contains(".md")).collect(),
        is_test,
    }
}

/// Returns the sections of a page of the reference: `FILE#ANCHOR` for each second-level heading.
pub fn sections(file: &str, text: &str) -> Vec<String> {
    let anchor = |heading: &str| -> String {
        heading
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' | '-' => Some('-'),
                c if c.is_alphanumeric() => Some(c),
                _ => None,
            })
            .collect()
    };
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    headings.map(|heading| format!("{file}#{}", anchor(heading))).collect()
}

/// Finds stages and sections that no file claims, and claims of sections that do not exist.
pub fn problems(modules: &[Module], sections: &[String], pages: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, (name, _)) in STAGES.iter().enumerate() {
        for (tests, what) in [(false, "module"), (true, "test")] {
            let claimed = modules
                .iter()
                .any(|module| module.is_test == tests && module.stages.contains(&(at + 1)));
            if !claimed {
                problems.push(format!(
                    "stage {} ({name}) is claimed by no {what}: write `Path: {}.`",
                    at + 1,
                    at + 1
                ));
            }
        }
    }
    let claimed: BTreeSet<&str> =
        modules.iter().flat_map(|module| module.sections.iter().map(String::as_str)).collect();
    for section in sections.iter().filter(|section| !claimed.contains(section.as_str())) {
        problems.push(format!(
            "docs/reference/{section} is claimed by no module and no test: write `Doc: {section}`"
        ));
    }
    for module in modules {
        for section in &module.sections {
            let page = pages.contains(section);
            if !page && !sections.contains(section) {
                problems.push(format!(
                    "{} names docs/reference/{section}, which is not there",
                    module.path
                ));
            }
        }
    }
    problems
}

struct Everything {
    rules: Rules,
    metadata: Value,
    modules: Vec<Module>,
    sections: Vec<String>,
    pages: Vec<String>,
}

fn read() -> Result<Everything> {
    let root = repository();
    let mut modules = Vec::new();
    let mut folders: Vec<(PathBuf, bool)> = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        folders.push((folder.join("src"), false));
        folders.push((folder.join("tests"), true));
    }
    folders.push((root.join("tests"), true));
    folders.sort();
    for (folder, is_test) in folders {
        for path in rust_files(&folder)? {
            let text = std::fs::read_to_string(&path)?;
            let path = path.strip_prefix(&root)?.display().to_string();
            modules.push(module(&path, &text, is_test || path.ends_with("tests.rs")));
        }
    }
    let (mut all, mut pages) = (Vec::new(), Vec::new());
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join("docs/reference"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.sort();
    for path in files {
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        all.extend(sections(&name, &std::fs::read_to_string(&path)?));
        pages.push(name);
    }
    Ok(Everything {
        rules: boundaries::rules()?,
        metadata: metadata()?,
        modules,
        sections: all,
        pages,
    })
}

fn first_heading(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    Ok(heading.with_context(|| format!("{} has no heading", path.display()))?.to_owned())
}

fn pages_of(folder: &str) -> Result<Vec<(String, String)>> {
    let root = repository().join("docs").join(folder);
    let mut found = Vec::new();
    if root.is_dir() {
        for entry in std::fs::read_dir(&root)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
                found.push((format!("{folder}/{name}"), first_heading(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn render(all: &Everything) -> Result<String> {
    let mut out = String::from(
        "# Map\n\nGenerated by `cargo xtask docs-map`; edit the sources, not this page.\n\n## I want to …\n\n",
    );
    for (link, title) in pages_of("guides")?.into_iter().chain(pages_of("reference")?) {
        writeln!(out, "- [{title}]({link})")?;
    }
    out.push_str("\n## The path of one call\n\n| stage | gives | modules | shown by |\n| --- | --- | --- | --- |\n");
    for (at, (name, gives)) in STAGES.iter().enumerate() {
        let of = |tests: bool| -> String {
            let paths = all
                .modules
                .iter()
                .filter(|module| module.is_test == tests && module.stages.contains(&(at + 1)));
            paths.map(|module| format!("`{}`", module.path)).collect::<Vec<_>>().join(" ")
        };
        writeln!(out, "| {} {name} | {gives} | {} | {} |", at + 1, of(false), of(true))?;
    }
    out.push_str("\n## Crates\n\n| crate | layer | role | leans on | packages, with reasons | tests |\n| --- | --: | --- | --- | --- | --- |\n");
    for (name, rule) in &all.rules.crates {
        let packages: Vec<String> =
            rule.packages.iter().map(|(package, reason)| format!("{package} ({reason})")).collect();
        writeln!(
            out,
            "| {name} | {} | {} | {} | {} | `cargo test -p {name}` |",
            rule.layer,
            rule.role,
            rule.edges.join(", "),
            packages.join("; ")
        )?;
    }
    out.push_str("\n## Modules\n\n");
    for module in all.modules.iter().filter(|module| !module.is_test && !module.sentence.is_empty())
    {
        writeln!(out, "- `{}`: {}", module.path, module.sentence)?;
    }
    out.push_str("\n## Ports\n\n");
    for module in &all.modules {
        let text = std::fs::read_to_string(repository().join(&module.path))?;
        let mut doc = "";
        for line in text.lines() {
            let trimmed = line.trim();
            if let Some(name) = line.strip_prefix("pub trait ")
                && !module.is_test
            {
                let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
                writeln!(out, "- `{name}` (`{}`): {doc}", module.path)?;
            }
            match trimmed.strip_prefix("/// ") {
                Some(first) if doc.is_empty() => doc = first,
                Some(_) => (),
                None if trimmed.starts_with("///") || trimmed.starts_with("#[") => (),
                None => doc = "",
            }
        }
    }
    out.push_str(
        "\n## Error codes\n\n| code | status | HTTP | audit event |\n| --- | --- | --: | --- |\n",
    );
    let codes =
        std::fs::read_to_string(repository().join("crates/contracts/golden/error-codes.txt"))?;
    for line in codes.lines() {
        writeln!(
            out,
            "| {} |",
            line.split(' ').map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" | ")
        )?;
    }
    events_and_reserved(&mut out)?;
    out.push_str("\n## Decisions\n\n");
    for (link, title) in pages_of("decisions")? {
        writeln!(out, "- [{title}]({link})")?;
    }
    out.push_str("\n## The graph as it is\n\n```mermaid\ngraph TD\n");
    let mut graph: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in all.metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        if all.rules.crates.contains_key(name) {
            let edges = package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"));
            let names = edges
                .filter_map(|edge| edge["name"].as_str())
                .filter(|edge| all.rules.crates.contains_key(*edge));
            graph.insert(name.to_owned(), names.map(str::to_owned).collect());
        }
    }
    for (name, edges) in graph {
        let edges: BTreeSet<String> = edges.into_iter().collect();
        for edge in edges {
            writeln!(out, "  {name} --> {edge}")?;
        }
    }
    out.push_str("```\n");
    Ok(out)
}

/// Whether the existing map differs from the current one.
pub fn stale(there: &str, current: &str) -> bool {
    there != current
}

pub fn run(check: bool) -> Result<()> {
    let all = read()?;
    let problems = problems(&all.modules, &all.sections, &all.pages);
    let map = render(&all)?;
    let path = repository().join("docs/map.md");
    if !check {
        std::fs::write(&path, map)?;
        println!("wrote docs/map.md");
    } else if stale(&std::fs::read_to_string(&path).unwrap_or_default(), &map) {
        bail!(
            "docs/map.md is stale\n  why:     readers trust it\n  instead: run `cargo xtask docs-map` and commit what it writes"
        );
    }
    if !problems.is_empty() {
        bail!("the map has gaps:\n  {}", problems.join("\n  "));
    }
    Ok(())
}

/// Returns a table of `contracts` and the list of its reserved rows, as texts.
fn table_and_reserved(file: &str) -> Result<(String, String)> {
    let folder = repository().join(tables::FOLDER);
    Ok((
        std::fs::read_to_string(folder.join(file))?,
        std::fs::read_to_string(folder.join(tables::RESERVED))?,
    ))
}

/// Writes the kinds of audit events of this version with their meaning, and the reserved kinds.
fn events_and_reserved(out: &mut String) -> Result<()> {
    let mut reserved = Vec::new();
    out.push_str("\n## Audit events\n\n| kind | meaning |\n| --- | --- |\n");
    for (file, kind) in tables::TABLES {
        let (table, list) = table_and_reserved(file)?;
        for row in tables::rows(&table) {
            if tables::names_path(&list, &format!("{kind}::{}", row.name)) {
                reserved.push(format!("`{}`", row.written));
            } else if kind == "AuditEventKind" {
                writeln!(out, "| `{}` | {} |", row.written, row.meaning)?;
            }
        }
    }
    if !reserved.is_empty() {
        let reserved = reserved.join(", ");
        writeln!(out, "\nReserved, and given by no part of this version: {reserved}.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_sentences_are_read() {
        let text =
            "//! Does a thing. And more.\n//!\n//! Path: 2, 6. Doc: records.md#stores\n\nuse x;\n";
        let read = module("a.rs", text, false);
        assert_eq!(read.sentence, "Does a thing.");
        assert_eq!(
            (read.stages, read.sections),
            (vec![2, 6], vec!["records.md#stores".to_owned()])
        );
    }

    #[test]
    fn unclaimed_stages_and_sections_are_found() {
        let all = |is_test| Module { stages: (1..=10).collect(), is_test, ..Module::default() };
        let known = sections("a.md", "# A\n\n## The file\n\n## Other\n");
        assert_eq!(known, ["a.md#the-file", "a.md#other"]);
        let claiming = Module { sections: known.clone(), ..all(false) };
        assert!(problems(&[claiming.clone(), all(true)], &known, &[]).is_empty());
        let without_test = problems(std::slice::from_ref(&claiming), &known, &[]);
        assert_eq!(without_test.len(), 10, "{without_test:?}");
        let gap = problems(&[all(false), all(true)], &known, &[]);
        assert_eq!(gap.len(), 2, "{gap:?}");
        let stranger = Module { sections: vec!["none.md#x".into()], ..all(true) };
        assert_eq!(problems(&[claiming, stranger], &known, &[]).len(), 1);
    }
}
