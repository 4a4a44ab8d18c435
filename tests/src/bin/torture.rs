//! Runs the fault scenarios of `toolbooth_tests::torture` in full.
//!
//! `cargo xtask torture` builds and starts this program.

use toolbooth_tests::{approval_kills, child_kills, history_kills, torture};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, standard: u64| {
        words.get(at).and_then(|word| word.parse().ok()).unwrap_or(standard)
    };
    let seed = number(2, 1);
    match words.first().map(String::as_str) {
        Some("kills") => torture::kills(number(1, 300), seed),
        Some("children") => child_kills::children(number(1, 2_000), seed),
        Some("approvals") => approval_kills::approvals(number(1, 300), seed),
        Some("history") => history_kills::history(number(1, 300), seed),
        Some("both") => history_kills::both(number(1, 300), seed),
        Some("io") => torture::io_errors(number(1, 400), 1),
        Some("disks") => torture::disks(),
        Some("outages") => torture::server_outages(),
        Some("replicas") => torture::replicas(64, 200, number(1, 20), seed),
        Some("drops") => torture::dropped_answers(),
        None | Some("all") => {
            torture::kills(number(1, 300), seed);
            child_kills::children(2_000, seed);
            approval_kills::approvals(300, seed);
            history_kills::history(300, seed);
            history_kills::both(300, seed);
            torture::io_errors(400, 1);
            torture::disks();
            torture::server_outages();
            torture::replicas(64, 200, 20, seed);
            torture::dropped_answers();
        }
        Some(_) => {
            eprintln!(
                "usage: torture [all|kills|children|approvals|history|both|io|disks|outages|replicas|drops] [COUNT] [SEED]"
            );
            std::process::exit(2);
        }
    }
}
