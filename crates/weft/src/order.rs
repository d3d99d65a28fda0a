//! The order of writes: the names of the commit policies.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;
use weft_patch::{JournalMode, Policy};

/// A commit policy by its name: `soft`, `journal` (or `journal=metadata`), `journal=ordered`,
/// `journal=full`, `async`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order(pub Policy);

impl Order {
    /// Every order, sorted by its cost.
    pub const ALL: [Self; 5] = [
        Self(Policy::Async),
        Self(Policy::Soft),
        Self(Policy::Journal(JournalMode::Metadata)),
        Self(Policy::Journal(JournalMode::Ordered)),
        Self(Policy::Journal(JournalMode::Full)),
    ];

    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Policy::Soft => "soft",
            Policy::Async => "async",
            Policy::Journal(JournalMode::Metadata) => "journal",
            Policy::Journal(JournalMode::Ordered) => "journal=ordered",
            Policy::Journal(JournalMode::Full) => "journal=full",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "journal=metadata" {
            return Ok(Self(Policy::Journal(JournalMode::Metadata)));
        }
        Self::ALL.into_iter().find(|order| order.name() == text).ok_or_else(|| {
            Error::Usage(format!(
                "'{text}' is no order of writes; it is one of: soft, journal, journal=ordered, \
                 journal=full, async"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for order in Order::ALL {
            assert_eq!(order.name().parse::<Order>().unwrap(), order);
        }
        assert_eq!("journal=metadata".parse::<Order>().unwrap().name(), "journal");
        assert!("hard".parse::<Order>().is_err());
    }
}
