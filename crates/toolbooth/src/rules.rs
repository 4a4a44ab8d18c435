//! The rules of `[policy] rules`: their files, findings about them, and the detection of changes.
//!
//! Doc: policy.md#rules, configuration.md#policy

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::id::near_miss;
use toolbooth_policy::rules::{
    HistoryWindow, HistoryWindows, RULE_FILE_BYTES_MAX, RuleFile, RuleSet,
};
use toolbooth_policy::{RuleFinding, RuleFit, RuleSeverity, SettingError};

use crate::config::Loaded;
use crate::failure::{Failure, USAGE};
use crate::files::{self, Stamp, stamp};
use crate::times::duration;

/// Maximum number of files in a folder of rules.
const FILES_MAX: usize = 1_000;
/// The ending of files of rules, and of the files of their cases.
const ENDING: &str = "cedar";
const CASES_ENDING: &str = "cases.toml";
/// Findings that are shown of a set that is refused.
const SHOWN_MAX: usize = 20;

/// Returns the files of rules: the configured one, or all of the configured folder, in the order of their
/// names.
fn paths(loaded: &Loaded) -> Result<Vec<PathBuf>, Failure> {
    match &loaded.config.policy.rules {
        None => Ok(Vec::new()),
        Some(rules) => files_of(loaded.path(rules), "policy.rules"),
    }
}

/// Returns a file of rules, or all of a folder, in the order of their names. `place` names them in errors.
fn files_of(root: PathBuf, setting: &str) -> Result<Vec<PathBuf>, Failure> {
    let wrong = |message: String| {
        Failure::configuration(message)
            .at(setting.to_owned())
            .hint("name a file in the Cedar language, or a folder of files `NAME.cedar`")
    };
    let unreadable =
        |error: std::io::Error| wrong(format!("`{}` cannot be read: {error}", root.display()));
    if !std::fs::metadata(&root).map_err(unreadable)?.is_dir() {
        return Ok(vec![root]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&root).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            found.push(path);
        } else if is_meant(&path) {
            let path = path.display();
            return Err(wrong(format!(
                "`{path}` would not be read as rules, or as cases of rules"
            )));
        }
        if found.len() > FILES_MAX {
            let root = root.display();
            return Err(wrong(format!("`{root}` has more than {FILES_MAX} files of rules")));
        }
    }
    found.sort();
    Ok(found)
}

/// Endings of texts that were replaced or switched off.
const KEPT: [&str; 6] = ["bak", "disabled", "off", "old", "orig", "rej"];

/// Whether a file without the ending of rule files looks like a rule file, or contains cases of missing rules.
/// Ignoring such a file would drop its rules or checks silently.
fn is_meant(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_rules = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING);
    if path.is_dir() {
        let inner = std::fs::read_dir(path).into_iter().flatten().flatten();
        return !name.starts_with('.')
            && inner.take(FILES_MAX).any(|entry| is_rules(&entry.path()));
    }
    if let Some(stem) = name.strip_suffix(CASES_ENDING).and_then(|stem| stem.strip_suffix('.')) {
        return !path.with_file_name(format!("{stem}.{ENDING}")).is_file();
    }
    // Editors and merges keep earlier and unsaved texts under such names.
    let last = path.extension().map(|ending| ending.to_string_lossy()).unwrap_or_default();
    let is_kept_text =
        name.starts_with(['.', '#']) || name.ends_with('~') || KEPT.contains(&&*last);
    let is_ending =
        |part: &str| part.eq_ignore_ascii_case(ENDING) || near_miss(part, ENDING) || part == "ced";
    name.ends_with(".case.toml") || (!is_kept_text && name.split('.').skip(1).any(is_ending))
}

/// Returns the file of cases beside a file of rules.
fn cases_of(rules: &Path) -> PathBuf {
    rules.with_extension(CASES_ENDING)
}

/// Returns the paths that hold the configured rules and their cases.
pub(crate) fn own_paths(loaded: &Loaded) -> Vec<PathBuf> {
    let Some(rules) = &loaded.config.policy.rules else { return Vec::new() };
    let root = loaded.path(rules);
    match root.is_dir() {
        true => vec![root],
        false => vec![cases_of(&root), root],
    }
}

/// Reads the configured rules; `None` without.
///
/// # Errors
/// [`Failure`], if a file cannot be read, or a rule or a case in it is not valid.
pub(crate) fn read(loaded: &Loaded) -> Result<Option<Arc<RuleSet>>, Failure> {
    if loaded.config.policy.rules.is_none() {
        return Ok(None);
    }
    set_of(loaded, paths(loaded)?).map(Some)
}

/// Reads other rules than the configured ones, a file or a folder that an argument names. They can read the
/// configured windows.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_at(
    loaded: &Loaded,
    root: &Path,
    argument: &str,
) -> Result<Arc<RuleSet>, Failure> {
    // Its files have the names that they have as those of the configuration.
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    set_of(loaded, files_of(root, argument)?)
}

