//! What containment costs: `/bin/true` bare, below the launcher, and contained, in turns, by a small
//! gateway and by one of a gibibyte.
//!
//! The launcher is the released binary: `cargo build --release` first.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::process::{self, Bounds, CommandLine};
use toolbooth_adapters::sandbox::default_profile;
use toolbooth_contracts::Conversation;

const ROUNDS: usize = 300;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |middle| middle.as_secs_f64() * 1e3)
}

async fn measure(launcher: &Launcher) -> (f64, f64, f64) {
    let line = CommandLine { argv: vec!["/bin/true".into()], ..CommandLine::default() };
    let profile = default_profile();
    let (conversation, _cancel) = Conversation::detached();
    let (mut bare, mut below, mut contained) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let done = tokio::process::Command::new("/bin/true").output().await.unwrap();
        bare.push(began.elapsed());
        assert!(done.status.success());
        for (profile, times) in [(None, &mut below), (Some(&profile), &mut contained)] {
            let began = Instant::now();
            let bounds = Bounds { profile, ..Bounds::free(1000) };
            let done =
                process::run(launcher, &line, Vec::new(), bounds, &conversation).await.unwrap();
            times.push(began.elapsed());
            assert_eq!(done.ended, process::Ended::Exit(0));
        }
    }
    (median(bare), median(below), median(contained))
}

fn main() {
    let program = toolbooth_tests::target().join("release/toolbooth");
    assert!(program.is_file(), "build it first: cargo build --release");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = Launcher::of(program, None);
        launcher.primitives().await.unwrap();
        println!("| gateway | bare | below the launcher | contained | contained - bare |");
        println!("| --- | --: | --: | --: | --: |");
        let mut ballast: Vec<u8> = Vec::new();
        for (name, bytes) in [("small", 0), ("1 GiB", 1 << 30)] {
            ballast.resize(bytes, 1);
            let (bare, below, contained) = measure(&launcher).await;
            let more = contained - bare;
            println!(
                "| {name} | {bare:.1} ms | {below:.1} ms | {contained:.1} ms | {more:.1} ms |"
            );
        }
        assert!(ballast.iter().all(|byte| *byte == 1));
    });
}
