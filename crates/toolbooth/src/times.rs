//! Parses times of the command line.

use std::time::Duration;

use crate::failure::Failure;

/// Returns the current time in the form of records.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Parses a time: RFC 3339, or a duration before now.
pub(crate) fn time(given: Option<&str>, option: &str) -> Result<Option<String>, Failure> {
    let hint =
        "give RFC 3339, such as 2026-01-31T12:00:00Z, or so long ago, such as 90s, 5m, 1h, 7d";
    parsed(given, option, hint, jiff::Timestamp::checked_sub)
}

/// Parses a time that is not over: RFC 3339, or a duration from now.
pub(crate) fn time_after(given: Option<&str>, option: &str) -> Result<Option<String>, Failure> {
    let hint =
        "give RFC 3339, such as 2026-01-31T12:00:00Z, or so long from now, such as 5m, 1h, 90d";
    let at = parsed(given, option, hint, jiff::Timestamp::checked_add)?;
    match at.as_ref().filter(|at| **at <= now()) {
        None => Ok(at),
        Some(over) => {
            Err(Failure::usage(format!("`{over}` is over")).at(option.to_owned()).hint(hint))
        }
    }
}

type Offset = fn(jiff::Timestamp, jiff::SignedDuration) -> Result<jiff::Timestamp, jiff::Error>;

fn parsed(
    given: Option<&str>,
    option: &str,
    hint: &str,
    offset: Offset,
) -> Result<Option<String>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let wrong = || {
        let failure = Failure::usage(format!("`{}` is not a time", given.escape_debug()));
        failure.at(option.to_owned()).hint(hint)
    };
    if !given.ends_with(['s', 'm', 'h', 'd']) {
        let at: jiff::Timestamp = given.parse().map_err(|_| wrong())?;
        return Ok(Some(format!("{at:.3}")));
    }
    let seconds = seconds(given).ok_or_else(wrong)?;
    let at = offset(jiff::Timestamp::now(), jiff::SignedDuration::from_secs(seconds))
        .map_err(|_| wrong())?;
    Ok(Some(format!("{at:.3}")))
}

/// Parses a duration such as `90s`, `5m`, `1h`, `7d`; `None` if it is none.
pub(crate) fn duration(given: &str) -> Option<Duration> {
    seconds(given)?.try_into().ok().map(Duration::from_secs)
}

fn seconds(given: &str) -> Option<i64> {
    let (count, unit) = given.split_at_checked(given.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let count: i64 = count.parse().ok()?;
    count.checked_mul(unit).filter(|seconds| *seconds >= 0)
}
