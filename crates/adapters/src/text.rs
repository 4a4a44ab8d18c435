//! Text from outside, made harmless: lossy UTF-8 without terminal escapes.
//!
//! Path: 7. Doc: execution.md#output

/// `bytes` as text, without ANSI and OSC escapes and without control characters other than
/// newline and tab.
#[must_use]
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
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
    fn escapes_are_stripped() {
        assert_eq!(
            plain(b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y\r\nz\x00"),
            "red xy\nz"
        );
        assert_eq!(plain(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(plain(b"end\x1b["), "end");
    }
}
