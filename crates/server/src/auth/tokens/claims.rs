//! Checks the claims of a verified token (RFC 7519, 4.1; RFC 9068) and makes the identity of its
//! subject.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use serde_json::{Map, Value};
use toolbooth_contracts::Identity;

use super::settings::IssuerSettings;
use crate::error::TokenRefusal;

/// The difference of clocks that is accepted, in milliseconds.
pub(super) const LEEWAY_MS: i64 = 30_000;
/// Maximum length of a subject (OpenID Connect Core, 2).
const SUBJECT_BYTES_MAX: usize = 255;
/// Maximum number of groups, and of scopes.
const WORDS_MAX: usize = 500;
/// Maximum length of the name of a group, and of a scope.
const WORD_BYTES_MAX: usize = 256;

/// The subject of a token, and the end of the token on the clock of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) identity: Identity,
    pub(super) audiences: Vec<String>,
    /// In milliseconds since 1970, with the leeway.
    pub(super) ends_at: i64,
}

/// Returns the issuer that the claims name.
pub(super) fn issuer(claims: &Map<String, Value>) -> Option<&str> {
    claims.get("iss").and_then(Value::as_str)
}

/// Checks the claims of a token of this issuer, except for the audiences.
///
/// # Errors
/// [`TokenRefusal`]: `Expired`, `NotYetValid` or `Claims`.
pub(super) fn subject(
    claims: &Map<String, Value>,
    settings: &IssuerSettings,
    now_ms: i64,
) -> Result<Subject, TokenRefusal> {
    let ends_at = time(claims, "exp")?.ok_or(TokenRefusal::Claims)?.saturating_add(LEEWAY_MS);
    if now_ms >= ends_at {
        return Err(TokenRefusal::Expired);
    }
    if let Some(begins_at) = time(claims, "nbf")?
        && now_ms < begins_at.saturating_sub(LEEWAY_MS)
    {
        return Err(TokenRefusal::NotYetValid);
    }
    let audiences = claims.get("aud").map_or(Ok(Vec::new()), words)?;
    // Such a token is bound to a key of the client, which a bearer does not prove (RFC 7800, 3.1).
    if claims.contains_key("cnf") {
        return Err(TokenRefusal::Claims);
    }
    let subject = claims.get("sub").and_then(Value::as_str).filter(|subject| {
        !subject.is_empty()
            && subject.len() <= SUBJECT_BYTES_MAX
            && !subject.chars().any(char::is_control)
    });
    let name = format!("jwt:{}#{}", settings.issuer, subject.ok_or(TokenRefusal::Claims)?);
    let identity = Identity::named(&name).ok_or(TokenRefusal::Claims)?;
    let groups = match &settings.groups_claim {
        Some(claim) => member(claims, claim).map_or(Ok(Vec::new()), words)?,
        None => Vec::new(),
    };
    let groups = groups.into_iter().map(|group| format!("{}/{group}", settings.name));
    let identity = identity.with_groups(groups.collect()).with_scopes(scopes(claims)?);
    Ok(Subject { identity, audiences, ends_at })
}

/// Returns a claim by its name, or by a JSON pointer (RFC 6901) into the claims.
fn member<'c>(claims: &'c Map<String, Value>, claim: &str) -> Option<&'c Value> {
    let Some((first, rest)) =
        claim.strip_prefix('/').map(|path| path.split_once('/').unwrap_or((path, "")))
    else {
        return claims.get(claim);
    };
    let found = claims.get(&first.replace("~1", "/").replace("~0", "~"))?;
    if rest.is_empty() { Some(found) } else { found.pointer(&format!("/{rest}")) }
}

/// Returns the time of a claim in milliseconds since 1970 (NumericDate; RFC 7519, 2).
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, TokenRefusal> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0).ok_or(TokenRefusal::Claims)?;
    // `as` saturates, which is a time that never comes.
    Ok(Some((seconds * 1_000.0) as i64))
}

/// Returns the texts of a claim that is a text or a list of texts. A malformed one is not read in
/// part: fewer groups can mean other rights.
fn words(value: &Value) -> Result<Vec<String>, TokenRefusal> {
    let all: Vec<Option<&str>> = match value {
        Value::String(text) => vec![Some(text)],
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => return Err(TokenRefusal::Claims),
    };
    if all.len() > WORDS_MAX {
        return Err(TokenRefusal::Claims);
    }
    let word = |text: Option<&str>| {
        let text = text.filter(|text| text.len() <= WORD_BYTES_MAX && !text.is_empty());
        text.map(str::to_owned).ok_or(TokenRefusal::Claims)
    };
    all.into_iter().map(word).collect()
}

