//! The gateway at its other doors, with other settings and over other stores, each beside the plain one.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use toolbooth_tests::issuer::Issuer;
use toolbooth_tests::postgres::Postgres;
use toolbooth_tests::{Place, RunningGateway};

use crate::load::{self, Door, Era, Target, Work};
use crate::pipe::Pipe;
use crate::report::{self, Row, Samples};
use crate::servers::{ECHO, Server};
use crate::{Options, place, settings};

const CLIENTS: usize = 16;
/// What the durable intent costs is measured with more clients too.
const CROWD: usize = 64;
pub(crate) const RELAXED: &str = "no wait for the claim (`intent`)";
const SIZE: usize = 100;
const WORK: Work = Work::Echo(SIZE);
/// A rule that reads an argument of every call.
const RULES: &str = "@id(\"all\") permit (principal, action, resource);\n\
    @id(\"words\") @reason(\"not this word\") forbid (principal, action == Action::\"up.echo\", resource)\n\
    when { context.args.text like \"*secret*\" };\n";

/// One or more gateways, or one over pipes.
enum Runner {
    Gateways(Vec<RunningGateway>),
    Pipe(Box<Pipe>),
}

struct Variant {
    target: Target,
    places: Vec<Place>,
    runner: Runner,
}

impl Variant {
    fn cpu(&self) -> Duration {
        match &self.runner {
            Runner::Gateways(all) => all.iter().map(RunningGateway::cpu).sum(),
            Runner::Pipe(pipe) => pipe.cpu(),
        }
    }

    /// Returns gateways at a door, one for each place.
    fn of(name: &'static str, places: Vec<Place>) -> Self {
        let gateways: Vec<RunningGateway> = places.iter().map(Place::serve).collect();
        let addresses = gateways.iter().map(|own| own.address.clone()).collect();
        let target = Target { name, addresses, ..Target::new(name, "", "up_echo") };
        Self { target, places, runner: Runner::Gateways(gateways) }
    }

    fn with_token(mut self, token: &str) -> Self {
        self.target.headers = vec![("Authorization".to_owned(), format!("Bearer {token}"))];
        self
    }
}

fn variants(upstream: &Server, postgres: Option<&Postgres>) -> Vec<Variant> {
    let with = |more: &str| place(&format!("{}{more}", settings(upstream)));
    let plain = Variant::of(report::TOOLBOOTH, vec![with("")]);
    let relaxed = with("defaults = { read_only = true }\n[proxy]\nintent = \"relaxed\"\n");
    let relaxed = Variant::of(RELAXED, vec![relaxed]);
    let mut calls = Variant::of("`/v1/calls`", vec![with("")]);
    (calls.target.door, calls.target.tool) = (Door::Calls, "up.echo".to_owned());
    let callers = "[callers.agents]\nmatch = [\"key:agent\"]\ntools = [\"*\"]\ngrants = [\"*\"]\n";
    let keyed = with(callers);
    let (key, _) = keyed.json(&["keys", "create", "agent"]);
    let key = key["key"].as_str().unwrap().to_owned();
    let keyed = Variant::of("with an API key", vec![keyed]).with_token(&key);
    let issuer = Issuer::start();
    let tokens = with(&format!(
        "[auth.issuers.own]\nissuer = \"{0}\"\n\
         [callers.bob]\nmatch = [\"jwt:{0}#bob\"]\ntools = [\"*\"]\ngrants = [\"*\"]\n",
        issuer.url
    ));
    let mut tokens = Variant::of("with an access token", vec![tokens]);
    let url = format!("http://{}/mcp", tokens.target.addresses.first().unwrap());
    let mut claims = issuer.claims(&url);
    claims["exp"] = (claims["iat"].as_u64().unwrap() + 7_200).into();
    tokens = tokens.with_token(&issuer.token(&claims));
    let rules = with("[policy]\nrules = \"rules.cedar\"\n");
    rules.write("rules.cedar", RULES);
    let rules = Variant::of("with a rule that reads an argument", vec![rules]);
    let piped = with("");
    let pipe = Pipe::start(&piped);
    let piped = Variant {
        target: Target::new("`stdio`", "", "up_echo"),
        places: vec![piped],
        runner: Runner::Pipe(Box::new(pipe)),
    };
    let mut all = vec![plain, calls, piped, keyed, tokens, rules, relaxed];
    if let Some(server) = postgres {
        for (name, count) in [("PostgreSQL, one replica", 1), ("PostgreSQL, three replicas", 3)] {
            let store = format!(
                "[lock]\nmode = \"off\"\n[store]\nurl = \"{}\"\ndigest_key = {{ secret_ref = \"env:BENCH_KEY\" }}\n",
                server.url(&server.database())
            );
            let replica = |_| with(&store).env("BENCH_KEY", &"5a".repeat(32));
            all.push(Variant::of(name, (0..count).map(replica).collect()));
        }
    }
    all
}

