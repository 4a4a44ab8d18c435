//! The changes that the arguments of `lock approve` select.
//!
//! Doc: registry.md#the-lock

use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::id::nearest;
use toolbooth_registry::Source;
use toolbooth_registry::lock::{self, ToolDiff};

use super::Compared;
use crate::failure::{FAILED, Failure};

/// The target of an argument of `lock approve`.
pub(super) enum Selection<'a> {
    /// One tool, optionally with the digest that was shown.
    Tool(&'a str, Option<&'a str>),
    /// The tools of a source.
    Source(Source),
    /// The tools of a pattern.
    Pattern(ToolPattern),
}

impl<'a> Selection<'a> {
    pub(super) fn of(given: &'a str) -> Result<Self, Failure> {
        if let Some(source) = Source::parse(given).filter(Source::is_discovered) {
            return Ok(Self::Source(source));
        }
        // A URI can contain any character, but its digest is hexadecimal.
        if lock::locked_id(given).is_some() {
            let digest = given.rsplit_once('@').filter(|(_, digest)| {
                digest.len() >= 8 && digest.bytes().all(|b| b.is_ascii_hexdigit())
            });
            return Ok(match digest {
                Some((item, digest)) => Self::Tool(item, Some(digest)),
                None => Self::Tool(given, None),
            });
        }
        if given.contains('*') {
            let pattern = ToolPattern::try_from(given.to_owned());
            return pattern.map(Self::Pattern).map_err(|error| Failure::usage(with_causes(&error)));
        }
        Ok(match given.split_once('@') {
            Some((tool, digest)) => Self::Tool(tool, Some(digest)),
            None => Self::Tool(given, None),
        })
    }

    fn selects(&self, tool_id: &str, source: &str) -> bool {
        match self {
            Self::Tool(own, _) => *own == tool_id,
            Self::Source(own) => own.to_string() == source,
            Self::Pattern(pattern) => {
                let item = lock::locked_id(tool_id).map(|(_, id)| id);
                pattern.selects(item.unwrap_or(tool_id))
            }
        }
    }
}

/// Returns the differences that the arguments name.
pub(super) fn choose(
    compared: &Compared,
    named: &[(String, Selection<'_>)],
) -> Result<Vec<ToolDiff>, Failure> {
    let mut chosen: Vec<ToolDiff> = Vec::new();
    for (given, named) in named {
        let found: Vec<&ToolDiff> = compared
            .diffs
            .iter()
            .filter(|diff| named.selects(&diff.tool_id, &diff.source))
            .collect();
        if found.is_empty() {
            let tools = compared.lock.iter().map(|(id, locked)| (id.to_owned(), &locked.source));
            let items = compared.lock.items().map(|(id, locked)| (id, &locked.source));
            let approved = tools.chain(items).any(|(id, source)| named.selects(&id, source));
            if !approved {
                return Err(unknown(compared, given, named));
            }
            crate::notice(&format!("`{given}` is as it was approved"));
        }
        for diff in found {
            let now = diff.source_digest.as_deref().unwrap_or_default();
            match named {
                // `TOOL@DIGEST` approves only the description that was shown, not a later one.
                Selection::Tool(tool, Some(shown))
                    if shown.len() < 8 || !now.starts_with(shown) =>
                {
                    let message =
                        format!("the digest of `{tool}` is not `{shown}`; nothing was approved");
                    return Err(Failure::new(FAILED, "changed-again", message)
                        .hint("`toolbooth lock diff` shows the current definition"));
                }
                Selection::Tool(..) => (),
                Selection::Source(_) | Selection::Pattern(_) => {
                    if !diff.suspicious.is_empty() {
                        crate::notice(&format!(
                            "`{}` is left out because of its text; approve it by its id",
                            diff.tool_id
                        ));
                        continue;
                    }
                    if compared.needs_its_name(diff) {
                        continue;
                    }
                }
            }
            if !chosen.iter().any(|own| own.tool_id == diff.tool_id) {
                chosen.push(diff.clone());
            }
        }
    }
    Ok(chosen)
}

/// Returns the closest id. An item's id without its kind precedes all similar ids.
fn meant<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    let mut ids = known.iter().copied();
    let item = ids.find(|id| lock::locked_id(id).is_some_and(|(_, own)| own == given));
    item.or_else(|| nearest(given, known.iter().copied()))
}

/// Returns the failure for an argument that matches no tool.
fn unknown(compared: &Compared, given: &str, named: &Selection<'_>) -> Failure {
    let Selection::Tool(tool, _) = named else {
        let message = format!("no source lists a tool of `{given}`; nothing was approved");
        return Failure::new(FAILED, "unregistered-tool", message)
            .hint("`toolbooth lock diff` shows what there is to approve");
    };
    let message = format!("no source lists a tool `{tool}`; nothing was approved");
    let failure = Failure::new(FAILED, "unregistered-tool", message);
    let known: Vec<&str> = compared.diffs.iter().map(|diff| diff.tool_id.as_str()).collect();
    match meant(tool, &known) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("`toolbooth lock diff` shows what there is to approve"),
    }
}

#[cfg(test)]
mod tests;
