//! The normal form of URIs: one spelling of all URIs that servers read as the same resource.
//!
//! RFC 3986, 6.2.2, with stricter rules where servers and file systems treat several spellings
//! alike: no empty segments, no fragment, and neither host nor query in `file:` URIs.
//!
//! Path: 3. Doc: registry.md#resource-uris

/// Prefix of the scheme `toolbooth+SERVER`; the server's own URI follows the colon.
pub(crate) const MARK: &str = "toolbooth+";
/// Schemes of URIs that always have a host and a path, each with its default port, which is omitted.
const WEB: [(&str, &str); 5] =
    [("http", "80"), ("https", "443"), ("ws", "80"), ("wss", "443"), ("ftp", "21")];

/// Whether a URI is in normal form. Any other URI may be a second spelling of one in normal form.
#[must_use]
pub fn is_normal(uri: &str) -> bool {
    let flat = Flat::of(uri);
    flat.is_text && has_scheme(uri) && !dots_in_query(uri) && flat.normal() == uri
}

/// The URI in normal form, as a lenient server would read it. If the text is not a URI,
/// [`is_normal`] may still reject the result.
#[must_use]
pub fn normal_form(uri: &str) -> String {
    Flat::of(uri).normal()
}

/// A URI with its percent-encodings in one form.
struct Flat {
    text: String,
    /// Whether the decoded bytes are UTF-8.
    is_text: bool,
}

impl Flat {
    fn of(uri: &str) -> Self {
        let bytes = uri.as_bytes();
        let mut text = String::with_capacity(bytes.len());
        let mut decoded = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            let (byte, encoded) = match (byte, hex(bytes, at)) {
                (b'%', Some(mut value)) => {
                    // `%25` before two hex digits is the encoding of an encoding: `%252E` means `%2E`.
                    while value == b'%' {
                        let Some(inner) = hex(bytes, at + 2) else { break };
                        (value, at) = (inner, at + 2);
                    }
                    at += 2;
                    (value, true)
                }
                (b'%', None) => (b'%', true),
                _ => (byte, !is_plain(byte)),
            };
            decoded.push(byte);
            match byte {
                b'\\' | b'/' => text.push('/'),
                0..=0x1f | 0x7f => (),
                byte if !encoded || is_unreserved(byte) => text.push(char::from(byte)),
                byte => {
                    text.push('%');
                    for digit in [byte >> 4, byte & 15] {
                        let digit = char::from_digit(u32::from(digit), 16).unwrap_or('0');
                        text.push(digit.to_ascii_uppercase());
                    }
                }
            }
        }
        Self { text, is_text: std::str::from_utf8(&decoded).is_ok() }
    }

    fn normal(&self) -> String {
        let (mut out, mut rest) = (String::with_capacity(self.text.len()), self.text.as_str());
        while let Some((scheme, after)) = rest.split_once(':').filter(|_| has_scheme(rest)) {
            let scheme = scheme.to_ascii_lowercase();
            out.push_str(&scheme);
            out.push(':');
            if !scheme.starts_with(MARK) {
                put_hierarchy(&scheme, after, &mut out);
                return out;
            }
            rest = after;
        }
        if out.is_empty() {
            return self.text.clone();
        }
        // Resources of a gateway itself have no inner scheme: `toolbooth+gateway:results/…`.
        put_hierarchy("", rest, &mut out);
        out
    }
}

