//! Mount options as fstab(5) and `-o` write them.

use crate::{Error, Order, Result, Tree};
use std::time::Duration;
use weft_block::Window;
use weft_fuse::IoUring;
use weft_hfs::view::Forks;
use weft_order::Fsync;

/// The parsed options of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// `ro`: mounted read-only.
    pub read_only: bool,
    /// `order=...`
    pub order: Option<Order>,
    /// `fsync=MEANING`: the meaning of fsync to all programs.
    pub fsync: Fsync,
    /// `open_files`: the mount is told of files being opened and closed, a request each, so that single
    /// open files can be engaged in patchgroups.
    pub open_files: bool,
    /// `allow_other`: other users have access, as the permissions allow.
    pub allow_other: bool,
    /// `nodev`, `nosuid`, `noexec`, `noatime`, ...: options that the kernel applies to any mount.
    pub kernel: Vec<String>,
    /// `threads=N`
    pub threads: Option<usize>,
    /// `noxattr`: no extended attributes and no POSIX ACLs, for fewer requests.
    pub no_xattr: bool,
    /// `writeback` or `nowriteback` (the default): whether the kernel collects writes in its cache.
    /// See [`weft_fuse::MountOptions::writeback_cache`] for the guarantees that this gives up.
    pub writeback: Option<bool>,
    /// `cache=PATH`: a cache in front of the source.
    pub cache: Option<String>,
    /// `cache_mode=MODE`: the cache's mode for reads and writes.
    pub cache_mode: Option<String>,
    /// `forks=HOW`: the presentation of resource forks and Finder information.
    pub forks: Option<Forks>,
    /// `uid=N`: the owner of all files on a volume that stores no owners.
    pub uid: Option<u32>,
    /// `gid=N`: the group of all files on such a volume.
    pub gid: Option<u32>,
    /// `fmask=OCTAL`, or `umask=OCTAL` for both: permission bits removed from files on such a
    /// volume.
    pub fmask: Option<u16>,
    /// `dmask=OCTAL`, or `umask=OCTAL`: permission bits removed from folders on such a volume.
    pub dmask: Option<u16>,
    /// `offset=BYTES` and `sizelimit=BYTES`: the part of the source that is the volume.
    pub window: Option<Window>,
    /// `commit=SECONDS`: the age at which changes are written.
    pub max_age: Option<Duration>,
    /// `norecovery` or `noload`: the journal is not replayed on the volume. Only for a read-only mount.
    pub no_recovery: bool,
    /// `transform=RULES`: networks of transformations on the files, by these rules.
    pub transform: Option<String>,
    /// `key=NAME=PLACE`, repeatable: keys of networks.
    pub keys: Vec<String>,
    /// `passthrough` or `nopassthrough`: whether the kernel accesses files of the host directly.
    pub passthrough: Option<bool>,
    /// `io_uring=auto`, `on` or `off`: whether requests come over io_uring.
    pub io_uring: IoUring,
    /// Set if SIGTERM, SIGINT and SIGHUP are left to the process, which unmounts when it wants to;
    /// else they unmount. No option of a list: a mount that is a process of its own heeds them.
    pub leave_signals: bool,
}

/// Options of the kernel's ext4 driver (ext4(5)) that ask for what weft does in any case, or that only
/// advise: docs/mount-options.md says what each comes to.
const AS_ALWAYS: &[&str] = &[
    "errors=remount-ro",
    "errors=continue",
    "acl",
    "barrier",
    "barrier=1",
    "nobarrier",
    "barrier=0",
    "discard",
    "nodiscard",
    "nogrpid",
    "sysvgroups",
    "bsddf",
    "nocheck",
    "check=none",
    "noquota",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
];

/// Options of the kernel's drivers and of libfuse that weft does not have, and why. Some have a value.
const REFUSED: &[(&str, &str)] = &[
    ("errors=panic", "weft does not halt the machine; errors=remount-ro is what it does"),
    ("noacl", "noxattr switches off ACLs, and extended attributes with them"),
    ("nouser_xattr", "noxattr switches off all extended attributes"),
    ("usrquota", QUOTA),
    ("grpquota", QUOTA),
    ("prjquota", QUOTA),
    ("quota", QUOTA),
    ("usrjquota", QUOTA),
    ("grpjquota", QUOTA),
    ("jqfmt", QUOTA),
    (
        "nosymfollow",
        "fusermount3 has no such option; mount -o remount,bind,nosymfollow adds it (root)",
    ),
    ("auto_unmount", "a dead mount is cleared by the next weft mount there, or by weft umount"),
    ("sb", "weft reads the first superblock; weft fsck --repair restores it from a backup"),
    ("resuid", "blocks are reserved for root; leave it out"),
    ("resgid", "blocks are reserved for root; leave it out"),
    ("grpid", "chmod g+s on the directories does the same"),
    ("bsdgroups", "chmod g+s on the directories does the same"),
    ("strictatime", "weft changes times of access as relatime does, or with noatime not at all"),
    ("norelatime", "weft changes times of access as relatime does, or with noatime not at all"),
    ("minixdf", "df does not count the volume's own structures; leave it out"),
];

