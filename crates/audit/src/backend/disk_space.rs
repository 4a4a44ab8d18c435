//! The space state of a store and its consequences.
//!
//! Path: 6. Doc: records.md#disk-space

use crate::ledger::LedgerError;

/// The space state of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskSpace {
    /// Enough space is free.
    #[default]
    Enough,
    /// Space runs short: agent logs are removed, oldest first.
    Short,
    /// Space is used up: new calls are rejected, and running calls can settle.
    Full,
}

impl DiskSpace {
    /// Returns the state for `left` free bytes and a reserve of `reserve` bytes. After `Short` or
    /// `Full`, `Enough` requires 1.5 times the reserve.
    #[must_use]
    pub fn of(left: u64, reserve: u64, before: Self) -> Self {
        let wanted = match before {
            Self::Enough => reserve,
            Self::Short | Self::Full => reserve.saturating_add(reserve / 2),
        };
        match left {
            left if left < reserve / 4 => Self::Full,
            left if left < wanted => Self::Short,
            _ => Self::Enough,
        }
    }

    /// Checks whether new records are accepted.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the space is used up.
    pub fn check(self) -> Result<(), LedgerError> {
        match self {
            Self::Enough | Self::Short => Ok(()),
            Self::Full => Err(LedgerError::unavailable(
                "the store is full and has no agent logs left to remove: free disk space, raise `[store] bytes_max`, or prune receipts (those that hold a key leave a tombstone)"
                    .to_owned(),
            )),
        }
    }
}

/// Agent logs that were removed to free space: those of a part of one writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The writer of the events that account for them.
    pub writer: String,
    /// The place after the last such event.
    pub until: u64,
    /// Whether only logs of calls without a receipt (refusals) were removed.
    pub refusals: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_runs_short_before_it_is_used_up() {
        let of = |left| DiskSpace::of(left, 100, DiskSpace::Enough);
        assert_eq!(
            [of(100), of(99), of(25), of(24), of(0)].map(|disk_space| disk_space as u8),
            [0, 1, 1, 2, 2]
        );
        assert_eq!(DiskSpace::of(149, 100, DiskSpace::Full), DiskSpace::Short, "it does not waver");
        assert_eq!(DiskSpace::of(150, 100, DiskSpace::Short), DiskSpace::Enough);
    }
}
