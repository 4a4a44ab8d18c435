//! Tests the adapters with real processes, networks and servers, one module for each subject.
//!
//! All modules are one program, so that it is linked once. It starts itself as the launcher, as
//! launchers that fail, and as parts of a network, and therefore has its own `main`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

/// Lists async functions of a module as tests.
macro_rules! trials {
    ($module:literal; $($name:ident),+ $(,)?) => {
        vec![$(crate::trial(concat!($module, "::", stringify!($name)), || Box::pin($name()))),+]
    };
}

#[path = "support/calls.rs"]
mod calls;
mod endpoints;
mod launcher_faults;
mod mcp_http;
mod mcp_stdio;
mod networks;
mod processes;

/// Timeout of one test: twice that of one wait, so that the wait expires first and reports its
/// purpose.
const LIMIT: Duration = Duration::from_secs(240);
/// Timeout of the wait for one event.
const CEILING: Duration = Duration::from_secs(120);

/// Returns the result of `event`.
///
/// # Panics
///
/// If it does not arrive within [`CEILING`]; the message contains `what`.
async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(CEILING, event).await;
    waited.unwrap_or_else(|_| panic!("waited {} s: {what}", CEILING.as_secs()))
}

/// Returns the next value that another thread sends.
///
/// # Panics
///
/// If it does not arrive within [`CEILING`]; the message contains `what`.
fn next<T>(what: &str, sent: &mpsc::Receiver<T>) -> T {
    let waited = sent.recv_timeout(CEILING);
    waited.unwrap_or_else(|error| panic!("waited up to {} s: {what}: {error}", CEILING.as_secs()))
}

fn trial(name: &str, test: fn() -> Pin<Box<dyn Future<Output = ()>>>) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let ended = runtime.block_on(async { tokio::time::timeout(LIMIT, test()).await });
        ended.map_err(|_| format!("not at its end after {} s", LIMIT.as_secs()).into())
    })
}

fn main() {
    launcher_faults::entry();
    toolbooth_launcher::entry();
    networks::entry();
    let trials = [
        endpoints::trials(),
        launcher_faults::trials(),
        mcp_http::trials(),
        mcp_stdio::trials(),
        networks::trials(),
        processes::trials(),
    ];
    // One at a time: some tests count the processes below this one.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit();
}
