//! Parses times of the command line.

use crate::failure::Failure;

/// Parses a time: RFC 3339, or a duration before now.
pub(crate) fn time(given: Option<&str>, option: &str) -> Result<Option<String>, Failure> {
    let Some(given) = given else { return Ok(None) };
    let wrong = || {
        let failure = Failure::usage(format!("`{}` is no time", given.escape_debug()));
        failure.at(option.to_owned()).hint(
            "give RFC 3339, such as 2026-01-31T12:00:00Z, or so long ago, such as 90s, 5m, 1h, 7d",
        )
    };
    let unit = match given.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3_600,
        Some(b'd') => 86_400,
        _ => {
            let at: jiff::Timestamp = given.parse().map_err(|_| wrong())?;
            return Ok(Some(format!("{at:.3}")));
        }
    };
    let count: i64 = given.get(..given.len() - 1).and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
    let seconds = count.checked_mul(unit).filter(|seconds| *seconds >= 0).ok_or_else(wrong)?;
    let at = jiff::Timestamp::now()
        .checked_sub(jiff::SignedDuration::from_secs(seconds))
        .map_err(|_| wrong())?;
    Ok(Some(format!("{at:.3}")))
}
