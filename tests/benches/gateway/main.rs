//! Measures the whole gateway beside its upstream, called directly, and beside a reverse proxy that does nothing else.
//!
//! All are measured in turns, so that other load of the machine affects all of them. `cargo xtask bench` builds the
//! gateway, runs this, and writes the tables to `docs/benchmarks.md`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used, clippy::panic)]

mod load;
mod pipe;
mod report;
mod servers;
mod variants;

use std::io::Write;
use std::time::{Duration, Instant};

use load::{Era, Target, Work};
use report::{Row, Samples};
use servers::{ECHO, Server};
use toolbooth_tests::{Place, RunningGateway};

/// The tools of a server, where its list is measured.
const MANY_TOOLS: usize = 5_000;
/// The tools of a server, where the start is measured.
const SOME_TOOLS: usize = 100;
/// The calls after which memory is measured, twice.
const CALLS: usize = 50_000;
const STARTS: usize = 5;
const SYNCS: usize = 200;

/// What is measured for each target.
const WORKS: [(&str, Era, usize, Work); 7] = [
    (report::CLIENT_1, Era::Modern, 1, Work::Echo(100)),
    (report::CLIENTS_16, Era::Modern, 16, Work::Echo(100)),
    ("100 bytes, 16 clients with sessions", Era::Legacy, 16, Work::Echo(100)),
    (report::CLIENTS_64, Era::Modern, 64, Work::Echo(100)),
    (report::KB_10, Era::Modern, 16, Work::Echo(10_000)),
    (report::MB_1, Era::Modern, 16, Work::Echo(1_000_000)),
    (report::LIST, Era::Modern, 4, Work::List),
];

struct Options {
    rounds: usize,
    time: Duration,
    /// Only the work with this in its name.
    only: String,
    /// Another gateway before the same upstream, and its name of the tool.
    against: Option<Target>,
    /// The port of the upstream, so that another gateway can be configured for it; 0 = any free one.
    port: u16,
    /// Whether the other doors, settings and stores are measured instead.
    variants: bool,
}

impl Options {
    fn of(words: &[&str]) -> Self {
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            Some(*words.get(at + 1).unwrap_or_else(|| panic!("{name} needs a value")))
        };
        let number = |name: &str| after(name).map(|text| text.parse().expect(name));
        let against = after("--against").map(|url| {
            let rest = url.strip_prefix("http://").expect("a URL that begins with http://");
            let (address, path) = rest.split_once('/').unwrap_or((rest, "mcp"));
            let tool = after("--tool").unwrap_or(ECHO);
            Target { path: format!("/{path}"), ..Target::new("other", address, tool) }
        });
        Self {
            rounds: number("--rounds").unwrap_or(5),
            time: Duration::from_millis(number("--ms").unwrap_or(1_500) as u64),
            only: after("--only").unwrap_or_default().to_owned(),
            against,
            port: after("--port").map_or(0, |text| text.parse().expect("--port")),
            variants: words.contains(&"--variants"),
        }
    }
}

/// A gateway before an upstream, in a folder of its own.
struct Governed {
    place: Place,
    gateway: RunningGateway,
}

impl Governed {
    fn start(upstream: &Server) -> Self {
        let place = place(&settings(upstream));
        let gateway = place.serve();
        Self { place, gateway }
    }

    fn target(&self) -> Target {
        Target::new(report::TOOLBOOTH, &self.gateway.address, "up_echo")
    }
}

/// Returns the configuration of a gateway before an upstream. The section of the server is its last.
fn settings(upstream: &Server) -> String {
    format!(
        "[results]\ninline_bytes = 0\n[discovery]\nnew_tools = \"allow\"\n[servers.up]\nurl = \"http://{}/mcp\"\n",
        upstream.address
    )
}

/// Returns the folder of a gateway with this configuration.
fn place(settings: &str) -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", settings);
    place
}

