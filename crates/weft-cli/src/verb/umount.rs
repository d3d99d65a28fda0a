//! `umount`.

use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::time::Duration;
use weft::ending::{Ended, Ending};
use weft::mounts;

/// How long to wait for the server of a mount to write everything back before saying so.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for a source to become free where its server does not tell how the mount ended:
/// whoever holds the source may be another.
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
    // Before it is gone: afterwards there is no telling whose mount it was.
    let ending = Ending::of(&mounted);
    let dead = mounts::is_dead(&args.mountpoint);
    mounts::unmount(&args.mountpoint, args.lazy)?;
    if mounts::is_mounted(mounted.device)? {
        // One of several places where it can be seen (a bind mount): its server goes on.
        return Ok(DONE);
    }
    // Its server goes on until all is on the disk. A lazy unmount does not wait for users, and a
    // reader has nothing to write.
    let source = mounted.source.to_string_lossy();
    if dead && !args.lazy && !mounted.read_only {
        return Err(Failure::new(format!(
            "unmounted, but the process behind the mount had died: what it had not yet written to \
             {source} is lost; look at it with weft fsck"
        )));
    }
    if let (Some(ending), false) = (ending, args.lazy) {
        return wait(out, ending, &source, mounted.device);
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

/// Waits until the process behind the mount says how it ended, for as long as that takes: a slow
/// disk is no failure, and a process that dies is heard. But if the mount lives on in another mount
/// namespace, there is no end to wait for.
fn wait(out: Output, mut ending: Ending, source: &str, device: (u32, u32)) -> Outcome {
    let mut told = false;
    let ended = loop {
        if let Some(ended) = ending.wait(PATIENCE)? {
            break ended;
        }
        if let Some((pid, name)) = mounts::user_in_another_namespace(device) {
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
        Ended::Failed(why) => {
            Err(Failure::new(format!("unmounted, but {source} is not all written: {why}")))
        }
        Ended::Unknown => Err(Failure::new(format!(
            "unmounted, but the process behind the mount ended before all was written to {source} \
             (was it killed?); look at it with weft fsck"
        ))),
    }
}
