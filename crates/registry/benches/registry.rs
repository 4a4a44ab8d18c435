//! Measures loading 10,000 entries, one lookup, and the guard on one entry and on one call.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use toolbooth_contracts::{Arguments, Guard};
use toolbooth_registry::{Source, ToolRegistry, file};

#[path = "common/text.rs"]
mod text;

fn benches(criterion: &mut Criterion) {
    let guard = Guard::default();
    let text = text::registry(10_000);
    let mut group = criterion.benchmark_group("registry");
    group.sample_size(10);
    group.bench_function("load 10,000 entries", |b| {
        b.iter(|| {
            let loaded = file::load(black_box(text.as_bytes()), "bench", &guard).unwrap();
            let mut registry = ToolRegistry::default();
            registry.replace_source(&Source::File, loaded.tools);
            registry
        });
    });
    group.finish();
    let mut registry = ToolRegistry::default();
    registry
        .replace_source(&Source::File, file::load(text.as_bytes(), "bench", &guard).unwrap().tools);
    criterion.bench_function("registry/lookup among 10,000", |b| {
        b.iter(|| registry.get(black_box("domain17.method_5017")).is_some());
    });
    let entry = serde_json::from_str::<serde_json::Value>(&text::registry(1)).unwrap();
    let entry = entry.pointer("/tools/0").unwrap();
    criterion.bench_function("guard/one entry with its schemas", |b| {
        b.iter(|| guard.validate_entry(black_box(entry)).is_ok());
    });
    let tool = registry.get("domain17.method_5017").unwrap();
    let arguments: Arguments = r#"{"id":7,"note":"a short note"}"#.parse().unwrap();
    criterion.bench_function("guard/arguments of a call", |b| {
        b.iter(|| tool.guard(black_box(&arguments).clone()).is_ok());
    });
}

criterion_group!(all, benches);
criterion_main!(all);
