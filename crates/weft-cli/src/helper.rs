//! The helpers of mount(8) and umount(8): `mount -t fuse.weft`, `mount -t weft` and `umount` run
//! weft under another name, with their own arguments: IMAGE DIR [-sfnv] [-N NAMESPACE] [-t TYPE]
//! [-o OPTIONS], and DIR [-flnrv] [-N NAMESPACE] [-t TYPE].
//!
//! umount(2) does not wait for the process behind a FUSE mount. The helper does, so that umount(8),
//! and systemd through it, return when everything is durable, and fail if it is not.

use crate::cli::{Caching, Mount, Opening, Transforming, Umount};
use crate::failure::{self, Failure};
use crate::output::{Output, complain};
use crate::verb;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes of mount(8): wrong usage, and a failed mount.
const USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

fn code_of(failure: &Failure) -> u8 {
    if failure.code == failure::USAGE { USAGE } else { MOUNT_FAILED }
}

/// Returns the arguments if weft was called as a mount helper: by its name, or by `mount.fuse3`,
/// which runs `weft IMAGE DIR -o OPTIONS`.
pub fn as_mount_helper(args: &[OsString]) -> Option<&[OsString]> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    let by_name = matches!(name, "mount.weft" | "mount.fuse.weft");
    let by_mount_fuse = args.len() == 5
        && args[3] == "-o"
        && [1, 2].iter().all(|at| Path::new(&args[*at]).is_absolute());
    (by_name || by_mount_fuse).then(|| &args[1..])
}

/// Returns the arguments if weft was called as a helper of umount(8).
pub fn as_umount_helper(args: &[OsString]) -> Option<&[OsString]> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    matches!(name, "umount.weft" | "umount.fuse.weft").then(|| &args[1..])
}

/// Unmounts, and waits until everything is durable.
pub fn run_umount(args: &[OsString]) -> ExitCode {
    let (mountpoint, lazy) = match parse_umount(args) {
        Ok(parsed) => parsed,
        Err(problem) => {
            complain(&format!("umount.weft: {problem}\nusage: umount.weft DIR [-l]"));
            return ExitCode::from(USAGE);
        }
    };
    let out = Output { json: false, quiet: true };
    match verb::umount::run(out, &Umount { mountpoint, lazy }) {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&format!("umount.weft: {failure}"));
            ExitCode::from(code_of(&failure))
        }
    }
}

fn parse_umount(args: &[OsString]) -> Result<(PathBuf, bool), String> {
    let mut mountpoint = None;
    let mut lazy = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-t" | "-N" | "-o") => {
                args.next().ok_or("-t, -N and -o need a value")?;
            }
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => {
                if !flags[1..].chars().all(|c| "flnrv".contains(c)) {
                    return Err(format!("{flags} is not known"));
                }
                lazy |= flags.contains('l');
            }
            _ if mountpoint.is_none() => mountpoint = Some(PathBuf::from(arg)),
            _ => return Err("give one directory".into()),
        }
    }
    Ok((mountpoint.ok_or("give a directory")?, lazy))
}

/// Handles `mount -o remount,...`: only the kernel is notified; earlier writes are made durable
/// first.
fn remount(mount: &Mount) -> Result<(), Failure> {
    use rustix::mount::MountFlags;
    let mut flags = MountFlags::empty();
    for option in mount.options.iter().flat_map(|list| list.split(',')) {
        let (flag, on) = match option {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            "noatime" => (MountFlags::NOATIME, true),
            _ => continue,
        };
        flags.set(flag, on);
    }
    let dir = &mount.mountpoint;
    std::fs::File::open(dir)?.sync_all()?;
    rustix::mount::mount_remount(dir, flags, "").map_err(|e| {
        Failure::new(format!("cannot remount {}: {}", dir.display(), std::io::Error::from(e)))
    })
}

fn is_remount(mount: &Mount) -> bool {
    mount.options.iter().flat_map(|list| list.split(',')).any(|option| option == "remount")
}

