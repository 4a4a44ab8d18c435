//! Tests the adapters with real processes, networks and servers, one module for each subject.
//!
//! One program, so that it is linked once. It starts itself: as the launcher, as launchers that
//! fail, and as parts of a network; so it has a `main` of its own.
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

/// The longest time of one test: twice that of one wait, so that the wait itself tells what it was
/// for.
const LIMIT: Duration = Duration::from_secs(240);
/// The longest wait for one event.
const CEILING: Duration = Duration::from_secs(120);

/// What `event` gives.
///
/// # Panics
///
/// If it is not there after [`CEILING`]; says what was waited for.
async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(CEILING, event).await;
    waited.unwrap_or_else(|_| panic!("waited {} s: {what}", CEILING.as_secs()))
}

/// What another thread sends next.
///
/// # Panics
///
/// If it is not there after [`CEILING`]; says what was waited for.
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
    // One at a time: some count what runs below this process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit();
}
