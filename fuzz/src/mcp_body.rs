//! Fuzzes the body of an MCP request: no panic, and a well-formed error for an invalid message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| toolbooth_server::mcp::fuzzing::body(bytes));
