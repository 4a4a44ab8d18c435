//! Measures call latency while the HTTP door holds 10,000 idle and slow connections.
//!
//! Also measures the memory of half-sent bodies. The gateway is the release binary: run `cargo
//! build --release` first. Needs a limit of 20,000 open files.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use toolbooth_tests::{Place, read_answer};

const CONNECTIONS: usize = 10_000;
const ROUNDS: usize = 5;
const CALLS: usize = 2_000;
const CALL: &str = r#"{"toolId":"calculator","args":{"expression":"6*7"}}"#;

struct Caller {
    stream: TcpStream,
    request: Vec<u8>,
}

impl Caller {
    fn new(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let request = format!(
            "POST /v1/calls HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{CALL}",
            CALL.len()
        );
        Self { stream, request: request.into_bytes() }
    }

    fn call(&mut self) -> Duration {
        let began = Instant::now();
        self.stream.write_all(&self.request).unwrap();
        let answer = read_answer(&mut self.stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        began.elapsed()
    }

    /// Returns the median and the 99th percentile, in milliseconds.
    fn measure(&mut self) -> (f64, f64) {
        let mut times: Vec<Duration> = (0..CALLS).map(|_| self.call()).collect();
        times.sort();
        let at = |share: usize| times.get(CALLS * share / 100).unwrap().as_secs_f64() * 1e3;
        (at(50), at(99))
    }
}

/// Opens the connections. Half of them are idle; half send a byte of a head every half second,
/// evenly spread, and reconnect when they are refused.
fn crowd(address: &str, ended: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<()>> {
    let (ready, readied) = std::sync::mpsc::channel();
    let threads = [false, true].map(|slow| {
        let (address, ended, ready) = (address.to_owned(), Arc::clone(ended), ready.clone());
        std::thread::spawn(move || {
            let connect = || TcpStream::connect(&address).unwrap();
            let mut held: Vec<TcpStream> = (0..CONNECTIONS / 2).map(|_| connect()).collect();
            ready.send(()).unwrap();
            let mut next = 0;
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                if !slow {
                    continue;
                }
                for _ in 0..held.len() / 500 {
                    next = (next + 1) % held.len();
                    let stream = held.get_mut(next).unwrap();
                    if stream.write_all(b"G").is_err() {
                        *stream = connect();
                    }
                }
            }
        })
    });
    threads.iter().for_each(|_| readied.recv().unwrap());
    threads.into()
}

fn place() -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", "[store]\ndurability = \"memory\"\n");
    place
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap()
}

fn latency() {
    let place = place();
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    let mut memory = 0;
    for _ in 0..ROUNDS {
        let gateway = place.serve();
        let mut caller = Caller::new(&gateway.address);
        caller.measure();
        alone.push(caller.measure());
        let ended = Arc::new(AtomicBool::new(false));
        let threads = crowd(&gateway.address, &ended);
        // Connections are accepted in order, so all others are accepted when this call returns.
        Caller::new(&gateway.address).call();
        crowded.push(caller.measure());
        memory = gateway.memory_mib("VmRSS:");
        ended.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    }
    let of = |rounds: &[(f64, f64)], which: fn(&(f64, f64)) -> f64| {
        median(rounds.iter().map(which).collect())
    };
    println!("| connections beside the caller's | median | p99 |");
    println!("| --- | --: | --: |");
    for (name, rounds) in [("none", &alone), ("10,000", &crowded)] {
        let (p50, p99) = (of(rounds, |round| round.0), of(rounds, |round| round.1));
        println!("| {name} | {p50:.2} ms | {p99:.2} ms |");
    }
    println!("memory with 10,000 connections: {memory} MiB");
}

fn bodies() {
    let place = place();
    let gateway = place.serve();
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 8388608\r\n\r\n",
        gateway.address
    );
    let half = vec![b' '; 8_388_600];
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        // The gateway can close the connection before it has read a refused body.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&half));
        held.push(stream);
    }
    println!("200 bodies of 8 MiB, half-sent: {} MiB at most", gateway.memory_mib("VmHWM:"));
}

fn main() {
    let program = toolbooth_tests::target().join("release/toolbooth");
    assert!(program.is_file(), "build it first: cargo build --release");
    let chosen = std::env::var_os("TOOLBOOTH_BIN").is_some_and(|chosen| *chosen == *program);
    assert!(chosen, "say so: TOOLBOOTH_BIN={}", program.display());
    latency();
    bodies();
}
