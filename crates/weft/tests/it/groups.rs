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
use weft::vfs::OpenFlags;
use weft::{Group, Options, Volume};

/// A new volume, opened for writing; its image is `v.img` in the directory.
fn volume(format: &str, order: &str) -> (TempDir, Volume) {
    volume_of(format, order, 64 << 20)
}

fn volume_of(format: &str, order: &str, size_bytes: u64) -> (TempDir, Volume) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("v.img");
    let image = image.to_str().expect("UTF-8");
    weft::mkfs::make_named(image, format, Some(size_bytes), "", false).expect("a volume");
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
fn a_group_of_a_volume_is_of_each_kind() {
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
        refused(group.abort(), Errno::INVAL);
        assert_eq!(group.engage().is_err(), kind == Kind::Atomic);
        group.disengage().expect("disengaged");
        group.sync().expect("durable");
        assert!(group.is_durable().expect("a state"));
    }
    volume.close().expect("closed");
}

#[test]
fn an_atomic_group_needs_a_journal() {
    let (_dir, volume) = volume("ext2", "soft");
    refused(volume.group_of_kind(Kind::Atomic), Errno::OPNOTSUPP);
    volume.group_of_kind(Kind::Linear).expect("a group");
}

/// A volume on which changes can be undone, with `/f`, `/g` and `/d/a`.
fn undoable() -> (TempDir, Volume) {
    let (dir, volume) = volume_of("ext3", "journal", 128 << 20);
    volume.write_file(b"/f", b"first", 0o600).expect("written");
    volume.write_file(b"/g", &[7; 10_000], 0o600).expect("written");
    volume.make_dir(b"/d", 0o700).expect("made");
    volume.write_file(b"/d/a", b"a", 0o600).expect("written");
    (dir, volume)
}

fn is_as_before(volume: &Volume) -> bool {
    let names = |path| -> Vec<Vec<u8>> {
        let mut found: Vec<_> =
            volume.list(path).expect("a list").into_iter().map(|listed| listed.name).collect();
        found.sort();
        found
    };
    names(b"/") == [&b"d"[..], b"f", b"g", b"lost+found"]
        && names(b"/d") == [b"a"]
        && volume.read_file(b"/f").expect("a file") == b"first"
        && volume.read_file(b"/g").expect("a file") == [7; 10_000]
        && volume.read_file(b"/d/a").expect("a file") == b"a"
}

/// Changes all that there is.
fn change(volume: &Volume) -> weft::Result<()> {
    volume.write_file(b"/f", b"second", 0o600)?;
    let file = volume.open_file(b"/g", OpenFlags::WRITE, None)?;
    file.write_at(5000, b"new")?;
    file.set_len(6000)?;
    volume.write_file(b"/new", b"new", 0o600)?;
    volume.remove_file(b"/d/a")?;
    volume.remove_dir(b"/d")?;
    volume.rename(b"/g", b"/h")
}

#[test]
fn the_changes_of_a_group_in_process_are_undone() {
    let (dir, volume) = undoable();
    let group = volume.group_of_kind(Kind::Abortable).expect("a group");
    assert!(group.blocks_left().expect("a number") > 0);
    group.enter_for(|| change(&volume)).expect("engaged").expect("changed");
    assert!(!is_as_before(&volume));
    group.abort().expect("undone");
    assert!(is_as_before(&volume));
    refused(group.abort(), Errno::INVAL);
    refused(group.engage(), Errno::BUSY);

    // This thread is in the group, which ends that.
    let group = volume.group_of_kind(Kind::Abortable).expect("a group");
    group.engage().expect("engaged");
    change(&volume).expect("changed");
    group.abort().expect("undone");
    assert!(is_as_before(&volume));
    volume.write_file(b"/new", b"in no group", 0o600).expect("written");
    volume.remove_file(b"/new").expect("removed");
    volume.close().expect("closed");

    let image = dir.path().join("v.img");
    let volume = Volume::open(image.to_str().expect("UTF-8"), &Options::default());
    assert!(is_as_before(&volume.expect("it opens")));
}

