//! The parts of the context that a rule reads.
//!
//! Path: 5. Doc: policy.md#arguments-in-rules

use std::borrow::Cow;
use std::collections::BTreeMap;

use cedar_policy::pst::{Expr, Template, Var};

use super::expressions::{conditions, parts};

/// ContextMembers of a record that are read: those with a name, or everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reads {
    everything: bool,
    parts: BTreeMap<String, Reads>,
}

impl Reads {
    fn everything() -> Self {
        Self { everything: true, parts: BTreeMap::new() }
    }

    /// Adds a part, by its path.
    pub(super) fn add<'p>(&mut self, path: impl IntoIterator<Item = &'p str>) {
        let mut reads = self;
        for name in path {
            reads = reads.parts.entry(name.to_owned()).or_default();
        }
        reads.everything = true;
    }

    /// Adds the parts that others read.
    pub(super) fn add_all(&mut self, other: &Self) {
        self.everything |= other.everything;
        for (name, parts) in &other.parts {
            self.parts.entry(name.clone()).or_default().add_all(parts);
        }
    }

    /// Returns what is read of a member; `None` if it is not read.
    pub(super) fn of(&self, name: &str) -> Option<Cow<'_, Self>> {
        match self.everything {
            true => Some(Cow::Owned(Self::everything())),
            false => self.parts.get(name).map(Cow::Borrowed),
        }
    }

    /// Whether everything is read, not only parts with a name.
    pub(super) fn is_everything(&self) -> bool {
        self.everything
    }

    /// Whether something is read at a JSON pointer, or beneath it.
    pub(super) fn reads_at(&self, pointer: &str) -> bool {
        let mut reads = self;
        for name in pointer.split('/').skip(1) {
            if reads.everything {
                return true;
            }
            let name = name.replace("~1", "/").replace("~0", "~");
            match reads.parts.get(&name) {
                Some(parts) => reads = parts,
                None => return false,
            }
        }
        true
    }

    /// Returns the parts with a name that are read.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.parts.iter()
    }

    /// Returns the members of the context that the conditions of a rule read.
    pub(super) fn of_rule(rule: &Template) -> Self {
        let mut reads = Self::default();
        conditions(rule).for_each(|condition| reads.read(condition));
        reads
    }

    fn read(&mut self, expression: &Expr) {
        if let Some(path) = path(expression) {
            return self.add(path);
        }
        if let Expr::HasAttr { expr, attrs } = expression
            && let Some(mut path) = path(expr)
        {
            path.extend(attrs.iter().map(|attr| attr.as_str()));
            return self.add(path);
        }
        match parts(expression) {
            Some(parts) => parts.into_iter().for_each(|part| self.read(part)),
            None => self.everything = true,
        }
    }
}

/// Returns the path of a part of the context; empty for the context itself.
fn path(expression: &Expr) -> Option<Vec<&str>> {
    match expression {
        Expr::Var(Var::Context) => Some(Vec::new()),
        Expr::GetAttr { expr, attr } => {
            let mut path = path(expr)?;
            path.push(attr.as_str());
            Some(path)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cedar_policy::Policy;

    use super::*;

    fn reads(condition: &str) -> Reads {
        let text = format!("permit (principal, action, resource) when {{ {condition} }};");
        let policy = Policy::parse(None, text).unwrap().to_pst().unwrap();
        Reads::of_rule(policy.body())
    }

    fn of(paths: &[&[&str]]) -> Reads {
        let mut all = Reads::default();
        paths.iter().for_each(|path| all.add(path.iter().copied()));
        all
    }

    #[test]
    fn each_part_of_the_context_is_found() {
        assert_eq!(reads("context.args.n > 1"), of(&[&["args", "n"]]));
        let guarded = reads("context.args has to.city && context.args.to.city like \"B*\"");
        assert!(guarded.of("args").unwrap().of("to").unwrap().of("city").is_some());
        assert!(guarded.of("args").unwrap().of("other").is_none());
        let hidden =
            reads("if principal.name == \"a\" then [context.args].contains({n: 1}) else true");
        assert_eq!(hidden, of(&[&["args"]]));
        assert!(hidden.of("args").unwrap().of("anything").is_some());
        let city = guarded.of("args").unwrap();
        for (pointer, is_read) in [
            ("", true),
            ("/to", true),
            ("/to/city", true),
            ("/to/city/x", true),
            ("/to/zip", false),
        ] {
            assert_eq!(city.reads_at(pointer), is_read, "{pointer}");
        }
        assert_eq!(reads("context == context"), of(&[&[]]));
        assert_eq!(reads("!(principal.name == \"a\")"), Reads::default());
    }
}
