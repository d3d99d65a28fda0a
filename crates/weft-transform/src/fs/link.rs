//! The content of links.
//!
//! A link is a regular file whose attribute (or rule) is `link`, and whose content names the base
//! and the network. It is text, and readable without weft too:
//!
//! ```text
//! weft link 1
//! base: ../data/report.csv
//! network: view: json
//! ```

use weft_vfs::{Error, Result};

use crate::Network;
use crate::text::{Element, Text};

/// The value of [`NETWORK_ATTRIBUTE`](super::NETWORK_ATTRIBUTE) that marks a link.
pub const LINK: &[u8] = b"link";

/// The first line of a link.
pub const LINK_MAGIC: &str = "weft link 1";

/// Maximum length of a link, in bytes.
pub(super) const LINK_MAX_BYTES: usize = 16 << 10;

/// Returns true if a rule declares files to be links.
pub(super) fn is_link(text: &Text) -> bool {
    match &text.pipe[..] {
        [Element::Stage(stage)] => stage.name.as_bytes() == LINK && stage.parameters.is_empty(),
        _ => false,
    }
}

/// Parses the base and the network of a link.
pub(super) fn parse_link(content: &[u8]) -> Result<(&str, &str)> {
    let wrong = Error::Invalid(
        "no link of weft: it says \"weft link 1\", \"base: PATH\" and \"network: TEXT\"",
    );
    let Ok(text) = std::str::from_utf8(content) else { return Err(wrong) };
    if text.len() >= LINK_MAX_BYTES {
        return Err(wrong);
    }
    let mut lines = text.lines();
    if lines.next() != Some(LINK_MAGIC) {
        return Err(wrong);
    }
    let (mut base, mut network) = (None, None);
    for line in lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let value = |name: &str| line.strip_prefix(name).map(str::trim);
        match (value("base:"), value("network:")) {
            (Some(value), _) if base.is_none() => base = Some(value),
            (_, Some(value)) if network.is_none() => network = Some(value),
            _ => return Err(wrong),
        }
    }
    base.zip(network).ok_or(wrong)
}

/// Returns the content of a link.
#[must_use]
pub fn link_content(base: &str, network: &Network) -> String {
    format!("{LINK_MAGIC}\nbase: {base}\nnetwork: {network}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_nonsense_is_not() {
        let text = "weft link 1\n# why\nbase: ../a b.csv\n\nnetwork: view: json | upper\n";
        assert_eq!(
            parse_link(text.as_bytes()).expect("a link"),
            ("../a b.csv", "view: json | upper")
        );
        for bad in [
            "",
            "weft link 2\nbase: a\nnetwork: b",
            "weft link 1\nbase: a",
            "weft link 1\nbase: a\nbase: b\nnetwork: c",
            "weft link 1\nbase: a\nnetwork: b\nmore",
        ] {
            assert!(parse_link(bad.as_bytes()).is_err(), "{bad}");
        }
        let long = format!("weft link 1\nbase: {}\nnetwork: b", "a".repeat(LINK_MAX_BYTES));
        assert!(parse_link(long.as_bytes()).is_err());
    }
}
