//! The tables of what was measured.

use std::fmt::Write as _;
use std::time::Duration;

use crate::load::{Done, Target};
use crate::variants;

/// What was measured of one target, one value for each round.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples {
    /// Pieces of work in a second.
    rates: Vec<f64>,
    /// Median of the time of a piece of work, in microseconds.
    medians: Vec<f64>,
    /// The 99th percentile of it.
    tails: Vec<f64>,
    /// Processor time of a piece of work, in microseconds.
    cpu: Vec<f64>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn at(sorted: &[Duration], part: f64) -> f64 {
    let index = (part * (sorted.len().saturating_sub(1)) as f64).round() as usize;
    sorted.get(index).copied().map_or(0.0, micros)
}

/// Returns the median of values, with the lowest and the highest.
fn spread(values: impl IntoIterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let of = |index: usize| values.get(index).copied().unwrap_or(0.0);
    [of(values.len() / 2), of(0), of(values.len().saturating_sub(1))]
}

impl Samples {
    pub(crate) fn add(&mut self, done: &Done, cpu: Duration) {
        let mut times = done.times.clone();
        times.sort_unstable();
        let count = times.len().max(1) as f64;
        self.rates.push(count / done.time.as_secs_f64());
        self.medians.push(at(&times, 0.5));
        self.tails.push(at(&times, 0.99));
        self.cpu.push(micros(cpu) / count);
    }
}

/// What was measured of all targets for one kind of work. The first target is the upstream itself.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) targets: Vec<Target>,
    pub(crate) samples: Vec<Samples>,
}

/// Returns the share of the first target's rate in each round.
fn shares(samples: &[Samples], of: &Samples) -> [f64; 3] {
    let direct = samples.first().map(|first| first.rates.as_slice()).unwrap_or_default();
    spread(of.rates.iter().zip(direct).map(|(own, direct)| own / direct))
}

/// Returns what was measured in one line, for the terminal.
pub(crate) fn line(targets: &[Target], samples: &[Samples]) -> String {
    let mut text = String::new();
    for (target, own) in targets.iter().zip(samples) {
        let ([rate, ..], [share, ..]) = (spread(own.rates.clone()), shares(samples, own));
        let ([cpu, ..], [median, ..], [tail, ..]) =
            (spread(own.cpu.clone()), spread(own.medians.clone()), spread(own.tails.clone()));
        let _ = write!(
            text,
            "{} {rate:.0}/s ({share:.3}) {cpu:.0} µs CPU, p50 {median:.0} p99 {tail:.0} µs; ",
            target.name
        );
    }
    text
}

fn cell(values: [f64; 3], digits: usize) -> String {
    let [median, low, high] = values;
    format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
}

/// Returns the table of works and their targets in Markdown.
fn works(rows: &[Row]) -> String {
    let mut text = String::from(
        "| work | target | rate (1/s) | share of direct | CPU (µs) | p50 (µs) | p99 / p50 |\n\
         | --- | --- | --: | --: | --: | --: | --: |\n",
    );
    for Row { name, targets, samples } in rows {
        for (target, own) in targets.iter().zip(samples) {
            let [rate, ..] = spread(own.rates.clone());
            let [median, ..] = spread(own.medians.clone());
            let [tail, ..] =
                spread(own.tails.iter().zip(&own.medians).map(|(tail, median)| tail / median));
            let cpu = match spread(own.cpu.clone()) {
                [cpu, ..] if cpu > 0.0 => format!("{cpu:.0}"),
                _ => "–".to_owned(),
            };
            let share = cell(shares(samples, own), 3);
            let _ = writeln!(
                text,
                "| {name} | {} | {rate:.0} | {share} | {cpu} | {median:.0} | {tail:.1} |",
                target.name
            );
        }
    }
    text
}

/// Returns the tables of the other doors, settings and stores in Markdown. `synced` has a number of calls and that of
/// `fdatasync`s during them.
pub(crate) fn variants(rows: &[Row], synced: Option<(usize, usize)>) -> String {
    let mut text = works(rows);
    let relaxed = |work| share_of(rows, work, variants::RELAXED);
    let musts = [
        Must::at_least(
            "share of direct without waiting for the claim, 16 clients",
            0.16,
            relaxed(CLIENTS_16),
        ),
        Must::at_least("the same, 64 clients", 0.21, relaxed(CLIENTS_64)),
    ];
    text += &written(&musts);
    if let Some((calls, syncs)) = synced {
        let _ = writeln!(
            text,
            "\n`strace` counted {syncs} calls of `fdatasync` by the gateway during {calls} calls."
        );
    }
    text
}

/// Names of works.
pub(crate) const CLIENT_1: &str = "100 bytes, 1 client";
pub(crate) const CLIENTS_16: &str = "100 bytes, 16 clients";
pub(crate) const CLIENTS_64: &str = "100 bytes, 64 clients";
pub(crate) const KB_10: &str = "10 kB, 16 clients";
pub(crate) const MB_1: &str = "1 MB, 16 clients";
pub(crate) const LIST: &str = "list of 5,000 tools, 4 clients";
/// Names of targets.
pub(crate) const DIRECT: &str = "direct";
pub(crate) const PROXY: &str = "reverse proxy";
pub(crate) const TOOLBOOTH: &str = "Toolbooth";

/// A goal, and what was measured.
struct Must {
    what: &'static str,
    /// Whether more is better.
    is_least: bool,
    limit: f64,
    measured: f64,
}

