//! Values with known names, which completions offer and errors list.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::error::Error;
use std::str::FromStr;

/// The names of orders of writes, as [`weft::Order`] reads them.
pub const ORDERS: &[&str] =
    &["soft", "journal", "journal=metadata", "journal=ordered", "journal=full", "async"];

/// The names of the presentations of forks, as [`weft::hfs::view::Forks`] reads them.
pub const FORKS: &[&str] = &["xattr", "appledouble", "suffix", "none"];

/// Returns a parser of the values with these names.
pub fn known<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn Error + Send + Sync>>,
{
    PossibleValuesParser::new(names).try_map(|text| text.parse::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{cache, crash, hfs};
    use weft::Order;
    use weft::hfs::view::Forks;

    #[test]
    fn known_names_are_read() {
        assert!(ORDERS.iter().all(|name| name.parse::<Order>().is_ok()));
        assert!(Order::ALL.iter().all(|order| ORDERS.contains(&order.name())));
        assert_eq!(FORKS, Forks::ALL.map(Forks::name));
        assert!(hfs::FORMATS.iter().all(|name| name.parse::<hfs::As>().is_ok()));
        assert_eq!(crash::MODELS, weft_crash_test::Model::ALL.map(weft_crash_test::Model::name));
        assert!(cache::MODES.iter().all(|name| name.parse::<weft::cache::Mode>().is_ok()));
    }
}