/// Returns how long it takes to sync a block that was appended to a file.
fn sync_times(place: &Place) -> Vec<Duration> {
    let mut file = std::fs::File::create(place.path().join("synced")).unwrap();
    let mut times: Vec<Duration> = (0..SYNCS)
        .map(|_| {
            file.write_all(&[7; 4_096]).unwrap();
            let began = Instant::now();
            file.sync_data().unwrap();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

async fn throughput(options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, era, clients, work) in WORKS {
        if !name.contains(&options.only) {
            continue;
        }
        let tools = if matches!(work, Work::List) { MANY_TOOLS } else { 1 };
        let upstream = Server::upstream(tools, options.port);
        let proxy = Server::start(&["proxy", &upstream.address]);
        let governed = Governed::start(&upstream);
        let mut targets = vec![
            Target::new(report::DIRECT, &upstream.address, ECHO),
            Target::new(report::PROXY, &proxy.address, ECHO),
            governed.target(),
        ];
        targets.extend(options.against.clone());
        let cpu = |target: usize| match target {
            1 => proxy.cpu(),
            2 => governed.gateway.cpu(),
            _ => Duration::ZERO,
        };
        let mut samples = vec![Samples::default(); targets.len()];
        // The first round is not counted: caches are filled.
        for round in 0..=options.rounds {
            let first = round % targets.len();
            for turn in 0..targets.len() {
                let index = (first + turn) % targets.len();
                let before = cpu(index);
                let target = targets.get(index).unwrap();
                let done = load::run(target, era, clients, work, options.time).await;
                if round > 0 {
                    samples.get_mut(index).unwrap().add(&done, cpu(index) - before);
                }
            }
        }
        eprintln!("{name}: {}", report::line(&targets, &samples));
        rows.push(Row { name, targets, samples });
        governed.gateway.stop();
        governed.place.assert_sound();
    }
    rows
}

/// Returns the memory of a gateway in KiB: all of it, and what is not pages of files.
fn memory_of(gateway: &RunningGateway) -> [u64; 2] {
    ["VmRSS:", "RssAnon:"].map(|field| gateway.memory_kib(field))
}

async fn memory() -> [[u64; 2]; 3] {
    let upstream = Server::upstream(SOME_TOOLS, 0);
    let governed = Governed::start(&upstream);
    let target = governed.target();
    load::calls(&target, 1, 16).await;
    let mut measured = [memory_of(&governed.gateway); 3];
    for own in measured.iter_mut().skip(1) {
        load::calls(&target, 16, CALLS).await;
        *own = memory_of(&governed.gateway);
    }
    governed.gateway.stop();
    governed.place.assert_sound();
    measured
}

/// Returns how long it takes from the start of the gateway to the first call that is answered.
async fn starts() -> Vec<Duration> {
    let upstream = Server::upstream(SOME_TOOLS, 0);
    let Governed { place, gateway } = Governed::start(&upstream);
    gateway.stop();
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let gateway = place.serve();
        load::calls(&Target::new(report::TOOLBOOTH, &gateway.address, "up_echo"), 1, 1).await;
        times.push(began.elapsed());
        gateway.stop();
    }
    place.assert_sound();
    times.sort_unstable();
    times
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if servers::run(&words) {
        return;
    }
    let program = toolbooth_tests::target().join("dist/toolbooth");
    let chosen = std::env::var_os("TOOLBOOTH_BIN").is_some_and(|chosen| *chosen == *program);
    assert!(chosen, "run `cargo xtask bench`, or set TOOLBOOTH_BIN={}", program.display());
    let options = Options::of(&words);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if options.variants {
        let rows = runtime.block_on(variants::measured(&options));
        let synced = runtime.block_on(variants::synced(&options));
        print!("{}", report::variants(&rows, synced));
        return;
    }
    let rows = runtime.block_on(throughput(&options));
    if !options.only.is_empty() {
        return;
    }
    let memory = runtime.block_on(memory());
    let starts = runtime.block_on(starts());
    let syncs = sync_times(&Place::new());
    print!("{}", report::tables(&rows, memory, &starts, &syncs));
}
