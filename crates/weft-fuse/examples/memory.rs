//! Mounts an empty file system in memory until it is unmounted or signalled:
//! `memory MOUNTPOINT [writethrough] [others] [noxattr] [io_uring=WHEN] [threads=N]`.

use std::path::PathBuf;
use std::sync::Arc;

use weft_fuse::MountOptions;
use weft_vfs::{MemFs, MemLimits};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mountpoint = PathBuf::from(arguments.next().ok_or("which mount point?")?);
    let mut options = MountOptions { source: "memory".into(), ..MountOptions::default() };
    for argument in arguments {
        match argument.split_once('=') {
            None if argument == "writethrough" => options.writeback_cache = false,
            None if argument == "others" => options.allow_other = true,
            None if argument == "noxattr" => options.xattrs = false,
            Some(("io_uring", when)) => options.io_uring = when.parse()?,
            Some(("threads", n)) => options.threads = n.parse()?,
            _ => return Err(format!("unknown option {argument}").into()),
        }
    }
    let limits = MemLimits { capacity_bytes: 4 << 30, ..MemLimits::default() };
    let mut mount = weft_fuse::mount(Arc::new(MemFs::with_limits(limits)), &mountpoint, &options)?;
    mount.unmount_on_signals()?;
    mount.wait()?;
    for (name, count) in mount.requests() {
        println!("{count:10} {name}");
    }
    Ok(())
}
