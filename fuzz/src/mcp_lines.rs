//! Fuzzes standard input of the MCP door: no panic, and reading ends.

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    toolbooth_server::mcp::fuzzing::lines(bytes)
}
