//! The steps of the four commands for daily work: `check`, `test`, `ci` and `soak`.

use std::time::Duration;

use anyhow::Result;

use crate::fuzz;
use crate::steps::{self, Step};

/// The defaults of most steps.
const STEP: Step<'_> = Step { name: "", words: &[], limit_s: 0, needs: &[], beside: false };

const FETCH: Step<'_> = Step { name: "packages", words: &["fetch"], limit_s: 1_000, ..STEP };
const FORMAT: Step<'_> = Step { name: "formatting", words: &["format"], limit_s: 60, ..STEP };
const BOUNDARIES: Step<'_> =
    Step { name: "boundaries", words: &["boundaries"], limit_s: 60, needs: &["packages"], ..STEP };
const DOCS_MAP: Step<'_> = Step {
    name: "docs map",
    words: &["docs-map", "--check"],
    limit_s: 60,
    needs: &["packages"],
    ..STEP
};
const SOURCES: Step<'_> = Step { name: "sources", words: &["sources"], limit_s: 60, ..STEP };
const CLIPPY: Step<'_> =
    Step { name: "clippy", words: &["clippy"], limit_s: 900, needs: &["packages"], ..STEP };
const SCHEMAS: Step<'_> = Step {
    name: "schemas",
    words: &["schemas", "--check"],
    limit_s: 1_200,
    needs: &["packages"],
    ..STEP
};

const SET_UP: Step<'_> = Step { name: "set-up", words: &["set-up"], limit_s: 1_200, ..STEP };
const BUILD: Step<'_> =
    Step { name: "build", words: &["build"], limit_s: 1_800, needs: &["packages"], ..STEP };

/// The steps for each commit.
const CHECK: &[Step<'_>] = &[
    FORMAT,
    BOUNDARIES,
    SOURCES,
    DOCS_MAP,
    CLIPPY,
    SCHEMAS,
    Step {
        name: "each crate alone",
        words: &["alone", "--if-changed"],
        limit_s: 1_800,
        beside: true,
        ..STEP
    },
];

/// The longest time of a whole run, except of `soak`.
const WHOLE: Duration = Duration::from_secs(3_600);

/// The steps on a clean clone. The limits are about three times the duration on a slow machine.
const CI: &[Step<'_>] = &[
    FETCH,
    FORMAT,
    BOUNDARIES,
    SOURCES,
    DOCS_MAP,
    CLIPPY,
    BUILD,
    // This step runs in parallel with clippy and the build. The set-up waits for the network, and the
    // separate checks of crates rarely use two processors.
    Step { beside: true, ..SET_UP },
    Step {
        name: "each crate alone",
        words: &["alone"],
        limit_s: 1_800,
        needs: &["packages"],
        beside: true,
    },
    Step { needs: &["build"], ..SCHEMAS },
    Step {
        name: "tests",
        words: &["run-tests"],
        limit_s: 2_700,
        needs: &["set-up", "build"],
        ..STEP
    },
    Step { name: "smoke", words: &["smoke"], limit_s: 180, needs: &["build"], ..STEP },
    Step {
        name: "conformance",
        words: &["conformance"],
        limit_s: 600,
        needs: &["set-up", "build"],
        ..STEP
    },
    Step { name: "embed", words: &["embed"], limit_s: 120, needs: &["build"], ..STEP },
];

/// Runs the checks for each commit.
pub fn check() -> Result<()> {
    steps::run(CHECK, Some(WHOLE))
}

/// Runs everything that CI runs.
pub fn ci() -> Result<()> {
    steps::run(CI, Some(WHOLE))
}

/// Runs the long steps: `minutes` for fuzzing and for each round of tests. The fault scenarios run
/// completely; their numbers of operations bound them.
pub fn soak(minutes: u64) -> Result<()> {
    let seconds = (minutes * 60 / fuzz::TARGETS.len() as u64).max(1).to_string();
    let limit_s = minutes.max(30) * 60;
    let fuzzing = ["fuzz", &*seconds];
    let step = |name, words| Step { name, words, limit_s, needs: &["build"], ..STEP };
    let steps = [
        FETCH,
        SET_UP,
        BUILD,
        Step { limit_s: 7_200, ..step("crates alone", &["test-alone"]) },
        Step { limit_s: 7_200, ..step("torture", &["torture", "all"]) },
        // Each round has different schedules: more than four thousand in total.
        Step { limit_s: 7_200, ..step("schedules", &["flaky", "20", "schedules::"]) },
        Step { limit_s: limit_s * 2, ..step("fuzzing", &fuzzing) },
        step("tests", &["flaky", "1"]),
        Step { limit_s: limit_s * 4, ..step("tests under load", &["flaky", "1", "--load", "4"]) },
    ];
    steps::run(&steps, None)
}
