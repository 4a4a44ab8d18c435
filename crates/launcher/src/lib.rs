#![doc = include_str!("../README.md")]

mod cgroup;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
mod error;
mod init;
mod landlocked;
mod limits;
mod memory;
mod namespaces;
mod network;
pub mod order;
pub mod probe;
mod root;
mod supervisor;
mod sys;
mod syscalls;
pub mod wire;

#[cfg(feature = "client")]
pub use error::StartError;
pub use network::DNS_PORT;

/// The first command-line argument of a program that is started as the launcher.
pub const WORD: &str = "__sandbox";

/// Runs the launcher and exits, if this program was started as one; returns otherwise.
///
/// Call it first in `main`, before any thread is started.
pub fn entry() {
    if std::env::args_os().nth(1).is_some_and(|word| word == WORD) {
        let code = supervisor::serve_orders();
        std::process::exit(code);
    }
}
