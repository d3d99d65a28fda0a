//! A fresh start with a cell that is older than what this client has seen of it, or with a local
//! store that is a copy of another.

use std::fs;
use std::io;
use std::path::Path;

use weft_ringer_net::{Error, Result};
use weft_vfs::host_file;

/// The files with a client's identity, and its changes: those that the cell never had are conflicts
/// by now ([`Engine::give_up_unsent`](super::engine::Engine::give_up_unsent)). Conflicts stay.
///
/// In an order in which each part of it may be done when the power fails: changes do not meet a new
/// identity, and `known` notices an older cell until the identity is new.
const OF_ONE_PAST: [&str; 6] =
    ["journal", "journal.damaged", "identity", "incarnation", "runs", "known"];
/// The directories of blocks that may have no other copy.
const ITS_BLOCKS: [&str; 2] = ["own", "kept"];

/// Sets aside a client's state of a history that its cell no longer has, or that another client
/// continues, so that it begins anew:
/// its identity and its changes. Its blocks stay, since the cell may need them; second names keep
/// which they were.
pub(crate) fn set_aside(dir: &Path, kind: &str, why: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io(format!("the local store {}", dir.display()), e);
    let aside = (1..).map(|n| dir.join(format!("{kind}-{n}"))).find(|path| !path.exists());
    let Some(aside) = aside else { return Ok(()) };
    host_file::create_dir_all(&aside, 0o700).map_err(failed)?;
    for kind in ITS_BLOCKS {
        for rnode in fs::read_dir(dir.join(kind)).into_iter().flatten() {
            let rnode = rnode.map_err(failed)?;
            let to = aside.join(kind).join(rnode.file_name());
            host_file::create_dir_all(&to, 0o700).map_err(failed)?;
            for block in fs::read_dir(rnode.path()).map_err(failed)? {
                let block = block.map_err(failed)?;
                fs::hard_link(block.path(), to.join(block.file_name())).map_err(failed)?;
            }
            host_file::sync_dir(&to).map_err(failed)?;
        }
    }
    for name in OF_ONE_PAST {
        match host_file::rename(&dir.join(name), &aside.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    tracing::warn!("{why}. Accepted: the earlier data of this client are in {}", aside.display());
    Ok(())
}
