//! Beginning anew with a cell that is older than what this client has seen of it.

use std::fs;
use std::io;
use std::path::Path;

use weft_ringer_net::{Error, Result, private_dir};

/// What makes a client the same over restarts, and what it alone has changed.
const OF_ONE_PAST: [&str; 6] =
    ["identity", "incarnation", "known", "journal", "journal.damaged", "conflicts"];
/// Directories of blocks that only it may have.
const ITS_BLOCKS: [&str; 2] = ["own", "kept"];

/// Sets aside what a client has of a past that its cell does not have any more, so that it begins anew:
/// who it was and what it had changed. Its blocks stay, since the cell may have use for them; what they were
/// is kept by second names.
pub(crate) fn set_aside(dir: &Path, why: &str) -> Result<()> {
    let failed = |e: io::Error| Error::io(format!("the local store {}", dir.display()), e);
    let aside = (1..).map(|n| dir.join(format!("older-cell-{n}"))).find(|path| !path.exists());
    let Some(aside) = aside else { return Ok(()) };
    private_dir(&aside).map_err(failed)?;
    for kind in ITS_BLOCKS {
        for rnode in fs::read_dir(dir.join(kind)).into_iter().flatten() {
            let rnode = rnode.map_err(failed)?;
            let to = aside.join(kind).join(rnode.file_name());
            private_dir(&to).map_err(failed)?;
            for block in fs::read_dir(rnode.path()).map_err(failed)? {
                let block = block.map_err(failed)?;
                fs::hard_link(block.path(), to.join(block.file_name())).map_err(failed)?;
            }
        }
    }
    for name in OF_ONE_PAST {
        match fs::rename(dir.join(name), aside.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    tracing::warn!("{why}. That is accepted: what this client had is in {}", aside.display());
    Ok(())
}
