//! `umount`.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::time::Duration;
use weft::ending::{Ended, Ending};
use weft::mounts::{self, Mounted};

/// The wait for the server of a mount to write everything back before a note is printed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The wait for a source to become free if its server does not report how the mount ended: another
/// process may hold the source.
const LIMIT: Duration = Duration::from_secs(600);

/// `umount`.
pub fn run(out: Output, args: &cli::Umount) -> Outcome {
    let shown = args.mountpoint.display();
    let Some(mounted) = mounts::mounted_at(&args.mountpoint)? else {
        return Err(Failure::new(format!("nothing is mounted on {shown}")));
    };
    if !mounted.is_weft() {
        let kind = &mounted.fs_type;
        return Err(Failure::new(format!("{shown} is a {kind} mount; use umount(8) for it")));
    }
    // Before the unmount: afterwards the owner of the mount is no longer known.
    let ending = Ending::of(&mounted);
    // A process that listens lives.
    let dead = ending.is_none() && !args.lazy && mounts::is_dead(&args.mountpoint);
    mounts::unmount(&args.mountpoint, args.lazy)?;
    if mounts::is_mounted(&mounted)? {
        // The mount is still visible elsewhere (a bind mount): its server continues.
        return Ok(DONE);
    }
    // The server continues until everything is on the disk. A lazy unmount does not wait for users,
    // and a read-only mount has nothing to write.
    let source = mounted.source.to_string_lossy();
    if dead && !mounted.read_only {
        return Err(Failure::new(format!(
            "unmounted, but the process of the mount had died: data not yet written to {source} \
            are lost; check it with weft fsck"
        )));
    }
    if let (Some(ending), false) = (ending, args.lazy) {
        return wait(out, ending, &mounted);
    }
    if args.lazy || mounted.read_only || mounts::wait_until_free(&source, PATIENCE)? {
        return Ok(DONE);
    }
    out.note(&format!("unmounted; waiting until {source} is on the disk"));
    if mounts::wait_until_free(&source, LIMIT)? {
        Ok(DONE)
    } else {
        Err(Failure::new(format!("unmounted, but some process still holds {source}")))
    }
}

/// Waits without limit until the process behind the mount reports how it ended: a slow disk is no
/// failure, and the death of the process is noticed. But if the mount is still used in another
/// mount namespace, this fails instead of waiting.
fn wait(out: Output, mut ending: Ending, mounted: &Mounted) -> Outcome {
    let source = mounted.source.to_string_lossy();
    let mut told = false;
    let ended = loop {
        if let Some(ended) = ending.wait(PATIENCE)? {
            break ended;
        }
        if let Some((pid, name)) = mounts::user_in_another_namespace(mounted) {
            return Err(Failure::new(format!(
                "unmounted here, but {source} is still mounted in another mount namespace, that of \
                 process {pid} ({name}); it stays in use until that is unmounted, too"
            )));
        }
        if !told {
            out.note(&format!("unmounted; waiting until {source} is on the disk"));
            told = true;
        }
    };
    match ended {
        Ended::Durable => Ok(DONE),
        Ended::Failed(why) => Err(Failure::new(format!(
            "unmounted, but not all data were written to {source}: {why}"
        ))),
        Ended::Unknown => Err(Failure::new(format!(
            "unmounted, but the process of the mount ended before all data were written to \
            {source} (was it killed?); check it with weft fsck"
        ))),
    }
}
