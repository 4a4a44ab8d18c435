//! Checks the files of each package: all are compiled, dependency cycles are known; also counts lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::run::{repository, rust_files};

/// The list of known cycles, by the files in each.
const CIRCLES: &str = "xtask/circles.toml";

/// The modules of a package, by their paths.
type Modules = BTreeMap<Vec<String>, PathBuf>;

/// The names that each module imports from its package, with their paths.
type Imports<'m> = BTreeMap<&'m Vec<String>, BTreeMap<String, Vec<String>>>;

/// Checks that every file is compiled and that no cycle is new, and prints the numbers of lines.
pub fn run() -> Result<()> {
    let mut problems = Vec::new();
    let mut circles = Vec::new();
    for package in packages()? {
        let source = package.join("src");
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let mut modules = Modules::new();
        for root in root.iter().filter(|root| root.is_file()) {
            load(Vec::new(), root, &mut modules)?;
            circles.extend(strongly_connected(&edges(&modules)?));
        }
        let known: BTreeSet<&PathBuf> = modules.values().collect();
        let roots = source.join("bin");
        for file in rust_files(&source)? {
            if !known.contains(&file) && !file.starts_with(&roots) && !root.contains(&file) {
                problems
                    .push(format!("{}: no `mod` names it, so it is not compiled", shown(&file)));
            }
        }
    }
    problems.extend(unknown(&circles)?);
    problems.iter().for_each(|problem| println!("{problem}"));
    ensure!(problems.is_empty(), "{} rule(s) about source files are broken", problems.len());
    lines()
}

/// Returns the folders with a manifest and sources.
fn packages() -> Result<Vec<PathBuf>> {
    let root = repository();
    let mut found = vec![root.join("xtask"), root.join("tests"), root.join("fuzz")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

fn shown(file: &Path) -> String {
    file.strip_prefix(repository()).unwrap_or(file).display().to_string()
}

/// Returns the code of a file, without comments, texts and tests.
fn code(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| shown(file))?;
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        let line = line.split_once("//").map_or(line, |(code, _)| code);
        let pieces = line.split('"').step_by(2);
        out.push_str(&pieces.collect::<Vec<_>>().join("\"\""));
        out.push('\n');
    }
    Ok(out)
}

/// Follows the `mod` lines of a file, tests included.
fn load(path: Vec<String>, file: &Path, modules: &mut Modules) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| shown(file))?;
    let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    let folder = match name {
        "mod" | "lib" | "main" => folder.to_owned(),
        name => folder.join(name),
    };
    modules.insert(path.clone(), file.to_owned());
    for line in text.lines() {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.trim_start_matches(|c| c != ' ').trim_start(),
            None => line,
        };
        let Some(child) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) else {
            continue;
        };
        let candidates = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
        if let Some(file) = candidates.iter().find(|candidate| candidate.is_file()) {
            let mut inner = path.clone();
            inner.push(child.to_owned());
            load(inner, file, modules)?;
        }
    }
    Ok(())
}

/// Returns the references between files. References of a module to its parent modules are omitted, because a
/// part can depend on the whole; a name that a parent imports from another module is a reference to that module.
fn edges(modules: &Modules) -> Result<BTreeMap<PathBuf, BTreeSet<PathBuf>>> {
    let mut texts = BTreeMap::new();
    for (module, file) in modules {
        texts.insert(module, code(file)?);
    }
    Ok(references(modules, &texts))
}

/// As [`edges`], from the code of each module.
fn references(
    modules: &Modules,
    texts: &BTreeMap<&Vec<String>, String>,
) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let imports = texts.iter().map(|(module, code)| (*module, imported(module, code, modules)));
    let imports: Imports = imports.collect();
    let mut edges = BTreeMap::new();
    for (module, file) in modules {
        let code = texts.get(module).map_or("", String::as_str);
        let named = paths(code).into_iter().filter_map(|path| absolute(module, &path));
        let named = named.filter_map(|path| defining(path, modules, &imports));
        // A module can refer to its own submodules.
        let named = named.filter(|(of, _)| {
            !module.starts_with(of) && (!of.starts_with(module) || module.is_empty())
        });
        edges.insert(file.clone(), named.map(|(_, target)| target.clone()).collect());
    }
    edges
}

