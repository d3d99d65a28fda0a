//! POSIX ACLs: kept in step with the mode, inherited, or refused.

use super::bench::{Bench, caller, refused};
use crate::acl::{ACCESS, DEFAULT};
use crate::{Attr, Caller, Error, FileKind, Ino, OpenFlags, Result, SetAttr, XattrSet};

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// Encodes an attribute value with these entries.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn plain(owner: u16, group: u16, others: u16) -> Vec<u8> {
    list(&[(OWNER, owner, NO_ID), (OWNING_GROUP, group, NO_ID), (OTHERS, others, NO_ID)])
}

/// An ACL with a named user.
fn named(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    list(&[
        (OWNER, owner, NO_ID),
        (USER, user, 1001),
        (OWNING_GROUP, group, NO_ID),
        (MASK, mask, NO_ID),
        (OTHERS, others, NO_ID),
    ])
}

impl Bench<'_> {
    fn perm(&self, ino: Ino) -> Result<u16> {
        Ok(self.fs.getattr(ino)?.perm)
    }

    fn acl(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.fs.getxattr(ino, name) {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn chmod(&self, ino: Ino, perm: u16) -> Result<Attr> {
        self.fs.setattr(&Caller::ROOT, ino, &SetAttr { perm: Some(perm), ..SetAttr::default() })
    }
}

/// Asserts that an accepted ACL changes the mode, and that an ACL is refused where that is
/// impossible.
pub(super) fn never_a_silent_yes(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"file", 0o600)?;
    match bench.fs.setxattr(&Caller::ROOT, node.ino(), ACCESS, &plain(7, 5, 5), XattrSet::Any) {
        Ok(()) => assert_eq!(bench.perm(node.ino())?, 0o755, "kept, but not obeyed"),
        Err(Error::Unsupported(_)) => assert!(!bench.fs.has_acls(), "promised, but refused"),
        Err(other) => panic!("failed with {other:?} in place of Unsupported"),
    }
    Ok(())
}

pub(super) fn mode_and_list_follow_each_other(bench: &Bench<'_>) -> Result<()> {
    if !bench.fs.has_acls() {
        return Ok(());
    }
    let fs = &bench.fs;
    for node in [
        bench.root().create(&caller(), b"file", 0o4600)?,
        bench.root().mkdir(&caller(), b"dir", 0o4600)?,
    ] {
        let ino = node.ino();
        // An ACL equivalent to a mode is stored as the mode alone.
        fs.setxattr(&Caller::ROOT, ino, ACCESS, &plain(7, 5, 4), XattrSet::Any)?;
        assert_eq!((bench.perm(ino)?, bench.acl(ino, ACCESS)?), (0o4754, None));
        assert!(fs.listxattr(ino)?.is_empty());
        // With a mask, the group bits of the mode are the mask.
        fs.setxattr(&Caller::ROOT, ino, ACCESS, &named(6, 7, 0, 5, 1), XattrSet::Any)?;
        assert_eq!(bench.perm(ino)?, 0o4651);
        assert_eq!(bench.acl(ino, ACCESS)?, Some(named(6, 7, 0, 5, 1)));
        assert_eq!(fs.listxattr(ino)?, [ACCESS.to_vec()]);
        assert_eq!(bench.chmod(ino, 0o2714)?.perm, 0o2714);
        assert_eq!(bench.acl(ino, ACCESS)?, Some(named(7, 7, 0, 1, 4)));
        refused!(
            fs.setxattr(&Caller::ROOT, ino, ACCESS, &plain(7, 5, 4), XattrSet::Create),
            Exists
        );
        // Removing the ACL leaves the mode unchanged; setting a list without entries removes it
        // too.
        fs.removexattr(&Caller::ROOT, ino, ACCESS)?;
        assert_eq!((bench.perm(ino)?, bench.acl(ino, ACCESS)?), (0o2714, None));
        refused!(fs.removexattr(&Caller::ROOT, ino, ACCESS), NoAttribute);
        fs.setxattr(&Caller::ROOT, ino, ACCESS, &named(6, 7, 0, 5, 1), XattrSet::Any)?;
        fs.setxattr(&Caller::ROOT, ino, ACCESS, &list(&[]), XattrSet::Any)?;
        assert_eq!((bench.perm(ino)?, bench.acl(ino, ACCESS)?), (0o2651, None));
        // Beside other attributes.
        fs.setxattr(&Caller::ROOT, ino, b"user.a", &[7; 40], XattrSet::Any)?;
        fs.setxattr(&Caller::ROOT, ino, ACCESS, &named(6, 7, 0, 5, 1), XattrSet::Any)?;
        bench.chmod(ino, 0o777)?;
        assert_eq!(bench.acl(ino, ACCESS)?, Some(named(7, 7, 0, 7, 7)));
        assert_eq!(fs.getxattr(ino, b"user.a")?, [7; 40]);
    }
    Ok(())
}