const QUOTA: &str = "weft has no quotas";

/// Options that mount(8) and systemd interpret and pass on all the same.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "default_permissions",
    "loop",
    "rw",
];

/// Options that the kernel interprets.
const KERNEL: &[&str] = &[
    "dev", "nodev", "suid", "nosuid", "exec", "noexec", "atime", "noatime", "relatime", "sync",
    "async", "dirsync",
];

impl MountOptions {
    /// Returns one of the options that say who owns files and what everybody may do with them, if there is
    /// one: only a volume that stores neither can take it.
    #[must_use]
    pub fn ownership(&self) -> Option<&'static str> {
        let given = [
            ("uid", self.uid.is_some()),
            ("gid", self.gid.is_some()),
            ("fmask", self.fmask.is_some()),
            ("dmask", self.dmask.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(name, _)| *name)
    }

    /// Adds the options of one comma-separated list; later ones win.
    ///
    /// # Errors
    /// [`Error::Usage`] with the name of the unknown option.
    pub fn parse(&mut self, list: &str) -> Result<()> {
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            match (name, value) {
                ("ro", None) => self.read_only = true,
                ("rw", None) => self.read_only = false,
                ("order", Some(order)) => self.order = Some(order.parse()?),
                ("fsync", Some(meaning)) => self.fsync = meaning.parse().map_err(Error::Usage)?,
                ("open_files", None) => self.open_files = true,
                ("allow_other", None) => self.allow_other = true,
                ("noallow_other", None) => self.allow_other = false,
                ("noxattr", None) => self.no_xattr = true,
                ("xattr" | "user_xattr", None) => self.no_xattr = false,
                ("writeback", None) => self.writeback = Some(true),
                ("nowriteback", None) => self.writeback = Some(false),
                ("passthrough", None) => self.passthrough = Some(true),
                ("nopassthrough", None) => self.passthrough = Some(false),
                ("io_uring", Some(when)) => {
                    self.io_uring = when.parse().map_err(Error::Usage)?;
                }
                ("cache", Some(path)) => self.cache = Some(path.to_owned()),
                ("transform", Some(rules)) => self.transform = Some(rules.to_owned()),
                ("key", Some(key)) => self.keys.push(key.to_owned()),
                ("cache_mode", Some(mode)) => self.cache_mode = Some(mode.to_owned()),
                ("forks", Some(how)) => self.forks = Some(how.parse().map_err(Error::Invalid)?),
                ("uid" | "gid", Some(id)) => {
                    let number = id.parse().map_err(|_| {
                        Error::Usage(format!("{name}={id}: give the number of a user or group"))
                    })?;
                    *(if name == "uid" { &mut self.uid } else { &mut self.gid }) = Some(number);
                }
                ("umask" | "fmask" | "dmask", Some(mask)) => {
                    let bits = u16::from_str_radix(mask, 8).ok().filter(|bits| *bits <= 0o777);
                    let bits = bits.ok_or_else(|| {
                        Error::Usage(format!(
                            "{name}={mask}: give permissions in octal, such as 077"
                        ))
                    })?;
                    if name != "dmask" {
                        self.fmask = Some(bits);
                    }
                    if name != "fmask" {
                        self.dmask = Some(bits);
                    }
                }
                ("data", Some(mode)) => self.order = Some(journal_mode(mode)?),
                ("commit", Some(seconds)) => self.max_age = Some(commit_interval(seconds)?),
                ("norecovery" | "noload", None) => self.no_recovery = true,
                ("offset" | "sizelimit", Some(_)) => {
                    let mut window = self.window.unwrap_or_default();
                    if let Some(Err(why)) = window.option(option) {
                        return Err(Error::Usage(format!("{option}: {why}")));
                    }
                    self.window = Some(window);
                }
                ("threads", Some(n)) => {
                    let n = n.parse().ok().filter(|n| (1..=1024).contains(n)).ok_or_else(|| {
                        Error::Usage(format!("threads={n}: give a number from 1 to 1024"))
                    })?;
                    self.threads = Some(n);
                }
                // weft sets the source and type that the mount table shows itself.
                ("fsname" | "subtype" | "comment", Some(_)) => {}
                (name, None) if KERNEL.contains(&name) => {
                    let opposite = match (name, name.strip_prefix("no")) {
                        ("sync", _) => "async".to_owned(),
                        ("async", _) => "sync".to_owned(),
                        (_, Some(rest)) => rest.to_owned(),
                        (_, None) => format!("no{name}"),
                    };
                    self.kernel.retain(|o| o != name && *o != opposite);
                    self.kernel.push(name.to_owned());
                }
                (name, None) if IGNORED.contains(&name) => {}
                _ if AS_ALWAYS.contains(&option) => {}
                (name, _) if name.starts_with("x-") => {}
                _ => {
                    let refused = |(what, _): &&(&str, &str)| *what == name || *what == option;
                    if let Some((_, why)) = REFUSED.iter().find(refused) {
                        return Err(Error::Usage(format!("mount option '{option}': {why}")));
                    }
                    return Err(Error::Usage(format!(
                        "unknown mount option '{option}': expected ro, order=ORDER, \
                         fsync=MEANING, open_files, allow_other, noxattr, writeback, nopassthrough, \
                         io_uring=WHEN, threads=N, cache=PATH, cache_mode=MODE, transform=RULES, key=NAME=PLACE, forks=HOW, uid=N, gid=N, \
                         umask=OCTAL, fmask=OCTAL, dmask=OCTAL, offset=BYTES, sizelimit=BYTES, \
                         commit=SECONDS, data=MODE, and the kernel's own (nodev, nosuid, noexec, \
                         noatime, ...); docs/mount-options.md has them all"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The order that is a mode of the kernel's journal.
fn journal_mode(mode: &str) -> Result<Order> {
    match mode {
        "journal" => Ok("journal=full".parse()?),
        "ordered" => Ok("journal=ordered".parse()?),
        "writeback" => Ok("journal".parse()?),
        _ => Err(Error::Usage(format!("data={mode}: expected journal, ordered or writeback"))),
    }
}

/// The age of `commit=`; 0 is the default.
fn commit_interval(seconds: &str) -> Result<Duration> {
    match seconds.parse::<u32>() {
        Ok(0) => Ok(weft_patch::Options::default().max_age),
        Ok(n) if n <= 3600 => Ok(Duration::from_secs(n.into())),
        _ => Err(Error::Usage(format!("commit={seconds}: give a number of seconds up to 3600"))),
    }
}

impl MountOptions {
    /// Returns the source with the part of it that the options name.
    ///
    /// # Errors
    /// [`Error::Usage`] if the source is none that has parts.
    pub fn source(&self, source: &str) -> Result<String> {
        let Some(window) = self.window else { return Ok(source.to_owned()) };
        if Tree::host_directory(source).is_some() {
            return Err(Error::Usage("offset and sizelimit are for images and devices".into()));
        }
        let mut parsed: weft_block::Source = source.parse()?;
        parsed.window = Some(window);
        Ok(parsed.to_string())
    }

    /// Refuses options that contradict each other.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        if self.no_recovery && !self.read_only {
            let why = "norecovery is for a read-only mount: give ro, too";
            return Err(Error::Usage(why.into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fstab_line_is_understood() {
        let mut o = MountOptions::default();
        o.parse("rw,nosuid,nodev,order=journal=full,x-systemd.automount,nofail,threads=3").unwrap();
        assert_eq!(o.order.unwrap().name(), "journal=full");
        assert_eq!(o.kernel, ["nosuid", "nodev"]);
        assert_eq!((o.read_only, o.threads), (false, Some(3)));
        o.parse("ro,suid,allow_other").unwrap();
        assert_eq!(o.kernel, ["nodev", "suid"]);
        assert_eq!((o.read_only, o.allow_other), (true, true));
    }

    #[test]
    fn the_options_of_an_ext4_line_are_honoured_or_refused_with_a_reason() {
        let mut o = MountOptions::default();
        o.parse("errors=remount-ro,acl,user_xattr,barrier=1,discard,commit=30,data=journal")
            .unwrap();
        assert_eq!(o.order.unwrap().name(), "journal=full");
        assert_eq!(o.max_age, Some(Duration::from_secs(30)));
        o.parse("commit=0,data=ordered,loop,offset=1M,sizelimit=8M,noload").unwrap();
        assert_eq!(o.max_age, Some(Duration::from_secs(5)));
        assert_eq!(o.order.unwrap().name(), "journal=ordered");
        assert_eq!(
            o.source("a.img?partition=2").unwrap(),
            "a.img?offset=1048576&sizelimit=8388608&partition=2"
        );
        assert!(o.source("hostdir:/srv").is_err() && o.check().is_err());
        o.parse("ro").unwrap();
        o.check().unwrap();
        for (bad, why) in [
            ("errors=panic", "halt"),
            ("noacl", "noxattr"),
            ("usrquota", "quotas"),
            ("usrjquota=aquota.user", "quotas"),
            ("nosymfollow", "remount"),
            ("auto_unmount", "dead mount"),
            ("sb=8193", "fsck"),
            ("data=fast", "writeback"),
            ("commit=x", "seconds"),
            ("offset=100", "512"),
            ("errors=ignore", "unknown"),
        ] {
            let e = MountOptions::default().parse(bad).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains(bad.split('=').next().unwrap()), "{bad}: {e}");
        }
    }

    #[test]
    fn masks_are_of_files_of_folders_or_of_both() {
        let mut o = MountOptions::default();
        o.parse("umask=077,dmask=022").unwrap();
        assert_eq!((o.fmask, o.dmask), (Some(0o077), Some(0o022)));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for bad in
            ["frobnicate", "order=hard", "threads=0", "threads", "ro=1", "umask=8", "fmask=1000"]
        {
            let e = MountOptions::default().parse(bad).unwrap_err().to_string();
            assert!(e.contains(bad.split('=').next().unwrap()) || e.contains("hard"), "{bad}: {e}");
        }
    }
}
