//! Decides whether a URI may be an expansion of a URI template (RFC 6570).
//!
//! It expands nothing. A template is parsed once; each URI is then matched in time linear in its
//! length.
//!
//! Path: 3. Doc: registry.md#prompts-and-resources

use crate::error::TemplateError;
use crate::normal::is_normal;

/// Maximum number of expressions in one template.
pub const EXPRESSIONS_MAX: usize = 64;

/// The set of texts that an expression matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Every expression matches every text.
    Wide,
    /// A simple expression matches text without `/`, as servers match it.
    Narrow,
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UriTemplate {
    /// The literal before the first expression.
    head: String,
    /// Gaps, each with the literal after it; only the last literal may be empty.
    rest: Vec<(Gap, String)>,
    /// Whether its literals are in the normal form of URIs.
    is_normal: bool,
}

/// One or more consecutive expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    /// Whether one of them matches text with `/` in the narrow reading.
    slashes: bool,
}

impl UriTemplate {
    /// Parses a template; a brace without its pair is a literal.
    ///
    /// # Errors
    /// [`TemplateError`], where it has more than [`EXPRESSIONS_MAX`] expressions.
    pub fn parse(template: &str) -> Result<Self, TemplateError> {
        let (mut head, mut rest) = (String::new(), Vec::<(Gap, String)>::new());
        let (mut sample, mut expressions) = (String::new(), 0);
        let mut text = template;
        while let Some((literal, from)) = text.split_once('{') {
            let Some((expression, after)) = from.split_once('}') else { break };
            expressions += 1;
            if expressions > EXPRESSIONS_MAX {
                return Err(TemplateError::Expressions { expressions_max: EXPRESSIONS_MAX });
            }
            let slashes = expression.starts_with(['+', '#', '/', '.', ';', '?', '&']);
            sample.push_str(literal);
            sample.push('x');
            match rest.last_mut() {
                None => head.push_str(literal),
                Some((_, last)) => last.push_str(literal),
            }
            match rest.last_mut() {
                Some((gap, last)) if last.is_empty() => gap.slashes |= slashes,
                _ => rest.push((Gap { slashes }, String::new())),
            }
            text = after;
        }
        sample.push_str(text);
        match rest.last_mut() {
            None => head.push_str(text),
            Some((_, last)) => last.push_str(text),
        }
        let is_normal = is_normal(&sample) || is_normal(&format!("x:{sample}"));
        Ok(Self { head, rest, is_normal })
    }

    /// Whether a URI in normal form may be an expansion of the template. If the template's literals
    /// are not in normal form, the wide reading accepts every URI. The narrow reading may miss a
    /// match when a literal is between two expressions that match `/`.
    #[must_use]
    pub fn may_give(&self, uri: &str, reading: Reading) -> bool {
        if reading == Reading::Wide && !self.is_normal {
            return true;
        }
        self.matches(uri, reading, &mut |_| ())
    }