impl Must {
    fn at_least(what: &'static str, limit: f64, measured: f64) -> Self {
        Self { what, is_least: true, limit, measured }
    }

    fn at_most(what: &'static str, limit: f64, measured: f64) -> Self {
        Self { what, is_least: false, limit, measured }
    }
}

/// Returns the table of goals in Markdown.
fn written(musts: &[Must]) -> String {
    let mut text =
        String::from("\n| goal | limit | measured | reached |\n| --- | --: | --: | --- |\n");
    for Must { what, is_least, limit, measured } in musts {
        let (sign, is_reached) = match is_least {
            true => ("≥", measured >= limit),
            false => ("≤", measured <= limit),
        };
        // Shares are parts of one.
        let digits = if *limit < 1.0 { 3 } else { 1 };
        let reached = if is_reached { "yes" } else { "no" };
        let _ = writeln!(text, "| {what} | {sign} {limit} | {measured:.digits$} | {reached} |");
    }
    text
}

/// Returns what was measured of a target in a work.
fn samples_of<'r>(rows: &'r [Row], work: &str, target: &str) -> Option<(&'r Row, &'r Samples)> {
    let row = rows.iter().find(|row| row.name == work)?;
    let at = row.targets.iter().position(|own| own.name == target)?;
    Some((row, row.samples.get(at)?))
}

/// Returns the share of the direct rate; not a number if it was not measured.
fn share_of(rows: &[Row], work: &str, target: &str) -> f64 {
    samples_of(rows, work, target).map_or(f64::NAN, |(row, own)| shares(&row.samples, own)[0])
}

/// Returns the median of one kind of value.
fn median_of(rows: &[Row], work: &str, target: &str, of: fn(&Samples) -> &Vec<f64>) -> f64 {
    samples_of(rows, work, target).map_or(f64::NAN, |(_, own)| spread(of(own).clone())[0])
}

/// Returns the goals of the gateway with its default settings.
fn goals(
    rows: &[Row],
    memory: [[u64; 2]; 3],
    starts: &[Duration],
    syncs: &[Duration],
) -> Vec<Must> {
    let share = |work| share_of(rows, work, TOOLBOOTH);
    let cpu = |target| median_of(rows, CLIENTS_16, target, |own| &own.cpu);
    let p50 = |target| median_of(rows, CLIENT_1, target, |own| &own.medians);
    let allowed = 2.0 * at(syncs, 0.5) + p50(PROXY) - p50(DIRECT);
    let tail = samples_of(rows, CLIENTS_64, TOOLBOOTH).map_or(f64::NAN, |(_, own)| {
        spread(own.tails.iter().zip(&own.medians).map(|(tail, median)| tail / median))[0]
    });
    let [idle, first, second] = memory.map(|[all, _]| all as f64 / 1_024.0);
    vec![
        Must::at_most(
            "CPU of a call at 16 clients, in that of the reverse proxy",
            6.0,
            cpu(TOOLBOOTH) / cpu(PROXY),
        ),
        Must::at_least("share of direct, 16 clients", 0.13, share(CLIENTS_16)),
        Must::at_least("share of direct, 64 clients", 0.18, share(CLIENTS_64)),
        Must::at_most(
            "time added for 1 client, in two syncs and what the reverse proxy adds",
            1.5,
            (p50(TOOLBOOTH) - p50(DIRECT)) / allowed,
        ),
        Must::at_least("share of direct, 10 kB", 0.07, share(KB_10)),
        Must::at_least("share of direct, 1 MB", 0.30, share(MB_1)),
        Must::at_least("share of direct, list of 5,000 tools", 1.0, share(LIST)),
        Must::at_most("p99 / p50, 64 clients", 2.5, tail),
        Must::at_most("MiB of memory after 16 calls, 100 tools", 20.0, idle),
        Must::at_most("MiB of memory after 50,000 calls", 30.0, first),
        Must::at_most("MiB that further 50,000 calls add", 2.0, second - first),
        Must::at_most(
            "ms from the start to the first answered call, 100 tools",
            25.0,
            at(starts, 0.5) / 1_000.0,
        ),
    ]
}

/// Returns the tables in Markdown.
pub(crate) fn tables(
    rows: &[Row],
    memory: [[u64; 2]; 3],
    starts: &[Duration],
    syncs: &[Duration],
) -> String {
    let mut text = works(rows);
    let [idle, first, second] = memory.map(|own| {
        let [all, own] = own.map(|kib| kib as f64 / 1_024.0);
        format!("{all:.1} MiB, {own:.1} MiB of it anonymous")
    });
    let millis = |times: &[Duration], part| at(times, part) / 1_000.0;
    let _ = write!(
        text,
        "\n| what | measured |\n| --- | --: |\n\
         | memory with 100 tools, after 16 calls | {idle} |\n\
         | after 50,000 calls | {first} |\n\
         | after 100,000 calls | {second} |\n\
         | start to first answered call, 100 tools | {:.0} ms ({:.0} to {:.0}) |\n\
         | `fdatasync` of 4 KiB on this disk, median and p99 | {:.0} and {:.0} µs |\n",
        millis(starts, 0.5),
        millis(starts, 0.0),
        millis(starts, 1.0),
        at(syncs, 0.5),
        at(syncs, 0.99),
    );
    text + &written(&goals(rows, memory, starts, syncs))
}