/// Returns the scopes: `scope` with words separated by spaces (RFC 9068, 2.2.3), or `scp` of some
/// issuers.
fn scopes(claims: &Map<String, Value>) -> Result<Vec<String>, TokenRefusal> {
    let Some(value) = claims.get("scope").or_else(|| claims.get("scp")) else {
        return Ok(Vec::new());
    };
    match value {
        Value::String(text) => {
            let all = text.split(' ').filter(|word| !word.is_empty());
            words(&all.collect::<Vec<_>>().into())
        }
        _ => words(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn of(claims: &Value) -> Result<Subject, TokenRefusal> {
        let settings = IssuerSettings {
            name: "own".into(),
            issuer: "https://id.example".into(),
            jwks_uri: None,
            audiences: vec!["gateway".into()],
            resource: Some("https://gateway.example/mcp".into()),
            groups_claim: Some("/realm/roles".into()),
        };
        let subject = subject(claims.as_object().unwrap(), &settings, NOW)?;
        match settings.admits(&subject.audiences, Some("work")) {
            true => Ok(subject),
            false => Err(TokenRefusal::Audience),
        }
    }

    fn with(change: &Value) -> Value {
        let mut claims = json!({ "sub": "bob", "aud": "gateway", "exp": NOW / 1_000 + 60 });
        let members = claims.as_object_mut().unwrap();
        for (name, value) in change.as_object().unwrap() {
            match value.is_null() {
                true => drop(members.remove(name)),
                false => drop(members.insert(name.clone(), value.clone())),
            }
        }
        claims
    }

    #[test]
    fn a_subject_has_name_groups_and_scopes() {
        let own = json!({ "scope": "b a", "realm": { "roles": ["x"] }, "aud": ["z", "gateway"],
            "nbf": NOW / 1_000, "iat": 1 });
        let Subject { identity, ends_at, .. } = of(&with(&own)).unwrap();
        assert_eq!(identity.name, "jwt:https://id.example#bob");
        assert_eq!(
            (identity.groups, identity.scopes),
            (vec!["own/x".into()], vec!["a".into(), "b".into()])
        );
        assert_eq!(ends_at, NOW + 60_000 + LEEWAY_MS);
        assert_eq!(of(&with(&json!({ "scp": ["a"] }))).unwrap().identity.scopes, ["a"]);
        assert_eq!(of(&with(&json!({ "scp": "a b" }))).unwrap().identity.scopes, ["a", "b"]);
        // Fractions of seconds are allowed.
        assert!(of(&with(&json!({ "exp": NOW as f64 / 1_000.0 + 0.5 }))).is_ok());
    }

    #[test]
    fn claims_that_do_not_fit_are_refused() {
        let second = NOW / 1_000;
        for (change, refusal) in [
            (json!({ "exp": second - 30 }), TokenRefusal::Expired),
            (json!({ "exp": 0 }), TokenRefusal::Expired),
            (json!({ "nbf": second + 31 }), TokenRefusal::NotYetValid),
            (json!({ "aud": null }), TokenRefusal::Audience),
            (json!({ "aud": [] }), TokenRefusal::Audience),
            (json!({ "aud": "https://gateway.example/mcp/" }), TokenRefusal::Audience),
            (json!({ "aud": ["other", "Gateway"] }), TokenRefusal::Audience),
            (json!({ "aud": "https://gateway.example/mcp/other" }), TokenRefusal::Audience),
            (json!({ "aud": "https://gateway.example/mcpwork" }), TokenRefusal::Audience),
            (json!({ "aud": "https://gateway.example" }), TokenRefusal::Audience),
            (json!({ "aud": { "a": "gateway" } }), TokenRefusal::Claims),
            (json!({ "exp": null }), TokenRefusal::Claims),
            (json!({ "exp": "1900000000" }), TokenRefusal::Claims),
            (json!({ "exp": -1 }), TokenRefusal::Claims),
            (json!({ "nbf": "0" }), TokenRefusal::Claims),
            (json!({ "sub": null }), TokenRefusal::Claims),
            (json!({ "sub": "" }), TokenRefusal::Claims),
            (json!({ "sub": 7 }), TokenRefusal::Claims),
            (json!({ "sub": "a\nb" }), TokenRefusal::Claims),
            (json!({ "sub": "a".repeat(256) }), TokenRefusal::Claims),
            (json!({ "cnf": { "jkt": "a" } }), TokenRefusal::Claims),
            (json!({ "scope": ["a", 1] }), TokenRefusal::Claims),
            (json!({ "scope": 1 }), TokenRefusal::Claims),
            (json!({ "realm": { "roles": ["a", 1] } }), TokenRefusal::Claims),
            (json!({ "realm": { "roles": { "a": 1 } } }), TokenRefusal::Claims),
            (json!({ "realm": { "roles": vec!["a"; 501] } }), TokenRefusal::Claims),
            (json!({ "realm": { "roles": ["a".repeat(257)] } }), TokenRefusal::Claims),
        ] {
            assert_eq!(of(&with(&change)), Err(refusal), "{change}");
        }
        for audience in ["https://gateway.example/mcp", "https://gateway.example/mcp/work"] {
            assert!(of(&with(&json!({ "aud": audience }))).is_ok(), "{audience}");
        }
        // Within the leeway.
        assert!(of(&with(&json!({ "exp": second - 29, "nbf": second + 30 }))).is_ok());
        assert!(of(&with(&json!({ "realm": {} }))).unwrap().identity.groups.is_empty());
    }
}
