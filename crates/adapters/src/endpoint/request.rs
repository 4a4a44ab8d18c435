//! Builds a request from a template: method, URL, query and body.
//!
//! Path: 7. Doc: execution.md#endpoints

use std::collections::BTreeSet;

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use url::Url;

use crate::error::{FillError, TemplateError};
use crate::template::{Piece, Template};

/// A template of a request; `{name}` in its parts is replaced by an argument.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestTemplate {
    method: Method,
    url: Template,
    query: Vec<(String, Template)>,
    body: Body,
}

#[derive(Debug, Clone, PartialEq)]
enum Body {
    /// No body, because the method has none.
    None,
    /// The arguments that no other part uses.
    Rest,
    /// A document.
    Document(Value),
}

/// A request without its headers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) body: Option<Value>,
}

impl RequestTemplate {
    /// Reads a template. The default method is `GET`, or `POST` with a body.
    ///
    /// # Errors
    /// [`TemplateError`], for the first part that cannot be read.
    pub fn parse(
        method: Option<&str>,
        url: &str,
        query: &[(String, String)],
        body: Option<Value>,
    ) -> Result<Self, TemplateError> {
        let method = match method {
            Some(method) => Method::from_bytes(method.to_uppercase().as_bytes())
                .map_err(|_| TemplateError::Method(method.to_owned()))?,
            None if body.is_some() => Method::POST,
            None => Method::GET,
        };
        let url = Template::parse(url)?;
        check_authority(&url)?;
        let query = query
            .iter()
            .map(|(name, text)| Ok((name.clone(), Template::parse(text)?)))
            .collect::<Result<_, TemplateError>>()?;
        let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
        let body = match body {
            Some(document) => {
                check_body(&document)?;
                Body::Document(document)
            }
            None if has_body => Body::Rest,
            None => Body::None,
        };
        Ok(Self { method, url, query, body })
    }

    /// Returns the request for these arguments.
    pub(crate) fn fill(&self, arguments: &Value) -> Result<Request, FillError> {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        let mut in_query = false;
        let mut text = String::new();
        for piece in &self.url.0 {
            match piece {
                Piece::Text(plain) => {
                    in_query |= plain.contains('?');
                    text.push_str(plain);
                }
                Piece::Placeholder(placeholder) => {
                    used.insert(placeholder.member());
                    let Some(value) = placeholder.look_up(arguments)? else { continue };
                    let value = placeholder.text(value)?;
                    text.push_str(&if in_query {
                        encoded(&value)
                    } else {
                        segment(&value, &placeholder.shown())?
                    });
                }
            }
        }
        let mut url = Url::parse(&text)?;
        for (name, template) in &self.query {
            used.extend(template.placeholders().map(|placeholder| placeholder.member()));
            let items = match template.alone() {
                Some(placeholder) => match placeholder.look_up(arguments)? {
                    Some(Value::Array(items)) => items
                        .iter()
                        .map(|item| placeholder.text(item))
                        .collect::<Result<Vec<_>, _>>()?,
                    Some(one) => vec![placeholder.text(one)?],
                    None => Vec::new(),
                },
                None => {
                    let plain = |_: &str, text: &str, _: &_| Ok(text.to_owned());
                    template.fill(arguments, plain)?.into_iter().collect()
                }
            };
            for item in items {
                url.query_pairs_mut().append_pair(name, &item);
            }
        }
        let body = match &self.body {
            Body::None => None,
            Body::Document(document) => filled(document, arguments)?,
            Body::Rest => {
                let rest: Map<String, Value> = arguments
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(name, _)| !used.contains(name.as_str()))
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                Some(Value::Object(rest))
            }
        };
        Ok(Request { method: self.method.clone(), url, body })
    }
}

/// Checks that arguments cannot choose the host or the port, which the operator sets.
fn check_authority(url: &Template) -> Result<(), TemplateError> {
    let Some(Piece::Text(start)) = url.0.first() else {
        return Err(TemplateError::HostFirst);
    };
    let rest = ["https://", "http://"].iter().find_map(|scheme| start.strip_prefix(scheme));
    let Some(rest) = rest else {
        return Err(TemplateError::Scheme);
    };
    if rest.is_empty() || rest.starts_with(['/', '\\', '?', '#', ':']) {
        return Err(TemplateError::NoHost);
    }
    if url.placeholders().any(|placeholder| placeholder.is_optional()) {
        return Err(TemplateError::OptionalInUrl);
    }
    if url.0.len() > 1 && !rest.contains(['/', '?']) {
        return Err(TemplateError::PlaceholderInHost);
    }
    Ok(())
}

