//! Scrubbing: reads all of the local store, to find damage of the disk before a block is needed.
//! Damaged blocks are fetched from other clients and archives, and replaced.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use weft_vfs::{Error, Result};

use super::client_fs::{ClientFs, Scrub};
use super::errors::io_error;
use super::fs::RingerFs;
use super::mutex::locked;

/// The attribute of a mount's root that starts a scrub of the local store when it is set to
/// `start`, and that shows its progress: lines of a name and a value, with a tab between; then a
/// line for each damaged block.
pub const SCRUB_XATTR: &[u8] = b"user.weft.scrub";
/// The most damaged blocks that are named; the others are counted.
const NAMED_MAX: usize = 300;
/// The pause after each block, which leaves disk bandwidth to others.
const PACE: Duration = Duration::from_micros(200);

impl RingerFs {
    pub(super) fn start_scrub(&self, value: &[u8]) -> Result<()> {
        if value != b"start" {
            return Err(Error::Invalid("write start"));
        }
        {
            let mut scrub = locked(&self.client.scrubbing);
            if scrub.running {
                return Err(Error::Busy);
            }
            *scrub = Scrub { running: true, begun: scrub.begun + 1, ..Scrub::default() };
        }
        let client = Arc::downgrade(&self.client);
        let started = self.client.engine.spawn("ringer-scrub", move |_| {
            if let Some(client) = client.upgrade() {
                client.scrub_store();
            }
        });
        started.map_err(|e| {
            locked(&self.client.scrubbing).running = false;
            Error::Io { errno: 11, message: e.to_string() }
        })
    }
}

impl ClientFs {
    fn scrub_store(&self) {
        let ended = self.read_store_through();
        let mut scrub = locked(&self.scrubbing);
        scrub.running = false;
        scrub.why_ended = ended.err().map(|e| e.to_string());
        let (blocks, healed, lost) = (scrub.blocks, scrub.healed, scrub.lost);
        if healed + lost > 0 || scrub.why_ended.is_some() {
            let why = scrub.why_ended.as_deref().unwrap_or("complete");
            tracing::error!(
                "scrub of the local store: {blocks} blocks read, {healed} repaired, {lost} \
                damaged without another copy: {why}"
            );
        }
    }

    fn read_store_through(&self) -> Result<()> {
        let stored = self.engine.blocks.all_stored().map_err(|e| io_error(&e))?;
        for (kind, rnode, hash) in stored {
            if self.engine.is_stopped() {
                return Err(Error::Interrupted);
            }
            let blocks = &self.engine.blocks;
            let Some(checked) = blocks.check_stored(kind, rnode, &hash) else { continue };
            {
                let mut scrub = locked(&self.scrubbing);
                scrub.blocks += 1;
                scrub.bytes += checked.len_bytes;
            }
            if checked.damage.is_some() {
                let said = match self.heal(rnode, &hash) {
                    Ok(_) => "healed".to_owned(),
                    Err(why) => format!("lost\t{why}"),
                };
                let mut scrub = locked(&self.scrubbing);
                if said == "healed" {
                    scrub.healed += 1;
                } else {
                    scrub.lost += 1;
                }
                if scrub.named.len() < NAMED_MAX {
                    scrub.named.push(format!("block\t{kind}\t{}\t{hash}\t{said}", rnode.0));
                }
            }
            std::thread::sleep(PACE);
        }
        Ok(())
    }

    /// The progress of the scrub, as text.
    pub(super) fn describe_scrub(&self) -> Vec<u8> {
        let scrub = locked(&self.scrubbing);
        let state = match (scrub.running, &scrub.why_ended, scrub.begun) {
            (true, ..) => "running",
            (_, _, 0) => "never",
            (_, Some(_), _) => "failed",
            (_, None, _) => "done",
        };
        let mut text = format!("state\t{state}\n");
        let counts = [
            ("blocks", scrub.blocks),
            ("bytes", scrub.bytes),
            ("healed", scrub.healed),
            ("lost", scrub.lost),
        ];
        for (name, count) in counts {
            let _ = writeln!(text, "{name}\t{count}");
        }
        if let Some(why) = &scrub.why_ended {
            let _ = writeln!(text, "why\t{why}");
        }
        for named in &scrub.named {
            let _ = writeln!(text, "{named}");
        }
        text.into_bytes()
    }
}
