//! Runs the fault scenarios of `cargo xtask torture`, each for a short time.
//!
//! Path: 6, 9. Doc: records.md#faults

use toolbooth_tests::{approval_kills, child_kills, history_kills, torture};

#[test]
fn a_killed_gateway_runs_no_key_twice_and_loses_no_answer() {
    torture::kills(12, 7);
}

#[test]
fn killed_launchers_workers_and_commands_run_no_key_twice() {
    child_kills::children(150, 7);
}

#[test]
fn killed_gateways_spend_no_approval_twice() {
    approval_kills::approvals(12, 7);
}

#[test]
fn killed_gateways_exceed_no_window() {
    history_kills::history(12, 7);
}

#[test]
fn killed_gateways_exceed_no_window_with_calls_that_need_approvals() {
    history_kills::both(12, 7);
}

#[test]
fn a_failing_disk_breaks_no_promise() {
    torture::io_errors(400, 5);
}

#[test]
fn a_full_disk_refuses_before_any_effect_and_service_resumes() {
    torture::disks();
}

#[test]
fn a_server_that_goes_away_refuses_before_any_effect_and_service_resumes() {
    torture::server_outages();
}

#[test]
fn replicas_dispatch_each_key_once() {
    torture::replicas(32, 60, 4, 3);
}

#[test]
fn a_lost_answer_is_a_doubt_a_retry_or_the_same_result() {
    torture::dropped_answers();
}
