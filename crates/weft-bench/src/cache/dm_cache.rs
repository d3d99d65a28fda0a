//! The kernel's dm-cache in a guest, measured by scripts/guest.sh, with weft's cache beside it.

use crate::report::Section;
use crate::stats::thousands;
use crate::{Bench, machine};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = "scripts/guest.sh";

/// The counts, with their meanings.
const COUNTS: [(&str, &str); 7] = [
    ("fills", "blocks of 32 KiB brought in by reads"),
    ("metadata-writes", "write requests to the metadata"),
    ("metadata-sectors", "sectors of metadata written"),
    ("dirty-before-reset", "dirty blocks before the reset"),
    ("hits-after-reset", "hits when all is read again after the reset"),
    ("misses-after-reset", "misses"),
    ("sectors-rewritten", "sectors written to the origin after the reset"),
];

/// Measures the table.
pub fn dm_cache(bench: &Bench) -> Result<()> {
    ensure!(Path::new(SCRIPT).exists(), "{SCRIPT} is not here: run it in the source tree");
    let mut section = Section::new("cache-dm", "The kernel's dm-cache through a reset");
    section.line(
        "In a QEMU guest with Debian's kernel (`scripts/guest.sh dm-cache`): a volume is read until \
         it is cached, the cache is left alone until nothing is dirty, the machine is reset, the \
         cache is activated and everything read again. dm-cache (write-back, smq) runs in the guest. \
         weft's cache is in a server on the host, which the guest reads through the kernel's NBD \
         client and which is killed; its figures are in its own blocks of 4 KiB.",
    );
    let out = Command::new("bash").arg(SCRIPT).arg("dm-cache").arg(&bench.weft).output()?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if let Some(why) = said.lines().find(|l| l.starts_with("skipped:")) {
        section.line(&format!("Skipped: the guest: {why}"));
        return section.signed(&machine::describe(), "weft-bench dm-cache").save(&bench.report);
    }
    ensure!(
        out.status.success(),
        "{SCRIPT} dm-cache failed:\n{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let counts = parse(&said);
    let figure = |who: &str, name: &str| {
        counts.get(&(who, name)).map_or_else(|| "-".to_owned(), |n| thousands(*n))
    };
    let mut rows: Vec<Vec<String>> = COUNTS
        .iter()
        .map(|(name, what)| {
            vec![(*what).to_owned(), figure("dm-cache", name), figure("weft", name)]
        })
        .collect();
    let per_fill = |who| match (counts.get(&(who, "metadata-writes")), counts.get(&(who, "fills")))
    {
        (Some(writes), Some(fills @ 1..)) => format!("{:.3}", *writes as f64 / *fills as f64),
        _ => "-".to_owned(),
    };
    rows.insert(
        2,
        vec!["metadata writes for a fill".into(), per_fill("dm-cache"), per_fill("weft")],
    );
    section.table(&["", "dm-cache", "weft"], &rows);
    section.signed(&machine::describe(), "weft-bench dm-cache").save(&bench.report)
}

/// Parses lines `WHO NAME NUMBER`, where WHO is `dm-cache` or `weft`.
fn parse(said: &str) -> BTreeMap<(&str, &str), u64> {
    said.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (who, name, number) = (words.next()?, words.next()?, words.next()?);
            (who == "dm-cache" || who == "weft").then_some(())?;
            Some(((who, name), number.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_among_other_lines() {
        let said =
            "== dm-cache: the kernel's\ndm-cache fills 518\nweft fills 4096\npass: dm-cache x\n";
        let counts = parse(said);
        assert_eq!(counts.get(&("dm-cache", "fills")), Some(&518));
        assert_eq!(counts.get(&("weft", "fills")), Some(&4096));
        assert_eq!(counts.len(), 2);
    }
}