fn check_body(document: &Value) -> Result<(), TemplateError> {
    match document {
        Value::String(text) => Template::parse(text).map(drop),
        Value::Array(items) => items.iter().try_for_each(check_body),
        Value::Object(members) => members.values().try_for_each(check_body),
        _ => Ok(()),
    }
}

/// Substitutes the arguments in a document. A text that consists of one placeholder becomes the
/// argument itself. `None` = an optional argument is missing.
fn filled(document: &Value, arguments: &Value) -> Result<Option<Value>, FillError> {
    Ok(match document {
        Value::String(text) => {
            let template = Template::parse(text)?;
            match template.alone() {
                Some(placeholder) => placeholder.look_up(arguments)?.cloned(),
                None => {
                    let plain = |_: &str, text: &str, _: &_| Ok(text.to_owned());
                    template.fill(arguments, plain)?.map(Value::String)
                }
            }
        }
        Value::Array(items) => {
            let items: Result<Vec<_>, FillError> =
                items.iter().map(|item| filled(item, arguments)).collect();
            Some(Value::Array(items?.into_iter().flatten().collect()))
        }
        Value::Object(members) => {
            let mut out = Map::new();
            for (name, member) in members {
                if let Some(value) = filled(member, arguments)? {
                    out.insert(name.clone(), value);
                }
            }
            Some(Value::Object(out))
        }
        other => Some(other.clone()),
    })
}

/// Whether a media type is JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let bare = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    bare == "application/json" || bare == "text/json" || bare.ends_with("+json")
}

/// Encodes a value as one segment of a path, and rejects one that leads elsewhere.
pub(crate) fn segment(value: &str, name: &str) -> Result<String, FillError> {
    if value.is_empty() || value == "." || value == ".." {
        return Err(FillError::NoSegment(name.to_owned()));
    }
    Ok(encoded(value))
}

/// All but the unreserved characters (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes all but unreserved characters as `%XX`.
pub(crate) fn encoded(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(
        url: &str,
        query: &[(&str, &str)],
        body: Option<Value>,
        arguments: Value,
    ) -> Result<Request, FillError> {
        let query: Vec<(String, String)> =
            query.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        RequestTemplate::parse(None, url, &query, body)?.fill(&arguments)
    }

    #[test]
    fn arguments_stand_where_the_template_says() {
        let made = request(
            "https://a.example/v1/{city}/now?lang={lang}",
            &[("q", "{q?}"), ("tag", "{tags}"), ("x", "<{n}>")],
            None,
            json!({"city": "São Paulo/../x", "lang": "a&b=c", "tags": ["1", "2"], "n": 12345678901234567890u64}),
        )
        .unwrap();
        assert_eq!(
            made.url.as_str(),
            "https://a.example/v1/S%C3%A3o%20Paulo%2F..%2Fx/now?lang=a%26b%3Dc&tag=1&tag=2&x=%3C12345678901234567890%3E"
        );
        assert_eq!((made.method, made.body), (Method::GET, None));
    }

    #[test]
    fn bodies_are_documents() {
        let body = json!({"to": "{to}", "all": ["{n}", "{gone?}"], "note": "for {to}", "x": "{gone?}", "fix": 1});
        let made =
            request("http://a.example/", &[], Some(body), json!({"to": "me", "n": 1.50})).unwrap();
        assert_eq!(made.method, Method::POST);
        let text = made.body.unwrap().to_string();
        assert_eq!(text, r#"{"to":"me","all":[1.5],"note":"for me","fix":1}"#);
        let rest = RequestTemplate::parse(Some("put"), "http://a.example/{id}", &[], None).unwrap();
        let made = rest.fill(&json!({"id": 7, "a": 1, "b": {"c": 2}})).unwrap();
        assert_eq!(made.body.unwrap(), json!({"a": 1, "b": {"c": 2}}));
    }

    #[test]
    fn arguments_never_choose_where_a_request_goes() {
        for url in [
            "https:///{x}",
            "http://?{x}",
            "https://a.example/{x?}",
            "https://{host}/x",
            "https://a.example{x}/",
            "{url}",
            "ftp://a.example/{x}",
            "https://a.example:{port}/",
        ] {
            assert!(RequestTemplate::parse(None, url, &[], None).is_err(), "{url}");
        }
        for value in ["..", ".", ""] {
            assert!(request("https://a.example/a/{x}/b", &[], None, json!({"x": value})).is_err());
        }
        let made = request("https://a.example/a/{x}", &[], None, json!({"x": "..%2f..\\..//evil"}))
            .unwrap();
        assert!(made.url.path().starts_with("/a/..%252f"), "{}", made.url);
    }
}