/// Mounts in the background.
pub fn run(args: &[OsString]) -> ExitCode {
    match parse(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(mount)) => {
            let out = Output { json: false, quiet: true };
            let done = if is_remount(&mount) {
                remount(&mount)
            } else {
                verb::mount::run(out, &mount, 0).map(|_| ())
            };
            match done {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    complain(&format!("mount.weft: {failure}"));
                    ExitCode::from(code_of(&failure))
                }
            }
        }
        Err(problem) => {
            complain(&format!("mount.weft: {problem}\nusage: mount.weft IMAGE DIR [-o OPTIONS]"));
            ExitCode::from(USAGE)
        }
    }
}

/// Parses the arguments; `None` for a dry run (-f).
fn parse(args: &[OsString]) -> Result<Option<Mount>, String> {
    let mut places = Vec::new();
    let mut options = Vec::new();
    let mut fake = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let list = args.next().ok_or("-o needs options")?;
                options.push(list.to_str().ok_or("the options are not UTF-8")?.to_owned());
            }
            Some("-t" | "-N") => {
                args.next().ok_or("-t and -N need a value")?;
            }
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => {
                if !flags[1..].chars().all(|c| "sfnvrw".contains(c)) {
                    return Err(format!("{flags} is not known"));
                }
                fake |= flags.contains('f');
                if flags.contains('r') {
                    options.push("ro".into());
                }
            }
            _ => places.push(arg.clone()),
        }
    }
    let [image, mountpoint]: [OsString; 2] =
        places.try_into().map_err(|_| "give an image and a directory")?;
    if fake {
        return Ok(None);
    }
    Ok(Some(Mount {
        image: image.into_string().map_err(|_| "the image's name is not UTF-8")?,
        mountpoint: PathBuf::from(mountpoint),
        opening: Opening::default(),
        caching: Caching::default(),
        transforming: Transforming::default(),
        background: true,
        read_only: false,
        options,
        forks: None,
        threads: None,
        pid_file: None,
        detached: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn it_is_recognised_by_its_name_and_by_how_mount_fuse_calls_it() {
        assert!(as_mount_helper(&os(&["/sbin/mount.fuse.weft", "v.img", "/m"])).is_some());
        assert!(as_mount_helper(&os(&["weft", "/v.img", "/m", "-o", "rw"])).is_some());
        assert!(as_mount_helper(&os(&["weft", "mount", "/v.img", "/m"])).is_none());
        assert!(as_mount_helper(&os(&["weft", "mount", "/m", "-o", "ro"])).is_none());
        assert!(as_mount_helper(&os(&["weft"])).is_none());
    }

    #[test]
    fn its_arguments_are_those_of_mount() {
        let m =
            parse(&os(&["v.img", "/m", "-sn", "-o", "ro,nodev", "-t", "weft"])).unwrap().unwrap();
        assert_eq!(
            (m.image.as_str(), m.options.as_slice()),
            ("v.img", &["ro,nodev".to_owned()][..])
        );
        assert!(m.background);
        assert!(parse(&os(&["v.img", "/m", "-f"])).unwrap().is_none());
        assert!(parse(&os(&["v.img"])).is_err());
        assert!(parse(&os(&["v.img", "/m", "-x"])).is_err());
    }

    #[test]
    fn its_arguments_are_those_of_umount() {
        assert!(as_umount_helper(&os(&["/sbin/umount.fuse.weft", "/m"])).is_some());
        assert!(as_umount_helper(&os(&["/usr/bin/weft", "/m"])).is_none());
        let (dir, lazy) = parse_umount(&os(&["/m", "-nv", "-t", "fuse.weft"])).unwrap();
        assert_eq!((dir, lazy), (PathBuf::from("/m"), false));
        assert!(parse_umount(&os(&["-l", "/m"])).unwrap().1);
        for bad in [&[][..], &["-x", "/m"], &["/m", "/n"], &["/m", "-t"]] {
            assert!(parse_umount(&os(bad)).is_err(), "{bad:?}");
        }
    }
}
