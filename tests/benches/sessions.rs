//! Measures what sessions of MCP cost: 1,000,000 are begun, and 10,000 of them are held open at a time.
//!
//! The gateway is the release binary: `cargo build --release && TOOLBOOTH_BIN=$PWD/target/release/toolbooth cargo bench
//! -p toolbooth-tests --bench sessions`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used)]

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use toolbooth_tests::mcp::initialize;
use toolbooth_tests::{Place, read_answer};

const SESSIONS: u32 = 1_000_000;
const HELD: u32 = 10_000;
/// The numbers of sessions after which the gateway is measured.
const MEASURED: [u32; 7] = [HELD, 2 * HELD, 50_000, 100_000, 250_000, 500_000, SESSIONS];

fn main() {
    let program = toolbooth_tests::target().join("release/toolbooth");
    let chosen = std::env::var_os("TOOLBOOTH_BIN").is_some_and(|chosen| *chosen == *program);
    assert!(chosen, "build it and say so: TOOLBOOTH_BIN={}", program.display());
    let place = Place::new();
    place.write("toolbooth.toml", &format!("[http]\nsessions_per_caller_max = {HELD}\n"));
    let gateway = place.serve();
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let body = initialize(1, "2025-11-25").to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        gateway.address,
        body.len()
    );
    println!("| sessions begun | processor time of one | memory |");
    println!("| --- | --: | --: |");
    let (mut begun, mut began, mut before) = (0, Instant::now(), gateway.cpu());
    for number in 1..=SESSIONS {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        if MEASURED.contains(&number) {
            let own = gateway.cpu();
            let each = (own - before).as_secs_f64() * 1e6 / f64::from(number - begun);
            let memory = gateway.memory_mib("VmRSS:");
            println!("| {number} | {each:.0} µs | {memory} MiB |");
            eprintln!("{:.1} s", began.elapsed().as_secs_f64());
            (begun, began, before) = (number, Instant::now(), own);
        }
    }
}
