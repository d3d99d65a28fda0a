//! Memory of a mount's process: after an unpacking of many files and after their removal, beside
//! the size of its cache.

use crate::peer::{Mounted, Peer, Setting};
use crate::report::Section;
use crate::stats::thousands;
use crate::tree::{Tree, run};
use crate::{Bench, machine};
use anyhow::{Context, Result};
use std::fs;
use std::time::Duration;
use weft::Order;
use weft::patch::{JournalMode, Options, Policy};

/// Room for ten copies of the tree, in bytes and in inodes.
const IMAGE_BYTES: u64 = 8 << 30;

/// Copies of the tree in the larger run.
const COPIES: u32 = 10;

/// Memory beside the cache that is granted to the process: its program, the threads' stacks, and
/// what it knows of the inodes that the kernel remembers.
const GRANTED_BYTES: u64 = 32 << 20;

/// Sizes of the resident set of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Resident {
    now: u64,
    /// Of that, pages of files: the program and its libraries (which may lie in memory).
    program: u64,
    highest: u64,
}

impl Resident {
    fn of(process: u32) -> Result<Self> {
        let file = format!("/proc/{process}/status");
        let status = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        Self::parse(&status)
            .with_context(|| format!("{file} lacks VmRSS, RssFile, RssShmem or VmHWM"))
    }

    fn parse(status: &str) -> Option<Self> {
        let bytes = |key: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: u64 = line.strip_prefix(':')?.split_whitespace().next()?.parse().ok()?;
            Some(kib << 10)
        };
        Some(Self {
            now: bytes("VmRSS")?,
            program: bytes("RssFile")? + bytes("RssShmem")?,
            highest: bytes("VmHWM")?,
        })
    }
}

/// Measures both amounts of files in both orders.
pub fn memory(bench: &Bench) -> Result<()> {
    let tree = bench.whole_tree()?;
    let setting = Setting::new(bench, None);
    let options = Options::default();
    let (clean, dirty) = (options.clean_cache_bytes as u64, options.memory_budget_bytes as u64);
    let mut section = Section::new("memory", "Memory of a mount's process");
    section.line(&format!(
        "The resident set of `weft mount` in MiB, after `tar -xf` of {} (or of several copies) and \
         after `rm -rf` of it, at once and when all is written back. The cache is {} MiB of clean \
         blocks, and while files change up to {} MiB of dirty ones. Written back, the process is to \
         have at most the clean cache and {} MiB; at its highest, both and {} MiB.",
        tree.describe(),
        clean >> 20,
        dirty >> 20,
        GRANTED_BYTES >> 20,
        GRANTED_BYTES >> 20,
    ));
    let peers = [Policy::Soft, Policy::Journal(JournalMode::Ordered)].map(|p| Peer::Weft(Order(p)));
    let mut rows = Vec::new();
    for copies in if bench.quick { vec![1] } else { vec![1, COPIES] } {
        for peer in peers {
            if let Some(why) = peer.missing(&setting) {
                section.line(&format!("Skipped: {peer}: {why}."));
                continue;
            }
            eprintln!("memory: {copies} times the tree, {peer}");
            let sizes = one_run(&setting, &tree, peer, copies, options.max_age)
                .with_context(|| format!("on {peer}"))?;
            rows.push(sizes.cells(peer, u64::from(copies) * tree.files, clean, dirty));
        }
    }
    section.table(
        &[
            "",
            "files",
            "unpacked",
            "written back",
            "removed",
            "written back",
            "highest",
            "of which the program",
            "within the bounds",
        ],
        &rows,
    );
    let command = format!("weft-bench memory{}", if bench.quick { " --quick" } else { "" });
    section.signed(&machine::describe(), &command).save(&bench.report)
}

/// The sizes of one run, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    unpacked: u64,
    unpacked_at_rest: u64,
    removed: u64,
    removed_at_rest: u64,
    highest: u64,
    program: u64,
}

