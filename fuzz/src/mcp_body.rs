//! Any bytes as the body of an MCP request: no panic, and an error that can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| toolbooth_server::mcp::fuzzing::body(bytes));
