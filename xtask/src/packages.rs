//! Checks the licences and the sources of all packages in the lock file.
//!
//! Advisories are not checked here.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::finding::Finding;

/// The permitted licences of packages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licences {
    /// SPDX identifiers. If a package offers alternatives, one of them must be in this list.
    pub allowed: Vec<String>,
}

/// Finds packages with a licence that is not permitted, or with a source other than the one registry.
///
/// `lock` is the text of the lock file.
pub fn check(licences: &Licences, metadata: &Value, lock: &str) -> Result<Vec<Finding>> {
    let packages = metadata["packages"].as_array().context("packages")?;
    ensure!(!packages.is_empty(), "cargo knows no packages");
    let mut findings = Vec::new();
    for package in packages {
        let location = format!(
            "{} {}",
            package["name"].as_str().unwrap_or_default(),
            package["version"].as_str().unwrap_or_default()
        );
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licences, licence) {
            findings.push(Finding {
                rule: "licence".to_owned(),
                location: format!("{location}: `{licence}`"),
                reason: "its terms are not among those that were looked at".to_owned(),
                remedy: "use another package, or look at its terms and add them to \
                         `[licences]` in xtask/boundaries.toml"
                    .to_owned(),
            });
        }
    }
    for line in foreign_sources(lock) {
        findings.push(Finding {
            rule: "source of a package".to_owned(),
            location: line.to_owned(),
            reason: "packages come from the public registry, with a checksum".to_owned(),
            remedy: "depend on a published version".to_owned(),
        });
    }
    Ok(findings)
}

fn is_allowed(licences: &Licences, written: &str) -> bool {
    let Ok(expression) = Expression::parse_mode(written, ParseMode::LAX) else { return false };
    expression.evaluate(|wanted| {
        // An exception such as LLVM's only grants further rights.
        let name = wanted.license.id().map(|id| id.name);
        name.is_some_and(|name| licences.allowed.iter().any(|allowed| allowed == name))
    })
}

/// Returns the lines of a lock file that name a source other than the registry of cargo's own packages.
fn foreign_sources(lock: &str) -> Vec<&str> {
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    sources.filter(|source| !source.ends_with("/rust-lang/crates.io-index\"")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn licences() -> Licences {
        Licences { allowed: ["MIT", "Apache-2.0", "BSD-3-Clause"].map(str::to_owned).into() }
    }

    #[test]
    fn one_alternative_is_enough_and_all_of_a_sum_are_needed() {
        for (written, allowed) in [
            ("MIT", true),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("(MIT OR Apache-2.0) AND BSD-3-Clause", true),
            ("MIT AND GPL-3.0-only", false),
            ("GPL-3.0-only", false),
            ("no licence", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(&licences(), written), allowed, "{written}");
        }
    }

    #[test]
    fn a_foreign_source_and_a_missing_licence_are_findings() {
        let metadata = json!({"packages": [{"name": "a", "version": "1.0.0", "license": null}]});
        let lock = "source = \"registry+x/rust-lang/crates.io-index\"\nsource = \"git+y\"\n";
        let findings = check(&licences(), &metadata, lock).unwrap();
        let rules: Vec<&str> = findings.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["licence", "source of a package"]);
        assert!(check(&licences(), &json!({"packages": []}), "").is_err());
    }
}