/// Returns a path from the root of the package, or `None` if it belongs to another package.
fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let after = |skipped: usize| path.get(skipped..).unwrap_or_default();
    match path.first()?.as_str() {
        "crate" => Some(after(1).to_vec()),
        "self" => Some([module, after(1)].concat()),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            let above = module.get(..module.len().saturating_sub(up)).unwrap_or_default();
            Some([above, after(up)].concat())
        }
        _ => None,
    }
}

/// Returns the names that a module imports from the package, with their paths.
fn imported(module: &[String], code: &str, modules: &Modules) -> BTreeMap<String, Vec<String>> {
    let mut names = BTreeMap::new();
    for (at, _) in code.match_indices("use ") {
        let before = code.get(..at).and_then(|text| text.chars().next_back());
        if before.is_some_and(|c| !c.is_whitespace()) {
            continue;
        }
        let mut found = Vec::new();
        written_out(&mut code.get(at + 4..).unwrap_or_default(), &[], &mut found);
        for (path, renamed) in found {
            let child = [module, path.get(..1).unwrap_or_default()].concat();
            let path = match absolute(module, &path) {
                Some(path) => path,
                None if modules.contains_key(&child) => [module, &path].concat(),
                None => continue,
            };
            if let Some(name) = renamed.or_else(|| path.last().cloned()) {
                names.insert(name, path);
            }
        }
    }
    names
}

/// Returns the module that defines the item of a path: the longest prefix that is a module, after imports are
/// followed.
fn defining<'m>(
    mut path: Vec<String>,
    modules: &'m Modules,
    imports: &Imports,
) -> Option<(&'m Vec<String>, &'m PathBuf)> {
    // Imports of imports are followed; more than this is a chain that does not end.
    for _ in 0..8 {
        let (module, file) =
            (0..=path.len()).rev().find_map(|length| modules.get_key_value(path.get(..length)?))?;
        let name = path.get(module.len());
        let import = name.and_then(|name| imports.get(module)?.get(name));
        match import.filter(|import| **import != path) {
            Some(import) => {
                path = [import, path.get(module.len() + 1..).unwrap_or_default()].concat();
            }
            None => return Some((module, file)),
        }
    }
    None
}

/// Returns the paths that begin with `crate`, `self` or `super`, with braces expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code.get(..at).and_then(|text| text.chars().next_back());
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
                continue;
            }
            written_out(&mut code.get(at..).unwrap_or_default(), &[], &mut found);
        }
    }
    found.into_iter().map(|(path, _)| path).collect()
}

/// Reads a path, and the paths in its braces, each with the other name that `as` gives it.
fn written_out(text: &mut &str, before: &[String], found: &mut Vec<(Vec<String>, Option<String>)>) {
    let mut path = before.to_vec();
    loop {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if !name.is_empty() {
            path.push(name.to_owned());
        }
        *text = rest;
        match rest.strip_prefix("::") {
            Some(rest) => *text = rest,
            None => break,
        }
        if let Some(rest) = text.strip_prefix('{') {
            *text = rest;
            while !text.is_empty() {
                *text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if let Some(rest) = text.strip_prefix('}') {
                    *text = rest;
                    return;
                }
                let length = text.len();
                written_out(text, &path, found);
                // This skips `as other`, and other text that is not a path.
                *text = text.trim_start_matches(|c: char| !matches!(c, ',' | '}'));
                if text.len() == length {
                    return;
                }
            }
            return;
        }
    }
    let renamed = text.trim_start().strip_prefix("as ").map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default().to_owned()
    });
    found.push((path, renamed));
}

