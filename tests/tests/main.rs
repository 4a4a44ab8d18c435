//! Tests of the whole gateway, one module for each subject.
//!
//! All tests are one program, so that it is linked once. Each test runs in a separate process.

mod access_tokens;
mod approvals;
mod callers;
mod cases;
mod commands;
mod contained;
mod door;
mod examples;
mod first_use;
mod foreign;
mod gateway;
mod given_secrets;
mod history;
mod hooks;
mod import;
mod import_trial;
mod journey;
mod mcp_door;
mod operator_socket;
mod postgres;
mod postgres_windows;
mod real_clients;
mod records;
mod registry;
mod rehearsal;
mod rules;
mod schedules;
mod servers;
mod surfaces;
mod tampering;
mod tls;
mod torture;
mod trust;
mod upstreams;
