//! How much room a store has left, and what follows from that.
//!
//! Path: 6. Doc: records.md#disk-space

use crate::ledger::LedgerError;

/// Room that a store has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// There is enough.
    #[default]
    Enough,
    /// It runs short: agent logs are removed, oldest first.
    Short,
    /// It is used up: calls are refused, and those that run settle.
    Full,
}

impl Room {
    /// What it means that so many bytes are left, where `reserve` bytes should be. What ran short
    /// does so until there is half as much more.
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

    /// Whether something new is taken.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] where the room is used up.
    pub fn check(self) -> Result<(), LedgerError> {
        match self {
            Self::Enough | Self::Short => Ok(()),
            Self::Full => Err(LedgerError::unavailable(
                "the store is full and has no agent logs left to remove: free disk space, raise `[store] bytes_max`, or prune receipts"
                    .to_owned(),
            )),
        }
    }
}

/// Agent logs that gave way: those of a part of one writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Whose events account for them.
    pub writer: String,
    /// The place after that of the last such event.
    pub until: u64,
    /// Whether only logs of calls without a receipt went: refusals.
    pub refusals: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_runs_short_before_it_is_used_up() {
        let of = |left| Room::of(left, 100, Room::Enough);
        assert_eq!(
            [of(100), of(99), of(25), of(24), of(0)].map(|room| room as u8),
            [0, 1, 1, 2, 2]
        );
        assert_eq!(Room::of(149, 100, Room::Full), Room::Short, "it does not waver");
        assert_eq!(Room::of(150, 100, Room::Short), Room::Enough);
    }
}
