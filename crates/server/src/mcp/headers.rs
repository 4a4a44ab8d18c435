//! Checks the headers that repeat parts of the body (MCP 2026-07-28, standard headers).
//!
//! Intermediaries route by these headers without reading the body, so both must agree.
//!
//! Path: 1. Doc: front-doors.md#headers

use http::HeaderMap;
use serde_json::Value;
use toolbooth_mcp::header_table::HeaderParam;
use toolbooth_mcp::{code, header};

use super::codec::Request;
use super::rpc_error::RpcError;

/// The value of a header, decoded as MCP encodes it.
enum Held<'h> {
    None,
    Text(std::borrow::Cow<'h, str>),
    Malformed,
}

fn held<'h>(headers: &'h HeaderMap, name: &str) -> Held<'h> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(name) { Held::Malformed } else { Held::None };
    };
    match value.to_str().ok().and_then(header::decoded) {
        Some(text) => Held::Text(text),
        None => Held::Malformed,
    }
}

fn mismatch(message: String) -> RpcError {
    RpcError::new(code::HEADER_MISMATCH, message)
}

/// Checks that the header `name` has the value `expected` from the body.
fn agrees(headers: &HeaderMap, name: &str, expected: &str) -> Result<(), RpcError> {
    match held(headers, name) {
        Held::Text(text) if text == expected => Ok(()),
        Held::Text(_) => Err(mismatch(format!("the header `{name}` disagrees with the body"))),
        Held::None => Err(mismatch(format!("the header `{name}` is missing"))),
        Held::Malformed => {
            Err(mismatch(format!("the header `{name}` must be there once, as text or Base64")))
        }
    }
}

/// Returns the value that `Mcp-Name` must repeat, if the body has it.
///
/// # Errors
/// `-32602` if it is not text.
pub(super) fn name(request: &Request) -> Result<Option<String>, RpcError> {
    let Some(member) = header::named_by(&request.method) else { return Ok(None) };
    Ok(request.params.member::<Option<String>>(member)?.flatten())
}

/// Compares the headers for version, method and name with the body.
///
/// # Errors
/// `-32020`.
pub(super) fn check_standard(
    headers: &HeaderMap,
    version: &str,
    method: &str,
    name: Option<&str>,
) -> Result<(), RpcError> {
    agrees(headers, header::VERSION, version)?;
    agrees(headers, header::METHOD, method)?;
    match name {
        Some(name) => agrees(headers, header::NAME, name),
        None => Ok(()),
    }
}

/// Compares the header for the method with a notification.
///
/// # Errors
/// `-32020`.
pub(super) fn check_notification(headers: &HeaderMap, method: &str) -> Result<(), RpcError> {
    agrees(headers, header::METHOD, method)
}