impl Sizes {
    fn cells(self, peer: Peer, files: u64, clean: u64, dirty: u64) -> Vec<String> {
        let mib = |bytes: u64| (bytes >> 20).to_string();
        vec![
            peer.to_string(),
            thousands(files),
            mib(self.unpacked),
            mib(self.unpacked_at_rest),
            mib(self.removed),
            mib(self.removed_at_rest),
            mib(self.highest),
            mib(self.program),
            self.verdict(clean, dirty),
        ]
    }

    fn verdict(self, clean: u64, dirty: u64) -> String {
        let excess = |bytes: u64, bound: u64| bytes.saturating_sub(bound).div_ceil(1 << 20);
        let at_rest = self.unpacked_at_rest.max(self.removed_at_rest);
        let parts = [
            ("written back", excess(at_rest, clean + GRANTED_BYTES)),
            ("at its highest", excess(self.highest, clean + dirty + GRANTED_BYTES)),
        ];
        let above: Vec<String> = parts
            .into_iter()
            .filter(|(_, mib)| *mib > 0)
            .map(|(when, mib)| format!("{mib} MiB above, {when}"))
            .collect();
        if above.is_empty() { "yes".into() } else { format!("no: {}", above.join("; ")) }
    }
}

fn one_run(
    setting: &Setting,
    tree: &Tree,
    peer: Peer,
    copies: u32,
    max_age: Duration,
) -> Result<Sizes> {
    let volume = peer.make_of(setting, IMAGE_BYTES)?;
    let mounted = volume.mount()?;
    let process = mounted.server_id().context("weft is a process")?;
    let place = |copy: u32| mounted.dir().join(format!("copy{copy}"));
    for copy in 0..copies {
        fs::create_dir(place(copy))?;
        run(setting.command("tar").arg("-xf").arg(&tree.tar).arg("-C").arg(place(copy)))?;
    }
    let unpacked = Resident::of(process)?;
    write_back(&mounted, max_age)?;
    let unpacked_at_rest = Resident::of(process)?;
    for copy in 0..copies {
        run(setting.command("rm").arg("-rf").arg(place(copy)))?;
    }
    let removed = Resident::of(process)?;
    write_back(&mounted, max_age)?;
    let removed_at_rest = Resident::of(process)?;
    mounted.finish()?;
    Ok(Sizes {
        unpacked: unpacked.now,
        unpacked_at_rest: unpacked_at_rest.now,
        removed: removed.now,
        removed_at_rest: removed_at_rest.now,
        highest: removed_at_rest.highest,
        program: removed_at_rest.program,
    })
}

/// Waits until the server has nothing left to write.
fn write_back(mounted: &Mounted<'_>, max_age: Duration) -> Result<()> {
    // The kernel passes no syncfs(2) to a FUSE server without a block device, so all that remains
    // is the age at which everything is written; a block that changes without pause is at twice it,
    // and under soft updates what waits for that block comes to its own age later.
    std::thread::sleep(max_age * 6);
    loop {
        let before = mounted.server_cpu();
        std::thread::sleep(Duration::from_secs(1));
        if mounted.server_cpu() <= before {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_read_in_bytes() {
        let status = "Name:\tweft\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssFile:\t 256 kB\nRssShmem:\t 256 kB\n";
        let expected = Resident { now: MIB, program: MIB / 2, highest: 2 * MIB };
        assert_eq!(Resident::parse(status), Some(expected));
        assert_eq!(Resident::parse("Name:\tweft\n"), None);
    }

    #[test]
    fn the_bounds_are_those_of_rest_and_of_load() {
        let sizes = Sizes {
            unpacked: 300 * MIB,
            unpacked_at_rest: 90 * MIB,
            removed: 300 * MIB,
            removed_at_rest: 96 * MIB,
            highest: 352 * MIB,
            program: 12 * MIB,
        };
        assert_eq!(sizes.verdict(64 * MIB, 256 * MIB), "yes");
        let worse = Sizes { removed_at_rest: 96 * MIB + 1, highest: 400 * MIB, ..sizes };
        assert_eq!(
            worse.verdict(64 * MIB, 256 * MIB),
            "no: 1 MiB above, written back; 48 MiB above, at its highest"
        );
    }
}
