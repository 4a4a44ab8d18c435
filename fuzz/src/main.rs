//! Lets libFuzzer call the target that `FUZZ_TARGET` names. `cargo xtask fuzz` builds and starts it.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzed {
    use std::sync::LazyLock;

    use toolbooth_fuzz::{TARGETS, Target};

    static TARGET: LazyLock<Target> = LazyLock::new(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.into_iter().find(|(target, _)| *target == name);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET=`{name}` names no target"))
    });

    libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.1)(bytes));
}

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("this program has no coverage; run `cargo xtask fuzz`");
    std::process::exit(2);
}
