//! Converts `[http]` into the limits and the authenticator of the HTTP door.
//!
//! Doc: configuration.md#http, front-doors.md#limits, front-doors.md#who-may-call

use std::time::Duration;

use toolbooth_server::http::{BODY_BYTES_MAX, DESCRIPTORS_RESERVED, Limits, connections_fitting};
use toolbooth_server::mcp::SessionLimits;

use crate::config::Http;
use crate::failure::Failure;

/// The largest setting of sessions; each uses about a kilobyte.
const SESSIONS_MAX: usize = 1_000_000;

/// The operator warning about `loopback = "any"`.
pub(crate) const ANY_USER: &str =
    "`[http] loopback = \"any\"`: every user of this machine may call as the local user";

/// Returns the configured limits, with defaults for the others.
///
/// # Errors
/// [`Failure`], if a limit is out of its range or does not fit this process.
pub(crate) fn limits(http: &Http) -> Result<Limits, Failure> {
    let standard = Limits::default();
    let fitting = connections_fitting();
    let connections_max = http.connections_max.unwrap_or(standard.connections_max);
    if !(1..=fitting).contains(&connections_max) {
        return Err(Failure::configuration(format!(
            "`http.connections_max` is {connections_max}, and this process may have 1 to {fitting}"
        ))
        .hint(format!(
            "raise the limit of open files (`ulimit -n`, `LimitNOFILE=`): a connection takes one \
             descriptor, and {DESCRIPTORS_RESERVED} are left for everything else"
        )));
    }
    let body_bytes_budget = http.body_bytes_budget.unwrap_or(standard.body_bytes_budget);
    if body_bytes_budget < BODY_BYTES_MAX {
        return Err(Failure::configuration(format!(
            "`http.body_bytes_budget` is {body_bytes_budget}, less than one request may have"
        ))
        .hint(format!("give at least {BODY_BYTES_MAX}")));
    }
    let sessions_max = http.sessions_max.unwrap_or(standard.sessions.all_max);
    let per_caller = standard.sessions.per_caller_max.min(sessions_max);
    let sessions_per_caller_max = http.sessions_per_caller_max.unwrap_or(per_caller);
    for (name, number) in
        [("sessions_max", sessions_max), ("sessions_per_caller_max", sessions_per_caller_max)]
    {
        if !(1..=SESSIONS_MAX).contains(&number) {
            return Err(Failure::configuration(format!(
                "`http.{name}` is {number}, and there may be 1 to {SESSIONS_MAX}"
            )));
        }
    }
    let time = |given: Option<u64>, name: &str, standard: Duration| match given {
        Some(0) => Err(Failure::configuration(format!("`http.{name}` must be more than 0"))),
        given => Ok(given.map_or(standard, Duration::from_millis)),
    };
    Ok(Limits {
        connections_max,
        header_timeout: time(http.header_timeout_ms, "header_timeout_ms", standard.header_timeout)?,
        body_timeout: time(http.body_timeout_ms, "body_timeout_ms", standard.body_timeout)?,
        write_timeout: time(http.write_timeout_ms, "write_timeout_ms", standard.write_timeout)?,
        body_bytes_budget,
        sessions: SessionLimits {
            per_caller_max: sessions_per_caller_max,
            all_max: sessions_max,
            idle: time(http.session_idle_ms, "session_idle_ms", standard.sessions.idle)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_do_not_fit_are_refused() {
        assert_eq!(limits(&Http::default()).unwrap(), Limits::default());
        let connections = |max| Http { connections_max: Some(max), ..Http::default() };
        assert_eq!(limits(&connections(1)).unwrap().connections_max, 1);
        assert!(limits(&connections(0)).is_err() && limits(&connections(usize::MAX)).is_err());
        let budget = Http { body_bytes_budget: Some(BODY_BYTES_MAX - 1), ..Http::default() };
        assert!(limits(&budget).is_err());
        let sessions = Http { sessions_max: Some(7), ..Http::default() };
        assert_eq!(limits(&sessions).unwrap().sessions.per_caller_max, 7);
        assert!(limits(&Http { sessions_max: Some(0), ..Http::default() }).is_err());
        assert!(limits(&Http { session_idle_ms: Some(0), ..Http::default() }).is_err());
        assert!(limits(&Http { body_timeout_ms: Some(0), ..Http::default() }).is_err());
    }
}
