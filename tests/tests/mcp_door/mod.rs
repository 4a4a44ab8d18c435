//! Tests the MCP front door of the real gateway with bytes, in both eras, over HTTP and stdio.
//!
//! Messages are malformed, out of order, too large or abandoned.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

mod answers;
mod calls;
mod changes;
mod cursors;
mod eras;
mod headers;
mod messages;
mod names;
mod results;
mod sessions;
mod stdio;
mod toolsets;

use serde_json::Value;
use toolbooth_tests::Place;
use toolbooth_tests::stage::Stage;
use toolbooth_tests::waiting::until;

/// Returns a place with the server that waits for the test, and further settings.
fn staged(settings: &str) -> (Place, Stage) {
    let place = Place::new();
    let stage = Stage::new(&place);
    place.write("toolbooth.toml", &format!("{settings}\n{}", stage.settings()));
    (place, stage)
}

/// Returns the code of an error; 0 without an error.
fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_default()
}

/// Returns the first text of a result.
fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}