pub(super) fn what_makes_no_sense_is_refused(bench: &Bench<'_>) -> Result<()> {
    if !bench.fs.has_acls() {
        return Ok(());
    }
    let fs = &bench.fs;
    let file = bench.root().create(&caller(), b"file", 0o640)?;
    let without_mask =
        list(&[(OWNER, 7, NO_ID), (USER, 7, 1001), (OWNING_GROUP, 7, NO_ID), (OTHERS, 7, NO_ID)]);
    for bad in [&b"nonsense"[..], &[], &without_mask, &plain(7, 7, 7)[..12], &plain(7, 8, 7)] {
        refused!(fs.setxattr(&Caller::ROOT, file.ino(), ACCESS, bad, XattrSet::Any), Invalid(_));
    }
    refused!(
        fs.setxattr(&Caller::ROOT, file.ino(), DEFAULT, &plain(7, 7, 7), XattrSet::Any),
        Access
    );
    assert_eq!(bench.perm(file.ino())?, 0o640);
    assert!(fs.listxattr(file.ino())?.is_empty());
    if bench.limits.symlinks {
        let link = bench.root().symlink(&caller(), b"link", b"file")?;
        refused!(
            fs.setxattr(&Caller::ROOT, link.ino(), ACCESS, &plain(7, 7, 7), XattrSet::Any),
            Unsupported(_)
        );
    }
    Ok(())
}

