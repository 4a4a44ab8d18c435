//! The tables of what was measured.

use std::fmt::Write as _;
use std::time::Duration;

use crate::load::{Done, Target};

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

/// Returns the table of the other doors, settings and stores in Markdown. `synced` has a number of calls and that of
/// `fdatasync`s during them.
pub(crate) fn variants(row: &Row, synced: Option<(usize, usize)>) -> String {
    let mut text = works(std::slice::from_ref(row));
    if let Some((calls, syncs)) = synced {
        let _ = writeln!(
            text,
            "\n`strace` counted {syncs} calls of `fdatasync` by the gateway during {calls} calls."
        );
    }
    text
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
    text
}