    /// As [`UriTemplate::may_give`], by the literals alone. Passes the number of examined bytes to
    /// `looks_at`.
    fn matches(&self, uri: &str, reading: Reading, looks_at: &mut impl FnMut(usize)) -> bool {
        looks_at(self.head.len().min(uri.len()));
        let Some(mut left) = uri.strip_prefix(self.head.as_str()) else { return false };
        let may_hold =
            |gap: &Gap, text: &str| reading == Reading::Wide || gap.slashes || !text.contains('/');
        // From the right, up to the last gap that matches `/`, so that the remaining part ends in
        // that gap.
        let mut gaps = self.rest.as_slice();
        while let Some(((gap, literal), before)) = gaps.split_last() {
            looks_at(literal.len().min(left.len()));
            let Some(head) = left.strip_suffix(literal.as_str()) else { return false };
            gaps = before;
            let Some((_, previous)) = before.last() else {
                looks_at(head.len());
                return may_hold(gap, head);
            };
            if reading == Reading::Wide || gap.slashes {
                left = head;
                break;
            }
            let Some(at) = head.rfind(previous.as_str()) else {
                looks_at(head.len());
                return false;
            };
            let held = head.get(at + previous.len()..).unwrap_or_default();
            looks_at(head.len() - at);
            if !may_hold(gap, held) {
                return false;
            }
            // The previous literal matches here, so the remaining part must end in it.
            left = head.get(..at + previous.len()).unwrap_or_default();
        }
        // From the left: the leftmost match of a literal leaves the most text to the gap at the
        // end.
        for (gap, literal) in gaps {
            let Some(at) = left.find(literal.as_str()) else {
                looks_at(left.len());
                return false;
            };
            looks_at(at + literal.len());
            if !may_hold(gap, left.get(..at).unwrap_or_default()) {
                return false;
            }
            left = left.get(at + literal.len()..).unwrap_or_default();
        }
        !self.rest.is_empty() || left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gives(template: &str, uri: &str, reading: Reading) -> bool {
        UriTemplate::parse(template).unwrap().matches(uri, reading, &mut |_| ())
    }

    fn narrow(template: &str, uri: &str) -> bool {
        gives(template, uri, Reading::Narrow)
    }

    #[test]
    fn expressions_stand_for_text() {
        assert!(narrow("file:///{name}.md", "file:///a.b.md") && narrow("x:{a}{b}", "x:"));
        assert!(
            !narrow("file:///{name}", "file:///a/b") && narrow("file:///{+path}", "file:///a/b")
        );
        assert!(narrow("x:{/a,b}", "x:/1/2") && narrow("x:a{?q*}", "x:a?q=1"));
        assert!(!narrow("x:{a}/y", "x:1/2/y") && narrow("x:{a}/{b}/y", "x:1/2/y"));
        assert!(!narrow("x:{a}y", "x:az") && narrow("x:a", "x:a") && !narrow("x:a", "x:ab"));
        assert!(narrow("x:{open", "x:{open"), "no expression");
        assert!(narrow("x:{+path}/{name}", "x:a/b/c") && narrow("x:{o}/{+path}", "x:a/b/c"));
        assert!(!narrow("x:{o}/b/{+path}", "x:a/a/b/c") && !narrow("x:{+p}/b/{n}", "x:a/b/c/d"));
        assert!(narrow("x:{a}b{b}b", "x:bbb") && !narrow("x:{a}bb{b}bb", "x:bbb"));
        assert!(gives("file:///{name}", "file:///a/b", Reading::Wide));
        assert!(gives("{+any}", "x:y", Reading::Wide) && narrow("{+any}", "x:y"));
    }

    #[test]
    fn literals_in_another_form_are_read_widely() {
        for odd in
            ["FILE:///a/{b}", "file:///a/../b/{c}", "file:///%61/{b}", "x:a b{c}", "{s}://H/"]
        {
            let odd = UriTemplate::parse(odd).unwrap();
            assert!(odd.may_give("y:z", Reading::Wide) && !odd.may_give("y:z", Reading::Narrow));
        }
        for plain in ["file:///a/{b}", "x:{+a}", "{+uri}", "x:a{?q}", "x://{h}/{p}.md"] {
            assert!(UriTemplate::parse(plain).unwrap().is_normal, "{plain}");
        }
    }

    #[test]
    fn every_byte_is_looked_at_a_bounded_number_of_times() {
        let uri = format!("x:{}", "ab/".repeat(2_700));
        for (literal, most) in [("a", 64), ("ab/", 64), ("b/a", 64), ("/", 64), ("zz", 64)] {
            for expression in ["{v}", "{+v}"] {
                let template = format!("x:{}", format!("{expression}{literal}").repeat(most));
                let parsed = UriTemplate::parse(&template).unwrap();
                for reading in [Reading::Wide, Reading::Narrow] {
                    let mut looked = 0;
                    let _ = parsed.matches(&uri, reading, &mut |bytes| looked += bytes);
                    assert!(looked <= 2 * (uri.len() + template.len()), "{literal} {looked}");
                }
            }
        }
        assert!(UriTemplate::parse(&"{v}".repeat(65)).is_err());
        assert!(UriTemplate::parse(&"{v}".repeat(64)).is_ok());
    }

    /// The definition of the reading: tries every split.
    fn tried(rest: &[(Gap, String)], uri: &str, reading: Reading) -> bool {
        let Some(((gap, literal), more)) = rest.split_first() else { return uri.is_empty() };
        (0..=uri.len()).any(|at| {
            let (held, after) = uri.split_at(at);
            (reading == Reading::Wide || gap.slashes || !held.contains('/'))
                && after
                    .strip_prefix(literal.as_str())
                    .is_some_and(|left| tried(more, left, reading))
        })
    }

    proptest! {
        #[test]
        fn no_text_panics_and_the_narrow_reading_is_narrower(template: String, uri: String) {
            if let Ok(template) = UriTemplate::parse(&template) {
                prop_assert!(template.may_give(&uri, Reading::Wide) || !template.may_give(&uri, Reading::Narrow));
            }
        }

        #[test]
        fn it_says_what_trying_everything_says(
            template in "([ab/]{0,2}(\\{v\\}|\\{\\+v\\})){0,4}[ab/]{0,2}",
            uri in "[ab/]{0,8}",
        ) {
            let parsed = UriTemplate::parse(&template).unwrap();
            let left = uri.strip_prefix(parsed.head.as_str());
            let truth = |reading| left.is_some_and(|left| tried(&parsed.rest, left, reading));
            prop_assert_eq!(gives(&template, &uri, Reading::Wide), truth(Reading::Wide), "{}", template);
            let wide = parsed.rest.iter().filter(|(gap, _)| gap.slashes).count();
            let found = gives(&template, &uri, Reading::Narrow);
            prop_assert!(!found || truth(Reading::Narrow), "{} {}", template, uri);
            if wide < 2 {
                prop_assert_eq!(found, truth(Reading::Narrow), "{} {}", template, uri);
            }
        }
    }
}