/// Returns the headers that repeat arguments.
pub(super) fn params(headers: &HeaderMap) -> HeaderMap {
    let prefix = header::PARAM_PREFIX.to_ascii_lowercase();
    let own = headers.iter().filter(|(name, _)| name.as_str().starts_with(&prefix));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Removes optional arguments that are `null` and repeated in headers. They count as absent,
/// because a `null` has no header.
pub(super) fn drop_nulls(params: &[HeaderParam], arguments: &mut Value) {
    for param in params.iter().filter(|own| !own.is_required) {
        let Some((last, path)) = param.path.split_last() else { continue };
        let around = path.iter().try_fold(&mut *arguments, |value, key| value.get_mut(key));
        if let Some(members) = around.and_then(Value::as_object_mut)
            && members.get(last).is_some_and(Value::is_null)
        {
            members.shift_remove(last);
        }
    }
}

/// Compares `Mcp-Param-*` headers with the arguments that the schema of a tool annotates with `x-mcp-header`.
/// Headers without an annotation are ignored.
///
/// # Errors
/// `-32020`.
pub(super) fn check_params(
    headers: &HeaderMap,
    params: &[HeaderParam],
    arguments: &Value,
) -> Result<(), RpcError> {
    for param in params {
        if let Some(name) = &param.header {
            check_param(headers, name, param.argument(arguments).unwrap_or(&Value::Null))?;
        }
    }
    Ok(())
}

fn check_param(headers: &HeaderMap, name: &str, argument: &Value) -> Result<(), RpcError> {
    let expected = match argument {
        Value::String(text) => text.clone(),
        Value::Bool(_) => argument.to_string(),
        Value::Number(number) => {
            let text = number.to_string();
            match held(headers, name) {
                Held::Text(header)
                    if decimal(&header).is_some_and(|own| Some(own) == decimal(&text)) =>
                {
                    return Ok(());
                }
                _ => text,
            }
        }
        _ => {
            return match held(headers, name) {
                Held::None => Ok(()),
                _ => Err(mismatch(format!("the header `{name}` has no argument in the body"))),
            };
        }
    };
    agrees(headers, name, &expected)
}

/// Returns the value of a JSON number: its sign, its digits without zeros at either end, and their
/// power of ten. Equal numbers have equal values, however large they are.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let number: serde_json::Number = serde_json::from_str(text).ok()?;
    let text = number.to_string();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.as_str()),
    };
    let (mantissa, power) = match text.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let shift = i64::try_from(fraction.len()).ok()?;
    let trimmed = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - trimmed.len()).ok()?;
    let power = power.checked_sub(shift)?.checked_add(zeros)?;
    let trimmed = trimmed.trim_start_matches('0');
    Some(if trimmed.is_empty() {
        (false, String::new(), 0)
    } else {
        (negative, trimmed.to_owned(), power)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn standard_headers_agree_with_the_body() {
        let check = |lines: &[(&str, &str)]| {
            check_standard(&headers(lines), "2026-07-28", "tools/call", Some("büro"))
                .map_err(|error| error.code)
        };
        let version = ("mcp-protocol-version", "2026-07-28");
        let method = ("mcp-method", "tools/call");
        let name = ("mcp-name", "=?base64?YsO8cm8=?=");
        assert_eq!(check(&[version, method, name]), Ok(()));
        for bad in [
            vec![version, method],
            vec![version, name],
            vec![method, name],
            vec![version, method, ("mcp-name", "other")],
            vec![version, method, ("mcp-name", "=?base64?!?=")],
            vec![version, method, name, name],
            vec![version, ("mcp-method", "tools/list"), name],
            vec![("mcp-protocol-version", "2025-11-25"), method, name],
        ] {
            assert_eq!(check(&bad), Err(-32_020), "{bad:?}");
        }
    }

    #[test]
    fn annotated_arguments_agree_and_unknown_headers_pass() {
        let schema = json!({ "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "deep": { "type": "object", "properties": {
                "count": { "type": "integer", "x-mcp-header": "Count" } } },
        } });
        let params = HeaderParam::all(&schema);
        let check = |lines: &[(&str, &str)], arguments: Value| {
            check_params(&headers(lines), &params, &arguments).is_ok()
        };
        assert!(check(&[("mcp-param-other", "x")], json!({})));
        assert!(check(&[("mcp-param-region", "eu")], json!({ "region": "eu" })));
        assert!(!check(&[("mcp-param-region", "us")], json!({ "region": "eu" })));
        assert!(!check(&[], json!({ "region": "eu" })));
        assert!(!check(&[("mcp-param-region", "eu")], json!({ "region": null })));
        let mut arguments = json!({ "region": null, "other": null, "deep": { "count": null } });
        drop_nulls(&params, &mut arguments);
        assert_eq!(arguments, json!({ "other": null, "deep": {} }));
        assert!(check(&[("mcp-param-count", "3")], json!({ "deep": { "count": 3 } })));
        assert!(check(&[("mcp-param-count", "3.0")], json!({ "deep": { "count": 3 } })));
        assert!(check(&[("mcp-param-count", "30e-1")], json!({ "deep": { "count": 3 } })));
        let large = json!({ "deep": { "count": 9_007_199_254_740_993_u64 } });
        assert!(check(&[("mcp-param-count", "9007199254740993.00")], large.clone()));
        assert!(!check(&[("mcp-param-count", "9007199254740992")], large));
        assert!(!check(&[("mcp-param-count", "3x")], json!({ "deep": { "count": 3 } })));
        assert!(!check(&[("mcp-param-count", "4")], json!({ "deep": { "count": 3 } })));
    }
}
