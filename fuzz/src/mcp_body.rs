//! Fuzzes the body of an MCP request: no panic, and a well-formed error for an invalid message.

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    toolbooth_server::mcp::fuzzing::body(bytes)
}
