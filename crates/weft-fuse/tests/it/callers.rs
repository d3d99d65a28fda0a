//! For whom a change is made: the file system is told the process and the user.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use weft_fuse::MountOptions;
use weft_vfs::conformance::forwarding::Recorder;

use crate::options;

#[test]
fn every_change_names_the_process_that_makes_it() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(Recorder::new(Arc::new(crate::memory())));
    let options = MountOptions { writeback_cache: false, ..options() };
    let mut mount = weft_fuse::mount(fs.clone(), dir.path(), &options).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    for (command, calls) in [
        ("dd if=/dev/zero of=file bs=512 count=1 conv=fsync status=none", &["write", "fsync"][..]),
        ("mkdir dir", &["mkdir"]),
        ("chmod 600 file", &["setattr"]),
        ("truncate --size 100 file", &["setattr"]),
        ("ln file name", &["link"]),
        ("mv name dir/name", &["rename"]),
        ("fallocate --length 8192 file", &["fallocate"]),
        ("sync dir", &["fsync_dir"]),
        ("rm dir/name", &["unlink"]),
        ("rmdir dir", &["rmdir"]),
    ] {
        drop(fs.take_calls());
        let mut words = command.split(' ');
        let mut program = Command::new(words.next().unwrap());
        let mut child = program.args(words).current_dir(dir.path()).spawn().unwrap();
        let pid = child.id();
        assert!(child.wait().unwrap().success(), "{command}");
        let seen = fs.take_calls();
        for name in calls {
            let caller = seen.iter().find(|call| call.name == *name).map(|call| &call.caller);
            let caller = caller.unwrap_or_else(|| panic!("{command}: no {name} in {seen:?}"));
            let caller = caller.as_ref().unwrap_or_else(|| panic!("{name} has no caller"));
            assert_eq!((caller.pid, caller.uid), (pid, uid), "{command}: {name}");
        }
    }
    crate::unmount(&mut mount);
}
