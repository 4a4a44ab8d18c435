//! Finds names and words in rules that no caller and no tool has.
//!
//! Doc: policy.md#rules

use std::collections::BTreeSet;

use cedar_policy::pst::{BinaryOp, Expr, Literal, Template, Var};
use cedar_policy::{EntityUid, Policy};
use toolbooth_contracts::caller::is_key_name;
use toolbooth_contracts::contract::Category;
use toolbooth_contracts::id::nearest;
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallerKind, Identity};

use super::entities;
use super::expressions::{conditions, parts};
use super::scope::{TOOL, id_of};

/// A name or a word that nothing can have, with a correction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impossible {
    pub(super) message: String,
    pub(super) hint: String,
}

/// The literals that a rule compares, except in its scope.
#[derive(Debug, Default)]
pub(super) struct Literals {
    /// Names and words that no caller and no tool can have.
    pub(super) impossible: Vec<Impossible>,
    /// Tools that conditions name.
    pub(super) tools: BTreeSet<String>,
    /// Texts that conditions compare with the id of the resource.
    pub(super) ids: BTreeSet<String>,
}

impl Literals {
    /// Returns the literals of a rule, whose syntax tree is `body`.
    pub(super) fn of(policy: &Policy, body: &Template) -> Self {
        let mut own = Self::default();
        for entity in policy.entity_literals() {
            own.entity(&entity);
        }
        conditions(body).for_each(|condition| own.read(condition));
        own
    }

    fn entity(&mut self, entity: &EntityUid) {
        let id = id_of(entity);
        match entity.type_name().to_string().as_str() {
            TOOL => {
                self.tools.insert(id);
            }
            entities::CALLER => self.impossible.extend(impossible_caller(&id)),
            entities::GROUP => {
                if let Some(name) = id.strip_prefix("group:") {
                    self.impossible.push(Impossible {
                        message: format!("`Group::\"{id}\"` is the group of no caller"),
                        hint: format!("write `Group::\"{name}\"`"),
                    });
                }
            }
            _ => (),
        }
    }

    fn read(&mut self, expression: &Expr) {
        if let Expr::BinaryOp { op, left, right } = expression {
            let of_right = || attribute(right).map(|own| (own, left));
            let compared = match op {
                BinaryOp::Eq | BinaryOp::NotEq => {
                    attribute(left).map(|own| (own, right)).or_else(of_right)
                }
                BinaryOp::Contains => of_right(),
                _ => None,
            };
            if let Some(((of, name), other)) = compared {
                texts(other).for_each(|text| self.compare(of, name, text));
            }
        }
        for part in parts(expression).into_iter().flatten() {
            self.read(part);
        }
    }

    /// Reads the comparison of an attribute with a text.
    fn compare(&mut self, of: &Var, name: &str, text: &str) {
        let known: Vec<&str> = match (of, name) {
            (Var::Principal, "kind") => CallerKind::ALL.map(CallerKind::as_str).to_vec(),
            (Var::Principal, "name") => return self.impossible.extend(impossible_caller(text)),
            (Var::Resource, "trust") => TrustLevel::ALL.map(TrustLevel::as_str).to_vec(),
            (Var::Resource, "category") => Category::NAMES.to_vec(),
            (Var::Resource, "id") => {
                self.ids.insert(text.to_owned());
                return;
            }
            _ => return,
        };
        if known.contains(&text) {
            return;
        }
        let variable = if *of == Var::Principal { "principal" } else { "resource" };
        self.impossible.push(Impossible {
            message: format!("`{variable}.{name}` is never `\"{text}\"`"),
            hint: match nearest(text, known.iter().copied()) {
                Some(near) => format!("is `\"{near}\"` meant?"),
                None => format!("it is one of these: {}", known.join(", ")),
            },
        });
    }
}

/// Returns the variable and the attribute of it that an expression reads.
fn attribute(expression: &Expr) -> Option<(&Var, &str)> {
    let Expr::GetAttr { expr, attr } = expression else { return None };
    match &**expr {
        Expr::Var(of) => Some((of, attr)),
        _ => None,
    }
}

/// Returns the text of an expression, or the texts of a set.
fn texts(expression: &Expr) -> impl Iterator<Item = &str> {
    let items = match expression {
        Expr::Set(items) => items.iter().map(|item| &**item).collect(),
        one => vec![one],
    };
    items.into_iter().filter_map(|item| match item {
        Expr::Literal(Literal::String(text)) => Some(text.as_str()),
        _ => None,
    })
}

/// Returns what is wrong with a name if no caller can have it.
fn impossible_caller(name: &str) -> Option<Impossible> {
    if Identity::named(name).is_some() {
        return None;
    }
    let hint = match (name.strip_prefix("group:"), nearest(name, ["local", "operator"])) {
        (Some(group), _) => format!("write `principal in Group::\"{group}\"`"),
        (None, Some(near)) => format!("is `{near}` meant?"),
        (None, None) if is_key_name(name) => format!("is `key:{name}` meant?"),
        (None, None) => {
            "callers are `local`, `operator`, `key:NAME` and `jwt:ISSUER#SUBJECT`".to_owned()
        }
    };
    Some(Impossible { message: format!("no caller has the name `{name}`"), hint })
}
