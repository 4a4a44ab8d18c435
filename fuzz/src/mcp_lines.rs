//! Fuzzes standard input of the MCP door: no panic, and reading comes to an end.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| toolbooth_server::mcp::fuzzing::lines(bytes));
