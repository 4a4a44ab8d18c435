#![doc = include_str!("../README.md")]

mod cgroup;
mod inside;
mod landlocked;
mod limits;
mod memory;
mod network;
pub mod order;
mod outside;
pub mod probe;
mod root;
mod sys;
mod syscalls;
pub mod wire;

pub use network::DNS_PORT;

/// The first argument by which a program says that it is started as the launcher.
pub const WORD: &str = "__sandbox";

/// Becomes the launcher where this program was started as one, and does not come back then.
///
/// To be called first thing in `main`, before any thread is started.
pub fn entry() {
    if std::env::args_os().nth(1).is_some_and(|word| word == WORD) {
        let code = outside::stand();
        std::process::exit(code);
    }
}
