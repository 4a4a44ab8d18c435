//! Measures the replay of recorded calls by other rules, on SQLite.
//!
//! The calls are made through the gateway over many connections at once. The gateway is the release binary: run
//! `cargo build --release && TOOLBOOTH_BIN=$PWD/target/release/toolbooth cargo bench -p toolbooth-tests --bench replay`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, missing_docs)]

use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

use serde_json::json;
use toolbooth_tests::{Place, RunningGateway, read_answer};

const CALLS: usize = 100_000;
const CLIENTS: usize = 32;
const ROUNDS: usize = 3;

const RULES: &str = "@id(\"all\") permit (principal, action, resource);\n";
/// One of ten calls is denied by the second rule.
const STRICTER: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"nines\") forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression like \"*9\" };
";

fn calls(gateway: &RunningGateway, client: usize) {
    let address = &gateway.address;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    for n in (client..CALLS).step_by(CLIENTS) {
        let body = json!({ "toolId": "calculator", "args": { "expression": format!("1+{n}") } });
        let body = body.to_string();
        let request = format!(
            "POST /v1/calls HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

fn main() {
    let place = Place::new();
    place.write("toolbooth.toml", "[policy]\nrules = \"rules.cedar\"\n");
    place.write("rules.cedar", RULES).write("stricter.cedar", STRICTER);
    let gateway = place.serve();
    let began = Instant::now();
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|client| {
            let gateway = &gateway;
            scope.spawn(move || calls(gateway, client));
        });
    });
    println!("{CALLS} calls recorded in {:.0} s", began.elapsed().as_secs_f64());
    gateway.stop();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let (found, exit) = place.json(&["policy", "replay", "--policy", "stricter.cedar"]);
        let took = began.elapsed().as_secs_f64();
        assert_eq!((&found["changed"], exit), (&json!(CALLS / 10), 1), "{}", found["reasons"]);
        println!("{} same, {} changed: {took:.1} s", found["same"], found["changed"]);
    }
}
