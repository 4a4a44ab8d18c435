//! Measures what credentials add to a call, and whether time tells hidden tools from unknown ones.
//!
//! The gateway is the release binary: run `cargo build --release` first.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used)]

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use toolbooth_tests::issuer::Issuer;
use toolbooth_tests::{Place, RunningGateway, read_answer};

const ROUNDS: usize = 9;
const CALLS: usize = 3_000;
const INTERLEAVED: usize = 10_000;
/// The calls of which one median is taken.
const BLOCK: usize = 500;

/// One connection that repeats one request.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    status: &'static str,
}

impl Connection {
    fn new(
        gateway: &RunningGateway,
        token: Option<&str>,
        tool: &str,
        status: &'static str,
    ) -> Self {
        let address = &gateway.address;
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let body = match tool {
            "calculator" => json!({ "toolId": tool, "args": { "expression": "6*7" } }),
            _ => json!({ "toolId": tool, "args": {} }),
        }
        .to_string();
        let credentials =
            token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "POST /v1/calls HTTP/1.1\r\nHost: {address}\r\n{credentials}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { stream, request: request.into_bytes(), status }
    }

    fn call(&mut self) -> Duration {
        let began = Instant::now();
        self.stream.write_all(&self.request).unwrap();
        let answer = read_answer(&mut self.stream);
        assert!(answer.starts_with(self.status), "{answer}");
        began.elapsed()
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: Vec<f64>) -> f64 {
    let values = sorted(values);
    values.get(values.len() / 2).copied().unwrap()
}

fn place(issuer: &Issuer) -> Place {
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!(
            "[store]\ndurability = \"process\"\n[auth.issuers.own]\nissuer = \"{}\"\n\
             [callers.team]\nmatch = [\"key:one\", \"jwt:{}#bob\"]\ntools = [\"calculator\"]\n\
             grants = [\"*\"]\n",
            issuer.url, issuer.url
        ),
    );
    place
}

fn credentials() {
    let issuer = Issuer::start();
    let place = place(&issuer);
    let made = place.json(&["keys", "create", "one"]).0;
    let key = made["key"].as_str().unwrap();
    let gateway = place.serve();
    let token = issuer.token(&issuer.claims(&gateway.url()));
    let mut ways = [
        ("none (`local`)", None),
        ("an API key", Some(key)),
        ("an access token", Some(token.as_str())),
    ]
    .map(|(name, token)| (name, Connection::new(&gateway, token, "calculator", "HTTP/1.1 200")));
    let mut found = vec![Vec::new(); ways.len()];
    for round in 0..=ROUNDS {
        for ((_, connection), times) in ways.iter_mut().zip(&mut found) {
            let before = gateway.cpu();
            for _ in 0..CALLS {
                connection.call();
            }
            // The first round warms up.
            if round > 0 {
                times.push((gateway.cpu() - before).as_secs_f64() * 1e6 / CALLS as f64);
            }
        }
    }
    let none = found.first().cloned().unwrap();
    println!("| credentials | processor time of a call | against none, of the same round |");
    println!("| --- | --: | --: |");
    for ((name, _), times) in ways.iter().zip(found) {
        let ratios = sorted(times.iter().zip(&none).map(|(own, none)| own / none).collect());
        let (least, most) = (ratios.first().unwrap(), ratios.last().unwrap());
        let (own, ratio) = (median(times), median(ratios.clone()));
        println!("| {name} | {own:.0} µs | {ratio:.2} ({least:.2} to {most:.2}) |");
    }
}

fn hidden() {
    let issuer = Issuer::start();
    let place = place(&issuer);
    let made = place.json(&["keys", "create", "one"]).0;
    let key = made["key"].as_str().unwrap();
    let gateway = place.serve();
    // The third is another unknown one: its difference from the second is the spread.
    let names = ["doc_parser", "doc_writer", "doc_reader"];
    let mut ways = names.map(|tool| Connection::new(&gateway, Some(key), tool, "HTTP/1.1 404"));
    let mut found = vec![Vec::new(); ways.len()];
    for at in 0..INTERLEAVED {
        // In turns, so that none is always the first.
        for turn in 0..ways.len() {
            let which = (at + turn) % ways.len();
            let time = ways.get_mut(which).unwrap().call().as_secs_f64() * 1e6;
            found.get_mut(which).unwrap().push(time);
        }
    }
    println!("| tool | median | p90 | median against the first unknown one, per {BLOCK} calls |");
    println!("| --- | --: | --: | --: |");
    let medians = |times: &[f64]| -> Vec<f64> {
        times.chunks(BLOCK).map(|block| median(block.to_vec())).collect()
    };
    let unknown = medians(found.get(1).unwrap());
    for (name, times) in ["hidden", "unknown", "another unknown"].iter().zip(found) {
        let ratios: Vec<f64> =
            medians(&times).iter().zip(&unknown).map(|(own, other)| own / other).collect();
        let ratios = sorted(ratios);
        let times = sorted(times);
        let at = |share: usize| times.get(times.len() * share / 100).unwrap();
        let (least, most) = (ratios.first().unwrap(), ratios.last().unwrap());
        let middle = median(ratios.clone());
        println!(
            "| {name} | {:.1} µs | {:.1} µs | {middle:.3} ({least:.3} to {most:.3}) |",
            at(50),
            at(90)
        );
    }
}

fn main() {
    credentials();
    println!();
    hidden();
}
