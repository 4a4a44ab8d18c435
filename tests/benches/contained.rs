//! Measures the cost of sandboxing.
//!
//! Runs `/bin/true` bare, below the launcher, sandboxed, and sandboxed with a network, in turns, for a small
//! gateway and for one of 1 GiB. Compares bytes per second through the relay with a direct connection.
//!
//! The launcher is the release binary: run `cargo build --release` first.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::process::{self, Bounds};
use toolbooth_adapters::sandbox::{default_profile, server_profile};
use toolbooth_adapters::secrets::Setting;
use toolbooth_adapters::{CommandLine, ProgramEnd};
use toolbooth_contracts::Conversation;
use toolbooth_contracts::sandbox::{NetProfile, SandboxProfile};

const ROUNDS: usize = 300;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |middle| middle.as_secs_f64() * 1e3)
}

/// Bytes of one transfer.
const TRANSFER_BYTES: usize = 512 << 20;
const TRANSFERS: usize = 7;

/// Receives all bytes, then prints their number and the seconds that the transfer took.
const RECEIVER: &str = "import socket, sys, time
buffer = bytearray(1 << 18)
stream = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
began, count = time.monotonic(), 0
while n := stream.recv_into(buffer): count += n
print(count, time.monotonic() - began)
";

/// Starts a server that sends the bytes of one transfer to every client.
fn sender() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let block = vec![0u8; 1 << 18];
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for _ in 0..TRANSFER_BYTES / block.len() {
                std::io::Write::write_all(&mut stream, &block).unwrap();
            }
        }
    });
    port
}

/// Returns median bytes per second, direct and through the relay, measured in turns.
async fn transfers(launcher: &Launcher) -> (f64, f64) {
    let port = sender();
    let argv = ["/usr/bin/python3", "-c", RECEIVER, &port.to_string()];
    let argv = argv.map(|word| Setting::from(word.to_owned())).to_vec();
    let line = CommandLine { argv, cwd: Some("/usr".into()), ..CommandLine::default() };
    let net = NetProfile { hosts: vec![format!("127.0.0.1:{port}")] };
    let profile = SandboxProfile { net: Some(net), ..default_profile() };
    let (conversation, _cancel) = Conversation::detached();
    let (mut direct, mut relayed) = (Vec::new(), Vec::new());
    for _ in 0..TRANSFERS {
        for (profile, rates) in [(None, &mut direct), (Some(&profile), &mut relayed)] {
            let bounds = Bounds { profile, ..Bounds::free(1000) };
            let done =
                process::run(launcher, &line, Vec::new(), bounds, &conversation).await.unwrap();
            let text = String::from_utf8(done.stdout).unwrap();
            let (count, seconds) = text.trim().split_once(' ').unwrap();
            assert_eq!(count.parse(), Ok(TRANSFER_BYTES));
            rates.push(TRANSFER_BYTES as f64 / seconds.parse::<f64>().unwrap());
        }
    }
    let middle = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or_default()
    };
    (middle(&mut direct), middle(&mut relayed))
}

async fn measure(launcher: &Launcher) -> [f64; 4] {
    let line = CommandLine { argv: vec!["/bin/true".into()], ..CommandLine::default() };
    let (profile, server) = (default_profile(), server_profile());
    let (conversation, _cancel) = Conversation::detached();
    let (mut bare, mut below) = (Vec::new(), Vec::new());
    let (mut contained, mut networked) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let done = tokio::process::Command::new("/bin/true").output().await.unwrap();
        bare.push(began.elapsed());
        assert!(done.status.success());
        for (profile, times) in
            [(None, &mut below), (Some(&profile), &mut contained), (Some(&server), &mut networked)]
        {
            let began = Instant::now();
            let bounds = Bounds { profile, ..Bounds::free(1000) };
            let done =
                process::run(launcher, &line, Vec::new(), bounds, &conversation).await.unwrap();
            times.push(began.elapsed());
            assert_eq!(done.ended, ProgramEnd::Exit(0));
        }
    }
    [bare, below, contained, networked].map(median)
}

fn main() {
    let program = toolbooth_tests::target().join("release/toolbooth");
    assert!(program.is_file(), "build it first: cargo build --release");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = Launcher::of(program, None);
        launcher.primitives().await.unwrap();
        println!(
            "| gateway | bare | below the launcher | contained | with a network | contained - bare |"
        );
        println!("| --- | --: | --: | --: | --: | --: |");
        let mut ballast: Vec<u8> = Vec::new();
        for (name, bytes) in [("small", 0), ("1 GiB", 1 << 30)] {
            ballast.resize(bytes, 1);
            let [bare, below, contained, networked] = measure(&launcher).await;
            let (more, most) = (contained - bare, networked - bare);
            println!(
                "| {name} | {bare:.1} ms | {below:.1} ms | {contained:.1} ms | {networked:.1} ms | {more:.1} ms, with a network {most:.1} ms |"
            );
        }
        assert!(ballast.iter().all(|byte| *byte == 1));
        let (direct, relayed) = transfers(&launcher).await;
        println!(
            "relay: {:.2} GB/s direct, {:.2} GB/s through the relay, {:.2} of direct",
            direct / 1e9,
            relayed / 1e9,
            relayed / direct
        );
    });
}