fn set_of(loaded: &Loaded, paths: Vec<PathBuf>) -> Result<Arc<RuleSet>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let name = name(loaded, &path);
        let text = text(&path, &name)?;
        let cases = cases_of(&path);
        // A link to nothing is an error, and no missing file.
        let cases = match std::fs::symlink_metadata(&cases) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            _ => {
                let name = self::name(loaded, &cases);
                let text = self::text(&cases, &name)?;
                Some((name, text))
            }
        };
        all.push(RuleFile { name, text, cases });
    }
    RuleSet::read(&all, &windows(loaded)?).map_err(|findings| refused(&findings))
}

/// Returns the windows over earlier calls that rules can read.
fn windows(loaded: &Loaded) -> Result<HistoryWindows, Failure> {
    let setting = |name: &str| format!("policy.history.{name}");
    let mut windows = BTreeMap::new();
    for (name, declared) in &loaded.config.policy.history {
        let length = duration(&declared.window).ok_or_else(|| {
            Failure::configuration(format!(
                "`{}` is not a duration",
                declared.window.escape_debug()
            ))
            .at(format!("{}.window", setting(name)))
            .hint("write how long a call counts, such as `90s`, `5m`, `1h`, `7d`")
        })?;
        let window = HistoryWindow {
            tool: declared.tool.clone(),
            length,
            sum: declared.sum.clone(),
            within: declared.within,
        };
        windows.insert(name.clone(), window);
    }
    HistoryWindows::new(windows).map_err(|error| {
        let at = match &error {
            SettingError::Window { window, .. } => setting(window),
            _ => "policy.history".to_owned(),
        };
        Failure::configuration(with_causes(&error)).at(at)
    })
}

/// Returns the name of a file in findings: relative to the configuration, where it is beneath.
fn name(loaded: &Loaded, path: &Path) -> String {
    path.strip_prefix(&loaded.folder).unwrap_or(path).display().to_string()
}

fn text(path: &Path, name: &str) -> Result<String, Failure> {
    let read = files::read_within(path, RULE_FILE_BYTES_MAX as u64);
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    text.map_err(|error| {
        Failure::configuration(format!("the file cannot be read: {error}")).at(name.to_owned())
    })
}

/// Checks that the rules fit the tools that are known, and that their cases hold.
///
/// # Errors
/// [`Failure`] with the findings.
pub(crate) fn check(fit: &RuleFit) -> Result<(), Failure> {
    match fit.findings.iter().any(|finding| finding.code.is_error()) {
        true => Err(refused(&fit.findings)),
        false => Ok(()),
    }
}

/// Returns the failure of a set that is refused.
fn refused(findings: &[RuleFinding]) -> Failure {
    let errors: Vec<&RuleFinding> =
        findings.iter().filter(|finding| finding.code.is_error()).collect();
    let Some((first, more)) = errors.split_first() else {
        return Failure::configuration("the rules are refused");
    };
    let mut message = about(first);
    for finding in more.iter().take(SHOWN_MAX) {
        message.push_str(&format!("\n{}: {}", finding.location, about(finding)));
    }
    if more.len() > SHOWN_MAX {
        message.push_str(&format!("\nand {} more", more.len() - SHOWN_MAX));
    }
    let failure = Failure::new(USAGE, first.code.as_str(), message).at(first.location.to_string());
    match &first.hint {
        Some(hint) => failure.hint(hint.clone()),
        None => failure,
    }
}

/// Returns the sentence of a finding, with the tool that it is about.
pub(crate) fn about(finding: &RuleFinding) -> String {
    match &finding.tool {
        Some(tool) => format!("{} (tool `{tool}`)", finding.message),
        None => finding.message.clone(),
    }
}

/// Prints the warnings.
pub(crate) fn report_warnings(fit: &RuleFit) {
    let is_warning = |finding: &&RuleFinding| finding.code.severity() == RuleSeverity::Warning;
    for finding in fit.findings.iter().filter(is_warning) {
        let hint = finding.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        let (code, location) = (finding.code.as_str(), &finding.location);
        crate::notice(&format!("warning: {location}: {} ({code}){hint}", about(finding)));
    }
}

/// Returns the stamps of the files, to see whether they have changed.
pub(crate) fn stamps(loaded: &Loaded) -> Vec<(PathBuf, Stamp)> {
    let paths = paths(loaded).unwrap_or_default();
    let cases: Vec<PathBuf> = paths.iter().map(|path| cases_of(path)).collect();
    paths.into_iter().chain(cases).map(|path| (path.clone(), stamp(&path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_seem_to_be_meant_are_refused_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("more")).unwrap();
        for name in [
            "a.cedar",
            "a.cases.toml",
            "a.b.cedar",
            "a.b.cases.toml",
            "README.md",
            "a.cedar~",
            "#a.cedar#",
            "a.cedar.orig",
            "a.cedar.bak",
            "edgecases.toml",
        ] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let found = files_of(root.to_owned(), "policy.rules").unwrap();
        assert_eq!(found, [root.join("a.b.cedar"), root.join("a.cedar")]);
        for name in [
            "b.cases.toml",
            "a.case.toml",
            "b.ceder",
            "b.CEDAR",
            "b.cedar.txt",
            "b.cedar.",
            "b.ced",
            "more/b.cedar",
        ] {
            let path = root.join(name);
            std::fs::write(&path, "").unwrap();
            let refused = files_of(root.to_owned(), "policy.rules").unwrap_err();
            assert!(refused.message.contains("would not be read"), "{name}: {refused:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
