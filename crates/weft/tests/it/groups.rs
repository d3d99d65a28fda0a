//! Patchgroups of a volume in process: their kinds, and being told that they are durable.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weft::patchgroups::Kind;
use weft::{Group, Options, Volume};

/// A new volume, opened for writing; its image is `v.img` in the directory.
fn volume(format: &str, order: &str) -> (TempDir, Volume) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("v.img");
    let image = image.to_str().expect("UTF-8");
    weft::mkfs::make_named(image, format, Some(64 << 20), "", false).expect("a volume");
    let order = Some(order.parse().expect("an order"));
    let volume = Volume::open(image, &Options { order, ..Options::default() });
    (dir, volume.expect("it opens"))
}

fn is_readable(told: &OwnedFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).expect("a short time");
    poll(&mut [PollFd::new(told, PollFlags::IN)], Some(&within)).expect("it polls") == 1
}

/// Reads what there is; nothing at the end of the file.
fn read(told: &OwnedFd) -> usize {
    rustix::io::read(told, &mut [0_u8; 16]).expect("it reads")
}

#[track_caller]
fn refused<T>(call: weft::Result<T>, errno: Errno) {
    assert_eq!(call.err().map(|e| e.errno()), Some(errno.raw_os_error()));
}

const MANY: Duration = Duration::from_secs(60);

#[test]
fn a_group_of_a_volume_is_of_each_kind_but_one_that_can_be_aborted() {
    let (_dir, volume) = volume("ext3", "journal");
    for kind in [Kind::Ordinary, Kind::Linear, Kind::Atomic] {
        let group = volume.group_of_kind(kind).expect("a group");
        assert_eq!(group.blocks_left().expect("a number") > 0, kind == Kind::Atomic);
        let left = group.blocks_left().expect("a number");
        group
            .enter_for(|| volume.write_file(b"/f", b"1", 0o644))
            .expect("engaged")
            .expect("written");
        let fewer = group.blocks_left().expect("a number") < left;
        assert_eq!(fewer, kind == Kind::Atomic);
        group.engage().expect("engaged");
        if kind == Kind::Atomic {
            refused(group.commit(), Errno::BUSY);
        }
        group.disengage().expect("disengaged");
        group.commit().expect("committed");
        assert_eq!(group.blocks_left().expect("a number"), 0);
        refused(group.abort(), Errno::OPNOTSUPP);
        assert_eq!(group.engage().is_err(), kind == Kind::Atomic);
        group.disengage().expect("disengaged");
        group.sync().expect("durable");
        assert!(group.is_durable().expect("a state"));
    }
    refused(volume.group_of_kind(Kind::Abortable), Errno::OPNOTSUPP);
    volume.close().expect("closed");
}

#[test]
fn an_atomic_group_needs_a_journal() {
    let (_dir, volume) = volume("ext2", "soft");
    refused(volume.group_of_kind(Kind::Atomic), Errno::OPNOTSUPP);
    volume.group_of_kind(Kind::Linear).expect("a group");
}

#[test]
fn a_volume_is_closed_while_an_atomic_group_is_open() {
    let (dir, volume) = volume("ext3", "journal");
    let group = volume.group_of_kind(Kind::Atomic).expect("a group");
    group.engage().expect("engaged");
    volume.write_file(b"/f", b"whole", 0o644).expect("written");
    let begun = Instant::now();
    volume.close().expect("closed");
    assert!(begun.elapsed() < Duration::from_secs(4), "it has waited for the group");
    refused(group.commit(), Errno::BADF);
    let image = dir.path().join("v.img");
    let volume = Volume::open(image.to_str().expect("UTF-8"), &Options::default());
    assert_eq!(volume.expect("it opens").read_file(b"/f").expect("the file"), b"whole");
}

#[test]
fn a_group_that_another_thread_is_in_ends_when_it_is_dropped() {
    let (_dir, volume) = volume("ext3", "journal");
    let group = Arc::new(volume.group_of_kind(Kind::Atomic).expect("a group"));
    let (entered, is_entered) = channel();
    let (leave, may_leave) = channel::<()>();
    let inside = std::thread::spawn({
        let (group, volume) = (Arc::clone(&group), volume.clone());
        move || {
            group.engage().expect("engaged");
            volume.write_file(b"/f", b"1", 0o644).expect("written");
            drop(group);
            entered.send(()).expect("it is received");
            let _ = may_leave.recv();
        }
    });
    is_entered.recv().expect("it is sent");
    drop(group);
    let begun = Instant::now();
    volume.sync().expect("durable");
    assert!(begun.elapsed() < Duration::from_secs(4), "it has waited for the group");
    drop(leave);
    inside.join().expect("the thread");
}

fn told_after_sync(volume: &Volume, group: &Group) {
    let before = group.tell_durable().expect("a descriptor");
    assert!(is_readable(&before, MANY), "nothing to wait for");
    assert_eq!((read(&before), read(&before)), (4, 0));
    group.enter_for(|| volume.write_file(b"/f", b"1", 0o644)).expect("engaged").expect("written");
    let told = group.tell_durable().expect("a descriptor");
    let unread = group.tell_durable().expect("a descriptor");
    assert!(!is_readable(&told, Duration::from_millis(50)));
    // A program that does not read it any more gets no signal, and holds nobody up.
    drop(unread);
    group.sync().expect("durable");
    assert!(is_readable(&told, MANY));
    assert_eq!((read(&told), read(&told)), (4, 0));
}

#[test]
fn a_descriptor_tells_that_a_group_is_durable() {
    for (format, order) in [("ext2", "soft"), ("ext3", "journal"), ("ext2", "async")] {
        let (_dir, volume) = volume(format, order);
        told_after_sync(&volume, &volume.group().expect("a group"));
        let late = volume.group().expect("a group");
        late.enter_for(|| volume.write_file(b"/g", b"1", 0o644))
            .expect("engaged")
            .expect("written");
        let told = late.tell_durable().expect("a descriptor");
        volume.close().expect("closed");
        assert!(is_readable(&told, MANY) && read(&told) == 4, "closing has made it durable");
        refused(late.tell_durable(), Errno::BADF);
    }
}