/// Measures the variants in turns, beside the upstream itself.
pub(crate) async fn measured(options: &Options) -> Vec<Row> {
    let upstream = Server::upstream(1, 0);
    let postgres = Postgres::start();
    let mut variants = variants(&upstream, postgres.as_ref());
    let all = in_turns(options, &upstream, &mut variants, report::CLIENTS_16, CLIENTS).await;
    let (mut few, rest): (Vec<_>, Vec<_>) = variants
        .into_iter()
        .partition(|own| [report::TOOLBOOTH, RELAXED].contains(&own.target.name));
    let crowd = in_turns(options, &upstream, &mut few, report::CLIENTS_64, CROWD).await;
    for Variant { places, runner, .. } in few.into_iter().chain(rest) {
        match runner {
            Runner::Pipe(pipe) => drop(pipe),
            Runner::Gateways(all) => all.into_iter().for_each(|own| drop(own.stop())),
        }
        if let Some(place) = places.first() {
            place.assert_sound();
        }
    }
    vec![all, crowd]
}

/// Measures these variants with so many clients.
async fn in_turns(
    options: &Options,
    upstream: &Server,
    variants: &mut [Variant],
    name: &'static str,
    clients: usize,
) -> Row {
    let direct = Target::new(report::DIRECT, &upstream.address, ECHO);
    let targets: Vec<Target> =
        std::iter::once(direct).chain(variants.iter().map(|own| own.target.clone())).collect();
    let mut samples = vec![Samples::default(); targets.len()];
    // The first round is not counted: caches are filled.
    for round in 0..=options.rounds {
        for turn in 0..targets.len() {
            let index = (round + turn) % targets.len();
            let target = targets.get(index).unwrap();
            let own = index.checked_sub(1).and_then(|index| variants.get_mut(index));
            let before = own.as_ref().map_or(Duration::ZERO, |own| own.cpu());
            let done = match own.map(|own| &mut own.runner) {
                Some(Runner::Pipe(pipe)) => pipe.run(clients, &target.tool, SIZE, options.time),
                _ => load::run(target, Era::Modern, clients, WORK, options.time).await,
            };
            let own = index.checked_sub(1).and_then(|index| variants.get(index));
            let after = own.map_or(Duration::ZERO, Variant::cpu);
            if round > 0 {
                samples.get_mut(index).unwrap().add(&done, after - before);
            }
        }
    }
    Row { name, targets, samples }
}

/// Returns how many calls were made while `strace` counted the `fdatasync`s of the gateway, and their number. All
/// records of these calls verify afterwards. `None` without `strace`.
pub(crate) async fn synced(options: &Options) -> Option<(usize, usize)> {
    let upstream = Server::upstream(1, 0);
    let place = place(&settings(&upstream));
    let gateway = place.serve();
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-e", "trace=fdatasync", "-p", &gateway.id().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut told = strace.stderr.take().unwrap();
    // It tells that it has attached itself.
    let mut first = vec![0; 256];
    let read = told.read(&mut first).unwrap();
    let first = String::from_utf8_lossy(first.get(..read).unwrap()).into_owned();
    if !first.contains("attached") {
        eprintln!("`fdatasync` is not counted: {first}");
        return None;
    }
    let target = Target::new(report::TOOLBOOTH, &gateway.address, "up_echo");
    let done = load::run(&target, Era::Modern, CLIENTS, WORK, options.time).await;
    let ended = Command::new("kill").args(["-INT", &strace.id().to_string()]).status();
    assert!(ended.is_ok_and(|status| status.success()), "strace is there");
    let mut text = String::new();
    told.read_to_string(&mut text).unwrap();
    strace.wait().unwrap();
    gateway.stop();
    place.assert_sound();
    let line = text.lines().find(|line| line.ends_with(" fdatasync"))?;
    let syncs = line.split_whitespace().nth(3)?.parse().ok()?;
    // A call waits for two commits, and a commit has one step of each client at most.
    assert!(syncs >= 2 * done.times.len() / CLIENTS, "{text}");
    Some((done.times.len(), syncs))
}
