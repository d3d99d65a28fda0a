//! The choice of a presentation of forks.

use std::fmt;
use std::str::FromStr;

/// The presentation of resource forks and Finder information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Forks {
    /// Extended attributes. Linux limits these to 64 KiB.
    #[default]
    Xattr,
    /// AppleDouble files beside the files.
    AppleDouble,
    /// Files with a suffix.
    Suffix,
    /// No presentation.
    None,
}

impl Forks {
    /// All presentations.
    pub const ALL: [Self; 4] = [Self::Xattr, Self::AppleDouble, Self::Suffix, Self::None];

    /// The presentation on a mount unless another is chosen: programs that do not know of forks copy
    /// these files too, of any length.
    pub const MOUNTED: Self = Self::AppleDouble;

    /// Returns the name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Xattr => "xattr",
            Self::AppleDouble => "appledouble",
            Self::Suffix => "suffix",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Forks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Forks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|forks| forks.name() == text)
            .ok_or_else(|| format!("{text:?} is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