/// Returns the sets of several files in which every file reaches every other.
fn strongly_connected(edges: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &PathBuf| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for to in edges.get(file).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let from: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        edges.keys().map(|file| (file, reached(file))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (file, to) in &from {
        if !to.contains(*file) {
            continue;
        }
        let back = |other: &&&PathBuf| from.get(**other).is_some_and(|to| to.contains(*file));
        let circle: BTreeSet<String> = to.iter().filter(back).map(|file| shown(file)).collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Returns an error for each cycle that differs from the list, which must only become shorter.
fn unknown(circles: &[BTreeSet<String>]) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        circle: Vec<Circle>,
    }
    #[derive(Deserialize)]
    struct Circle {
        files: BTreeSet<String>,
    }
    let text = std::fs::read_to_string(repository().join(CIRCLES)).context(CIRCLES)?;
    let list = toml::from_str::<List>(&text).context(CIRCLES)?;
    let known: Vec<BTreeSet<String>> = list.circle.into_iter().map(|one| one.files).collect();
    let told = |files: &BTreeSet<String>| files.iter().cloned().collect::<Vec<_>>().join(", ");
    let new = circles.iter().filter(|circle| !known.iter().any(|known| circle.is_subset(known)));
    let mut problems: Vec<String> =
        new.map(|circle| format!("these files name one another: {}", told(circle))).collect();
    let gone = known.iter().filter(|known| !circles.contains(known));
    problems.extend(gone.map(|known| {
        format!("{CIRCLES}: this is not a cycle any more; write the remaining one: {}", told(known))
    }));
    Ok(problems)
}

/// Files under `crates/*/src` that may have more than 400 lines.
const LONG_FILES_MAX: usize = 30;

/// Prints the lines of code and of tests.
///
/// # Errors
/// If more than [`LONG_FILES_MAX`] files of crates have more than 400 lines.
pub fn lines() -> Result<()> {
    let root = repository();
    let (mut code, mut tests, mut long) = (0, 0, 0);
    for folder in ["crates", "tests", "xtask", "fuzz", "examples"] {
        for file in rust_files(&root.join(folder))? {
            let text = std::fs::read_to_string(&file)?;
            let all = text.lines().count();
            let path = shown(&file);
            let is_test = path.starts_with("tests/")
                || ["/tests/", "/benches/"].iter().any(|part| path.contains(part))
                || path.ends_with("/tests.rs");
            let own = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
            let of_code = if is_test { 0 } else { own };
            (code, tests) = (code + of_code, tests + all - of_code);
            if path.starts_with("crates/") && path.contains("/src/") && all > 400 {
                long += 1;
            }
        }
    }
    println!("{code} lines of code, {tests} of tests; {long} files of crates over 400 lines");
    anyhow::ensure!(
        long <= LONG_FILES_MAX,
        "{long} files of crates have more than 400 lines, at most {LONG_FILES_MAX} may: split one by its subjects"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_out() {
        let code =
            "use crate::{a::{B, c::D as E}, f};\nlet x = super::g::h(self::i::J);\n$crate::k::L";
        let found: Vec<String> = paths(code).iter().map(|path| path.join("::")).collect();
        let expected = ["crate::a::B", "crate::a::c::D", "crate::f", "self::i::J", "super::g::h"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_name_that_a_parent_imports_leads_to_its_module() {
        let texts = [
            ("", "mod a;\nmod b;\nmod c;\npub use a::{One, Other as Renamed};\nuse serde::Value;"),
            ("a", "use super::Two;\npub struct One;\npub struct Other;"),
            ("b", "use crate::One;\npub use crate::c::Two;"),
            ("c", "use crate::{Renamed, Value};\npub struct Two;"),
            ("d", "use super::b::Two;"),
        ];
        let path = |name: &str| Vec::from_iter((!name.is_empty()).then(|| name.to_owned()));
        let modules: Modules =
            texts.iter().map(|(name, _)| (path(name), PathBuf::from(*name))).collect();
        let texts = modules.keys().zip(texts.map(|(_, text)| text.to_owned())).collect();
        let found = references(&modules, &texts);
        let of = |name: &str| found[Path::new(name)].iter().map(|file| file.to_str().unwrap());
        // The root does not import `Two`, so that it is a name of the root's own.
        assert_eq!(of("a").collect::<Vec<_>>(), [""; 0]);
        assert_eq!(of("b").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(of("c").collect::<Vec<_>>(), ["a"]);
        assert_eq!(of("d").collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn circles_are_found() {
        let file = |name: &str| repository().join(name);
        let of = |names: &[&str]| names.iter().map(|name| file(name)).collect::<BTreeSet<_>>();
        let edges = BTreeMap::from([
            (file("a"), of(&["b"])),
            (file("b"), of(&["c"])),
            (file("c"), of(&["a"])),
            (file("d"), of(&["a"])),
        ]);
        let circles = strongly_connected(&edges);
        assert_eq!(circles, [["a", "b", "c"].map(str::to_owned).into_iter().collect()]);
    }
}