#[test]
fn what_a_group_in_process_has_changed_stays_once_it_has_ended() {
    let (dir, volume) = undoable();
    let make = || volume.group_of_kind(Kind::Abortable).expect("a group");
    let write = |group: &Group, text: &[u8]| {
        let written = group.enter_for(|| volume.write_file(b"/f", text, 0o600));
        written.expect("engaged").expect("written");
    };
    let committed = make();
    committed.engage().expect("engaged");
    refused(committed.commit(), Errno::BUSY);
    committed.disengage().expect("disengaged");
    write(&committed, b"1");
    committed.commit().expect("committed");
    refused(committed.abort(), Errno::INVAL);
    let followed = make();
    write(&followed, b"2");
    volume.group().expect("a group").depend(&followed).expect("dependent");
    refused(followed.abort(), Errno::INVAL);
    let synced = make();
    write(&synced, b"3");
    synced.sync().expect("durable");
    refused(synced.abort(), Errno::INVAL);
    let dropped = make();
    write(&dropped, b"4");
    drop(dropped);
    volume.sync().expect("durable");
    let closed = make();
    write(&closed, b"5");
    volume.close().expect("closed");
    refused(closed.abort(), Errno::BADF);
    let image = dir.path().join("v.img");
    // It is free, though there are groups.
    let volume = Volume::open(image.to_str().expect("UTF-8"), &Options::default());
    assert_eq!(volume.expect("it opens").read_file(b"/f").expect("the file"), b"5");
}

#[test]
fn what_others_have_changed_too_is_not_undone() {
    let (_dir, volume) = undoable();
    let (group, other) = (volume.group_of_kind(Kind::Abortable), volume.clone());
    let group = group.expect("a group");
    let write = |text: &[u8]| volume.write_file(b"/f", text, 0o600).expect("written");
    group.enter_for(|| write(b"of the group")).expect("engaged");
    std::thread::spawn(move || other.write_file(b"/f", b"of another", 0o600).expect("written"))
        .join()
        .expect("the thread");
    refused(group.abort(), Errno::BUSY);
    assert_eq!(volume.read_file(b"/f").expect("the file"), b"of another");
    group.commit().expect("committed");
}

#[test]
fn a_thread_changes_in_one_undoable_group_of_a_volume() {
    let ((_one_dir, one), (_two_dir, two)) = (undoable(), undoable());
    let make = |volume: &Volume| volume.group_of_kind(Kind::Abortable).expect("a group");
    let (of_one, of_two, also_of_two) = (make(&one), make(&two), make(&two));
    of_one.engage().expect("engaged");
    of_two.engage().expect("engaged");
    change(&one).expect("changed");
    change(&two).expect("changed");
    also_of_two.engage().expect("engaged");
    refused(two.write_file(b"/f", b"in both", 0o600), Errno::BUSY);
    of_two.abort().expect("undone");
    assert!(is_as_before(&two) && !is_as_before(&one));
    also_of_two.abort().expect("undone");
    of_one.abort().expect("undone");
    assert!(is_as_before(&one) && is_as_before(&two));
}

#[test]
fn a_thread_in_a_group_that_another_has_aborted_is_in_no_group() {
    let (_dir, volume) = undoable();
    let group = volume.group_of_kind(Kind::Abortable).expect("a group");
    let group = Arc::new(group);
    let (tell, told) = channel();
    let (go, gone) = channel::<()>();
    let inside = std::thread::spawn({
        let (group, volume) = (Arc::clone(&group), volume.clone());
        move || {
            group.engage().expect("engaged");
            change(&volume).expect("changed");
            tell.send(()).expect("it is received");
            gone.recv().expect("it is sent");
            volume.write_file(b"/later", b"", 0o600).expect("written");
        }
    });
    told.recv().expect("it is sent");
    group.abort().expect("undone");
    assert!(is_as_before(&volume));
    go.send(()).expect("it is received");
    inside.join().expect("the thread");
    volume.remove_file(b"/later").expect("removed");
}

#[test]
fn where_nothing_can_be_undone_there_are_no_such_groups() {
    for (format, order) in [("ext2", "soft"), ("ext3", "journal"), ("hfs", "journal")] {
        let (_dir, volume) = volume(format, order);
        refused(volume.group_of_kind(Kind::Abortable), Errno::OPNOTSUPP);
    }
    let (_dir, volume) = undoable();
    let groups: Vec<_> =
        (0..64).map(|_| volume.group_of_kind(Kind::Abortable).expect("a group")).collect();
    refused(volume.group_of_kind(Kind::Abortable), Errno::MFILE);
    drop(groups);
    volume.group_of_kind(Kind::Abortable).expect("a group");
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