pub(super) fn inherited_in_place_of_the_umask(bench: &Bench<'_>) -> Result<()> {
    if !bench.fs.has_acls() {
        return Ok(());
    }
    let fs = &bench.fs;
    let masked = Caller { umask: 0o027, ..caller() };
    let dir = bench.root().mkdir(&masked, b"dir", 0o777)?;
    assert_eq!(bench.perm(dir.ino())?, 0o750, "the umask counts where nothing is inherited");
    let file = fs.mknod(&masked, dir.ino(), b"masked", FileKind::Regular, 0o666, 0)?.attr;
    assert_eq!((file.perm, bench.acl(file.ino, ACCESS)?), (0o640, None));
    fs.forget(file.ino, 1);

    let default = named(7, 6, 5, 7, 0);
    fs.setxattr(&Caller::ROOT, dir.ino(), DEFAULT, &default, XattrSet::Any)?;
    assert_eq!((bench.perm(dir.ino())?, bench.acl(dir.ino(), ACCESS)?), (0o750, None));
    let file = fs.mknod(&masked, dir.ino(), b"file", FileKind::Regular, 0o664, 0)?.attr;
    assert_eq!(file.perm, 0o660);
    assert_eq!(bench.acl(file.ino, ACCESS)?, Some(named(6, 6, 5, 6, 0)));
    assert_eq!(bench.acl(file.ino, DEFAULT)?, None);
    fs.forget(file.ino, 1);
    let (opened, handle) =
        fs.create(&masked, dir.ino(), b"opened", 0o600, OpenFlags::READ | OpenFlags::WRITE)?;
    let opened = opened.attr;
    assert_eq!(opened.perm, 0o600);
    assert_eq!(bench.acl(opened.ino, ACCESS)?, Some(named(6, 6, 5, 0, 0)));
    fs.release(opened.ino, handle.handle)?;
    fs.forget(opened.ino, 1);
    let below = fs.mkdir(&masked, dir.ino(), b"below", 0o2777)?.attr;
    assert_eq!(below.perm & 0o777, 0o770);
    assert_eq!(bench.acl(below.ino, ACCESS)?, Some(named(7, 6, 5, 7, 0)));
    assert_eq!(bench.acl(below.ino, DEFAULT)?, Some(default.clone()));
    fs.forget(below.ino, 1);
    if bench.limits.symlinks {
        let link = fs.symlink(&masked, dir.ino(), b"link", b"file")?.attr;
        assert_eq!(link.perm, 0o777);
        assert!(fs.listxattr(link.ino)?.is_empty());
        fs.forget(link.ino, 1);
    }
    // A default ACL equivalent to a mode is kept, and inherited as a mode.
    fs.setxattr(&Caller::ROOT, dir.ino(), DEFAULT, &plain(7, 5, 5), XattrSet::Any)?;
    assert_eq!(bench.acl(dir.ino(), DEFAULT)?, Some(plain(7, 5, 5)));
    let file = fs.mknod(&masked, dir.ino(), b"plain", FileKind::Regular, 0o666, 0)?.attr;
    assert_eq!((file.perm, bench.acl(file.ino, ACCESS)?), (0o644, None));
    fs.forget(file.ino, 1);
    fs.removexattr(&Caller::ROOT, dir.ino(), DEFAULT)?;
    let file = fs.mknod(&masked, dir.ino(), b"again", FileKind::Regular, 0o666, 0)?.attr;
    assert_eq!(file.perm, 0o640);
    fs.forget(file.ino, 1);
    Ok(())
}

/// Longer than an inode has room for beside its fields; all of its space is freed with the files.
pub(super) fn long_lists_are_inherited(bench: &Bench<'_>) -> Result<()> {
    if !bench.fs.has_acls() {
        return Ok(());
    }
    let fs = &bench.fs;
    let mut entries = vec![(OWNER, 7, NO_ID)];
    entries.extend((0..40).map(|user| (USER, 6, 2000 + user)));
    entries.extend([(OWNING_GROUP, 5, NO_ID), (MASK, 7, NO_ID), (OTHERS, 5, NO_ID)]);
    let default = list(&entries);
    let dir = bench.root().mkdir(&caller(), b"dir", 0o777)?;
    fs.setxattr(&Caller::ROOT, dir.ino(), DEFAULT, &default, XattrSet::Any)?;
    fs.sync()?;
    let free = fs.statfs()?.blocks_free;
    for name in [&b"one"[..], b"two"] {
        let below = fs.mkdir(&caller(), dir.ino(), name, 0o777)?.attr;
        assert_eq!(bench.acl(below.ino, DEFAULT)?.as_ref(), Some(&default));
        assert_eq!(bench.acl(below.ino, ACCESS)?.as_ref(), Some(&default));
        bench.chmod(below.ino, 0o700)?;
        let changed = bench.acl(below.ino, ACCESS)?.unwrap_or_default();
        assert_eq!(changed.len(), default.len());
        assert_eq!(bench.perm(below.ino)? & 0o777, 0o700);
        fs.forget(below.ino, 1);
    }
    for name in [&b"one"[..], b"two"] {
        fs.rmdir(&Caller::ROOT, dir.ino(), name)?;
    }
    fs.sync()?;
    assert!(!bench.limits.counts_space || fs.statfs()?.blocks_free >= free, "space leaked");
    Ok(())
}
