//! Formats an error and its causes in one sentence for operators.

use std::error::Error;

/// Returns an error and its causes, from the outermost to the innermost.
pub fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source())
}

/// Returns the sentence of an error, followed by those of its causes that it does not contain already.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut whole = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !whole.contains(&cause) {
            whole = format!("{whole}: {cause}");
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] std::fmt::Error);

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::fmt::Error.to_string();
        assert_eq!(with_causes(&Outer("no text", std::fmt::Error)), format!("no text: {cause}"));
        let whole: &'static str = Box::leak(format!("no text: {cause}").into_boxed_str());
        assert_eq!(with_causes(&Outer(whole, std::fmt::Error)), whole);
    }
}
