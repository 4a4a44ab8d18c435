//! Finds the tool set that the path of a request names.
//!
//! Doc: front-doors.md#tool-sets

/// Whether a text can be the name of a tool set.
pub(crate) fn is_toolset(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Returns the tool set that the path of a request names.
pub(crate) fn toolset_of(path: &str) -> Option<&str> {
    path.strip_prefix("/mcp/").filter(|name| is_toolset(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_endpoint_of_a_tool_set_names_it() {
        assert_eq!(toolset_of("/mcp/work-1"), Some("work-1"));
        for path in ["/mcp", "/mcp/", "/mcp/a/b", "/mcp/a%20b", "/v1/tools", "/mcp/a.b"] {
            assert_eq!(toolset_of(path), None, "{path}");
        }
    }
}
