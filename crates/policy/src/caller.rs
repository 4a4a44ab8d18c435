//! The rights of callers: tool sets, grants, operator right.
//!
//! Path: 3. Doc: policy.md#callers

use serde::Serialize;
use toolbooth_contracts::ToolPattern;

use crate::error::SettingError;

/// A grant such as `read:*`, `calendar:read` or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Grant(String);

impl Grant {
    /// Parses a grant.
    ///
    /// # Errors
    /// [`SettingError::Grant`], where `text` is neither `*` nor `verb:resource` with an optional
    /// `*`.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        let part = |part: &str| {
            part == "*"
                || (!part.is_empty()
                    && part
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')))
        };
        let fits = text == "*"
            || text.split_once(':').is_some_and(|(verb, resource)| part(verb) && part(resource));
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(SettingError::Grant { text: text.to_owned() })
        }
    }

    /// Returns the grant as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the grant covers a permission.
    #[must_use]
    pub fn covers(&self, permission: &str) -> bool {
        if self.0 == "*" || self.0 == permission {
            return true;
        }
        let fits = |pattern: &str, part: &str| pattern == "*" || pattern == part;
        match (self.0.split_once(':'), permission.split_once(':')) {
            (Some((verb, resource)), Some((asked_verb, asked_resource))) => {
                fits(verb, asked_verb) && fits(resource, asked_resource)
            }
            _ => false,
        }
    }
}

/// The rights of a named set of callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerRights {
    /// Tools they see; `None` = all.
    pub tools: Option<Vec<ToolPattern>>,
    /// Tools they do not see.
    pub deny: Vec<ToolPattern>,
    /// Permissions they have.
    pub grants: Vec<Grant>,
    /// Whether they are operators.
    pub operate: bool,
    /// The budget of each of them; `None` = that of all callers.
    pub budget: Option<Budget>,
}

/// The cost that the calls of one caller may have in a day (UTC), in micro-units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// All calls; `None` = no limit.
    pub daily: Option<u64>,
    /// The calls of one claimed epic; `None` = no limit. It never gives more than `daily`, because
    /// both are charged.
    pub daily_per_epic: Option<u64>,
}

impl CallerRights {
    /// Returns the rights on every registered tool and item, as `local` and the operator have them
    /// by default. They do not include the right to operate.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            tools: None,
            deny: Vec::new(),
            grants: vec![Grant("*".to_owned())],
            operate: false,
            budget: None,
        }
    }

    /// Whether the caller can see the tool.
    #[must_use]
    pub fn sees(&self, tool_id: &str) -> bool {
        let in_set = self.tools.as_ref().is_none_or(|set| set.iter().any(|p| p.selects(tool_id)));
        in_set && !self.deny.iter().any(|pattern| pattern.selects(tool_id))
    }

    /// Whether the caller can see any tool or item of a server, judged by their names.
    #[must_use]
    pub fn sees_some_of(&self, server: &str) -> bool {
        let in_set = self
            .tools
            .as_ref()
            .is_none_or(|set| set.iter().any(|pattern| may_select_of(pattern, server)));
        in_set && !self.deny.iter().any(|pattern| selects_all_of(pattern, server))
    }

    /// Returns the permissions that are not granted.
    pub fn missing<'p>(&self, permissions: &'p [String]) -> Vec<&'p str> {
        permissions
            .iter()
            .map(String::as_str)
            .filter(|permission| !self.grants.iter().any(|grant| grant.covers(permission)))
            .collect()
    }
}

/// Whether a pattern can select an id that begins with the server's name and a dot.
pub(crate) fn may_select_of(pattern: &ToolPattern, server: &str) -> bool {
    let text = pattern.as_str();
    let prefix = format!("{server}.");
    match text.strip_suffix('*') {
        Some(own) => own.starts_with(&prefix) || prefix.starts_with(own),
        None => text.len() > prefix.len() && text.starts_with(&prefix),
    }
}

/// Whether a pattern selects every id that begins with the server's name and a dot.
pub(crate) fn selects_all_of(pattern: &ToolPattern, server: &str) -> bool {
    pattern.as_str().strip_suffix('*').is_some_and(|own| format!("{server}.").starts_with(own))
}

/// A caller that may read records and decide approvals. Only [`crate::Authorizer::operator`] creates
/// one.
#[derive(Debug, Clone)]
#[must_use]
pub struct Operator {
    pub(crate) caller: toolbooth_contracts::Caller,
}

impl Operator {
    /// Returns the caller.
    #[must_use]
    pub fn caller(&self) -> &toolbooth_contracts::Caller {
        &self.caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_cover_by_verb_and_resource() {
        let covers =
            |grant: &str, permission: &str| Grant::parse(grant).unwrap().covers(permission);
        assert!(covers("read:*", "read:db") && !covers("read:*", "write:db"));
        assert!(covers("*:db", "write:db") && covers("*", "send:sms"));
        assert!(
            covers("calendar:read", "calendar:read") && !covers("calendar:read", "calendar:write")
        );
        assert!(Grant::parse("read").is_err() && Grant::parse("").is_err());
    }
}