/// Appends the normal form of the part after the scheme: authority, path and query.
fn put_hierarchy(scheme: &str, after: &str, out: &mut String) {
    let whole = after.split_once('#').map_or(after, |(whole, _)| whole);
    let (front, query) = match whole.split_once('?') {
        Some((front, query)) => (front, Some(query)),
        None => (whole, None),
    };
    let web = WEB.iter().find(|(web, _)| *web == scheme).map(|(_, port)| *port);
    let hierarchy = match web {
        Some(_) => Some(front.trim_start_matches('/')),
        None => front.strip_prefix("//"),
    };
    let (authority, path) = match hierarchy {
        Some(front) => front.split_at(front.find('/').unwrap_or(front.len())),
        None => ("", front),
    };
    if scheme == "file" {
        out.push_str("//");
        put_path(path, true, out);
        return;
    }
    if hierarchy.is_some() {
        out.push_str("//");
        put_authority(authority, web, out);
    }
    put_path(path, path.starts_with('/') || web.is_some(), out);
    if let Some(query) = query {
        out.push('?');
        out.push_str(query);
    }
}

fn put_authority(authority: &str, web: Option<&str>, out: &mut String) {
    let (user, mut host) = match authority.rsplit_once('@') {
        Some((user, host)) => (user, host),
        None => ("", authority),
    };
    if let Some((name, port)) = host.rsplit_once(':')
        && (port.is_empty() || web == Some(port))
    {
        host = name;
    }
    if !user.is_empty() && web.is_none() {
        lower(user, out);
        out.push('@');
    }
    lower(host, out);
}

/// Appends `text` in lower case, except the digits of percent-encodings.
fn lower(text: &str, out: &mut String) {
    let mut digits = 0;
    for c in text.chars() {
        if digits == 0 {
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(c);
        }
        digits = if c == '%' { 2_u8 } else { digits.saturating_sub(1) };
    }
}

fn put_path(path: &str, rooted: bool, out: &mut String) {
    let mut segments: Vec<&str> = Vec::new();
    let mut open = false;
    for segment in path.split('/') {
        open = true;
        match dots(segment) {
            Some(2) => drop(segments.pop()),
            Some(_) => (),
            None if segment.is_empty() => (),
            None => {
                segments.push(segment);
                open = false;
            }
        }
    }
    if rooted {
        out.push('/');
    }
    out.push_str(&segments.join("/"));
    if open && !segments.is_empty() {
        out.push('/');
    }
}

/// The number of dots of a dot segment; `None` for other segments. Some servers ignore the part
/// after a semicolon.
fn dots(segment: &str) -> Option<usize> {
    let name = segment.split(';').next().unwrap_or_default();
    matches!(name, "." | "..").then_some(name.len())
}

/// Whether a part of the query is a dot segment, because some servers read paths from queries.
fn dots_in_query(uri: &str) -> bool {
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    query.split(['/', '=', '&', '?']).any(|part| dots(part).is_some())
}

fn has_scheme(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    })
}

