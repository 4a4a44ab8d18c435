//! Makes external text harmless: lossy UTF-8 without terminal escapes.
//!
//! Path: 7. Doc: execution.md#output

use toolbooth_contracts::json::{JsonText, Rewrite};
use toolbooth_contracts::{ContentBlock, Payload};

/// Returns `bytes` as text without ANSI and OSC escapes. Of the control characters it contains only
/// newline and tab.
#[must_use]
pub fn plain(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes), false)
}

/// Removes escapes from the texts of a result of a local program. The same text is then digested,
/// recorded and shown.
pub fn make_plain(payload: &mut Payload) {
    for block in payload.content.iter_mut().flatten() {
        if let Some(plain) = plain_json(block.json()) {
            *block = ContentBlock::new(plain);
        }
    }
    for document in [&mut payload.structured_content, &mut payload.meta].into_iter().flatten() {
        if let Some(plain) = plain_json(document) {
            *document = plain;
        }
    }
}

/// Returns a document without escapes and control characters in its texts; `None` if it contains
/// none. Line ends in data are unchanged. Names of members are unchanged too, because schemas refer
/// to them.
fn plain_json(document: &JsonText) -> Option<JsonText> {
    struct Harmless;
    impl Rewrite for Harmless {
        fn member(&mut self, _: &str) -> Option<String> {
            None
        }

        fn text(&mut self, text: &str) -> Option<String> {
            text.chars().any(is_harmful).then(|| harmless(text, true))
        }
    }
    // JSON escapes most control characters as `\u00…`, and few documents contain any.
    let text = document.as_str();
    let may_have = text.contains("\\u") || text.contains("\\b") || text.contains("\\f");
    if !may_have && !text.chars().any(is_harmful) {
        return None;
    }
    document.rewritten(&mut Harmless)
}

fn is_harmful(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\t' | '\r')
}

fn harmless(text: &str, keeps_returns: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => match characters.peek() {
                // CSI: parameters up to a final byte.
                Some('[') => {
                    characters.next();
                    for next in characters.by_ref() {
                        if ('\u{40}'..='\u{7e}').contains(&next) {
                            break;
                        }
                    }
                }
                // OSC, DCS, PM, APC: up to BEL or ST.
                Some(']' | 'P' | '^' | '_') => {
                    characters.next();
                    while let Some(next) = characters.next() {
                        if next == '\u{7}' {
                            break;
                        }
                        if next == '\u{1b}' && characters.peek() == Some(&'\\') {
                            characters.next();
                            break;
                        }
                    }
                }
                _ => {
                    characters.next();
                }
            },
            '\n' | '\t' => out.push(character),
            '\r' if keeps_returns => out.push(character),
            '\r' => {
                if characters.peek() != Some(&'\n') {
                    out.push('\n');
                }
            }
            control if control.is_control() => (),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_data_are_harmless_and_the_rest_stays() {
        let of = |text: &str| {
            let document = JsonText::parse(text).unwrap();
            plain_json(&document).map(|plain| plain.as_str().to_owned())
        };
        let given = r#"{"a":"\u001b[31mred\u001b[0m\r\n\ttab\u0007","n":[1.50,"\u009b2J\u007f"],"e":"\u00e9"}"#;
        let expected = r#"{"a":"red\r\n\ttab","n":[1.50,"2J"],"e":"\u00e9"}"#;
        let plain: serde_json::Value = serde_json::from_str(&of(given).unwrap()).unwrap();
        assert_eq!(plain, serde_json::from_str::<serde_json::Value>(expected).unwrap());
        assert!(of(given).unwrap().contains("1.50"), "numbers stay as they are written");
        assert_eq!(of(r#"{"a":"\u00e9 \\u001b"}"#), None, "a backslash of the text is none");
    }

    #[test]
    fn escapes_are_stripped() {
        assert_eq!(
            plain(b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y\r\nz\x00"),
            "red xy\nz"
        );
        assert_eq!(plain(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(plain(b"end\x1b["), "end");
    }
}
