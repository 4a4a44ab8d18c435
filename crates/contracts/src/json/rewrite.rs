//! Changes texts within a JSON document in one pass, without a tree. A new document is built only if
//! something changes.
//!
//! Doc: records.md#redaction

use std::fmt::{self, Write as _};
use std::ops::Range;

use serde_json::Value;

use super::canonical::write_text;
use super::read::{Kind, Reader};
use super::{JsonFault, PRIVATE_PREFIX, overflows};

/// The rules of a change.
pub trait Rewrite {
    /// Returns the replacement for the value of a member, unless the value is null; `None` = the value
    /// is examined.
    fn member(&mut self, name: &str) -> Option<String>;

    /// Returns the replacement for a text; `None` = it is unchanged.
    fn text(&mut self, text: &str) -> Option<String>;
}

/// Returns the document with the changes of `rules`; `None` if nothing changes. Unchanged parts retain
/// their bytes.
///
/// # Errors
/// The first fault of a document that does not pass the gate.
pub fn rewrite(document: &str, rules: &mut impl Rewrite) -> Result<Option<String>, JsonFault> {
    let mut reader = Reader::new(document);
    let mut copy = Copy { document, from: 0, out: String::new() };
    walk(&mut reader, rules, &mut copy)?;
    reader.end()?;
    Ok(copy.done())
}

/// Rules that change nothing.
pub(super) struct Unchanged;

impl Rewrite for Unchanged {
    fn member(&mut self, _: &str) -> Option<String> {
        None
    }
    fn text(&mut self, _: &str) -> Option<String> {
        None
    }
}

/// The error that a tree contains a value that the gate rejects. [`super::check_value`] returns the
/// fault and its place.
#[derive(Debug)]
pub(super) struct Unwritable;

impl From<fmt::Error> for Unwritable {
    fn from(_: fmt::Error) -> Self {
        Self
    }
}

/// Writes a tree with the changes of `rules`, and checks it as the gate does, in one walk. `levels` is
/// the maximum nesting depth. Returns the actual nesting depth.
pub(super) fn write_rewritten(
    tree: &Value,
    rules: &mut impl Rewrite,
    out: &mut String,
    levels: usize,
) -> Result<usize, Unwritable> {
    let mut depth = 0;
    match tree {
        Value::String(text) => match rules.text(text) {
            Some(changed) => write_text(&changed, out)?,
            None => write_text(text, out)?,
        },
        Value::Array(items) => {
            let levels = levels.checked_sub(1).ok_or(Unwritable)?;
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                depth = depth.max(write_rewritten(item, rules, out, levels)?);
            }
            out.push(']');
            depth += 1;
        }
        Value::Object(members) => {
            let levels = levels.checked_sub(1).ok_or(Unwritable)?;
            out.push('{');
            for (at, (name, member)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                if name.starts_with(PRIVATE_PREFIX) {
                    return Err(Unwritable);
                }
                write_text(name, out)?;
                out.push(':');
                match rules.member(name) {
                    Some(text) if !member.is_null() => write_text(&text, out)?,
                    _ => depth = depth.max(write_rewritten(member, rules, out, levels)?),
                }
            }
            out.push('}');
            depth += 1;
        }
        Value::Number(number) => {
            let begins = out.len();
            write!(out, "{number}")?;
            if out.get(begins..).is_some_and(overflows) {
                return Err(Unwritable);
            }
        }
        other => write!(out, "{other}")?,
    }
    Ok(depth)
}

fn walk(
    reader: &mut Reader<'_>,
    rules: &mut impl Rewrite,
    copy: &mut Copy<'_>,
) -> Result<(), JsonFault> {
    match reader.kind() {
        Kind::Object => reader.members(|reader, name| {
            let begins = reader.position();
            let is_null = copy.document.get(begins..).is_some_and(|rest| rest.starts_with("null"));
            match rules.member(name) {
                Some(text) if !is_null => copy.put(reader.skipped()?, &text),
                _ => walk(reader, rules, copy)?,
            }
            Ok(())
        }),
        Kind::Array => reader.items(|reader| walk(reader, rules, copy)),
        Kind::Text => {
            let begins = reader.position();
            let text = reader.text()?;
            if let Some(changed) = rules.text(&text) {
                copy.put(begins..reader.position(), &changed);
            }
            Ok(())
        }
        Kind::Other => reader.skip(),
    }
}

/// A copy of a document, which is empty until the first change.
struct Copy<'d> {
    document: &'d str,
    from: usize,
    out: String,
}

impl Copy<'_> {
    fn put(&mut self, range: Range<usize>, text: &str) {
        self.out.push_str(self.document.get(self.from..range.start).unwrap_or_default());
        // Writing to a `String` does not fail.
        let _ = write_text(text, &mut self.out);
        self.from = range.end;
    }

    fn done(mut self) -> Option<String> {
        if self.from == 0 {
            return None;
        }
        self.out.push_str(self.document.get(self.from..).unwrap_or_default());
        Some(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shout;

    impl Rewrite for Shout {
        fn member(&mut self, name: &str) -> Option<String> {
            (name == "hidden").then(|| "***".to_owned())
        }
        fn text(&mut self, text: &str) -> Option<String> {
            text.contains('a').then(|| text.to_uppercase())
        }
    }

    #[test]
    fn what_does_not_change_keeps_its_bytes() {
        let of = |text: &str| rewrite(text, &mut Shout);
        assert_eq!(
            of(r#"{ "b": [1e2, "\u0061b", "x\ny"], "hidden": {"a": 1}, "a": {"hidden": null}}"#),
            Ok(Some(
                r#"{ "b": [1e2, "AB", "x\ny"], "hidden": "***", "a": {"hidden": null}}"#.to_owned()
            ))
        );
        assert_eq!(of(r#"["b", {"a": 0.10}]"#), Ok(None));
        assert_eq!(of(r#""a\"""#), Ok(Some(r#""A\"""#.to_owned())));
        assert!(of("[1,").is_err() && of("[] []").is_err());
    }
}