/// The value of the two hex digits at `at`.
fn hex(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    u8::try_from(digit(at)? * 16 + digit(at + 1)?).ok()
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a URI may contain the character unencoded.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte) || b":/?#[]@!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_uris_are_normal() {
        for uri in [
            "file:///secret/key",
            "file:///",
            "file:///a/b/",
            "file:///a%20b/%C3%BC.md",
            "file:///..a/b..c/...",
            "a:b",
            "urn:isbn:1",
            "db://",
            "db://host:5432/t?x=1&y=a/b",
            "postgres://user@host/t",
            "https://example.com/?q=%26",
            "mail:a%40b@c",
            "toolbooth+x:toolbooth+.41:file:///a",
            "toolbooth+gateway:results/ab/0",
            "x:",
        ] {
            assert!(is_normal(uri), "{uri} {}", normal_form(uri));
        }
    }

    #[test]
    fn other_spellings_of_a_secret_are_not_normal_and_are_known_for_it() {
        for uri in [
            "file:///notes/../secret/key",
            "file:///notes/%2e%2e/secret/key",
            "file:///notes/.%2E/secret/key",
            "file:///notes/%252e%252e/secret/key",
            "file:///notes/%25252e./secret/key",
            "file:///notes/..;/secret/key",
            "file:///notes/..%2fsecret/key",
            "file:///notes/..%5Csecret\\key",
            "file:///./secret/key",
            "file:///%73ecret/key",
            "FILE:///secret/key",
            "file:////secret/key",
            "file:///secret//key",
            "file:///secret%2Fkey",
            "file:///secret/key#x",
            "file:///secret/key?x",
            "file:///secret/key%00",
            "file:///secret/\tkey",
            "file:///sec\nret/key",
            "file://localhost/secret/key",
            "file://any/secret/key",
            "file:/secret/key",
            "file:secret/key",
            "file:\\\\\\secret\\key",
        ] {
            assert!(!is_normal(uri), "{uri}");
            assert_eq!(normal_form(uri), "file:///secret/key", "{uri}");
        }
        for uri in [
            "HTTPS://example.com/a",
            "https://EXAMPLE.com/a",
            "https://example.com:443/a",
            "https://example.com:/a",
            "https://u@example.com/a",
            "https:/example.com/a",
            "https:///example.com/a",
        ] {
            assert!(!is_normal(uri), "{uri}");
            assert_eq!(normal_form(uri), "https://example.com/a", "{uri}");
        }
        let nested = "toolbooth+x:FILE:///a/../secret";
        assert!(!is_normal(nested));
        assert_eq!(normal_form(nested), "toolbooth+x:file:///secret");
        assert!(!is_normal("toolbooth+x:results/../a") && !is_normal("toolbooth+x:results//a#"));
    }

    #[test]
    fn what_is_no_uri_is_not_normal() {
        for uri in [
            "",
            "a",
            "/a",
            ":a",
            "1:a",
            "a b:c",
            "x:a b",
            "x:a%",
            "x:a%2",
            "x:a%zz",
            "x:%C0%AE",
            "x:%ff",
            "x:ü",
            "x:a\"",
            "x:{a}",
            "x:a|b",
            "x:\u{202e}",
            "x:?p=../a",
            "x:?p=..",
            "x:a%c3%bc",
            "https://example.com",
            "x://H/a",
            "x://@h/a",
            "x:/a/./b",
            "x:./a",
            "x:..",
        ] {
            assert!(!is_normal(uri), "{uri}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_normal_ones_stay(text: String, scheme in "[A-Za-z]{0,4}:/{0,3}") {
            for uri in [text.clone(), format!("{scheme}{text}")] {
                if is_normal(&uri) {
                    prop_assert_eq!(&normal_form(&uri), &uri);
                    prop_assert!(uri.is_ascii() && !uri.contains(['\\', '#', ' ']));
                    prop_assert!(!uri.contains("/../") && !uri.contains("/./"));
                }
            }
        }

        #[test]
        fn every_other_spelling_is_found_out(
            segments in prop::collection::vec("[a-z0-9._~-]{0,2}[a-z]", 1..5),
            at in 0_usize..5,
            how in 0_usize..9,
            web in any::<bool>(),
        ) {
            let root = if web { "https://host/" } else { "file:///" };
            let uri = format!("{root}{}", segments.join("/"));
            prop_assert!(is_normal(&uri), "{}", uri);
            let index = at % segments.len();
            let mut odd = segments.clone();
            let own = odd[index].clone();
            let (head, last) = own.split_at(own.len() - 1);
            let code = last.as_bytes()[0];
            odd[index] = match how {
                0 => format!("x/../{own}"),
                1 => format!("./{own}"),
                2 => format!("x/%2E%2e/{own}"),
                3 => format!("/{own}"),
                4 => format!("{head}%{code:02X}"),
                5 => format!("{head}%25{code:02x}"),
                6 => format!("x\\..\\{own}"),
                7 => format!("x%2F..%2f{own}"),
                _ => format!("{own}\u{7f}"),
            };
            let odd = format!("{root}{}", odd.join("/"));
            prop_assert!(!is_normal(&odd), "{}", odd);
            prop_assert_eq!(normal_form(&odd), uri);
        }
    }
}
