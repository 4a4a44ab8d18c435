//! Measures load time and memory of large registries and of their search index; asserts nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use toolbooth_contracts::Guard;
use toolbooth_registry::search::SearchIndex;
use toolbooth_registry::{Source, ToolRegistry, file};

#[path = "common/text.rs"]
mod text;

/// Resident memory of this process in MiB; 0 if it cannot be read.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0.0);
    kib / 1024.0
}

fn main() {
    let guard = Guard::default();
    for entries in [10_000, 100_000] {
        let text = text::registry(entries);
        let (before, began) = (resident_mib(), Instant::now());
        let loaded = file::load(text.as_bytes(), "bench", &guard).unwrap();
        let mut registry = ToolRegistry::default();
        let _ = registry.replace_source(&Source::File, loaded.tools);
        println!(
            "{entries} entries ({:.1} MiB of text): loaded in {:.2} s, {:.0} MiB kept",
            f64::from(u32::try_from(text.len()).unwrap()) / 1_048_576.0,
            began.elapsed().as_secs_f64(),
            resident_mib() - before
        );
        let (before, began) = (resident_mib(), Instant::now());
        let index = SearchIndex::new(registry.iter().map(Arc::clone).collect());
        println!(
            "  search index: {:.2} s, {:.0} MiB",
            began.elapsed().as_secs_f64(),
            resident_mib() - before
        );
        let began = Instant::now();
        let found = index.search("do the thing with number 4711 and a note", 10);
        println!(
            "  one search: {:.1} ms, {} found",
            began.elapsed().as_secs_f64() * 1e3,
            found.len()
        );
    }
}
