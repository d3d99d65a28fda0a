//! The systems that do the same work: weft in each order, the kernel's ext2 and ext3 on a loop
//! device, fuse2fs. All work on an image file of the same size on the same host file system, and
//! all end with that image synced.

use crate::tree::run;
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft::{Order, mounts};

/// Size of every image, in bytes.
const IMAGE_BYTES: u64 = 3 << 30;

/// Longest wait for a server to mount or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// One system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Weft(Order),
    KernelExt2,
    KernelExt3,
    Fuse2fs,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weft(order) => write!(f, "weft, {order}"),
            Self::KernelExt2 => f.write_str("kernel ext2, loop"),
            Self::KernelExt3 => f.write_str("kernel ext3, loop"),
            Self::Fuse2fs => f.write_str("fuse2fs"),
        }
    }
}

/// The locations of the programs and files.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The `weft` command.
    pub weft: PathBuf,
    /// The directory for images and mount points.
    pub work: PathBuf,
    /// The only CPU for client and server; `None`: all.
    pub cpu: Option<usize>,
}

impl Setting {
    /// A command that is pinned to the chosen CPU.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self.cpu {
            None => Command::new(program),
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.arg("-c").arg(cpu.to_string()).arg(program);
                command
            }
        }
    }
}

impl Peer {
    /// The reason why this system cannot be measured here, if there is one.
    pub fn missing(&self, setting: &Setting) -> Option<String> {
        let installed = |program: &str| {
            std::env::var_os("PATH")
                .is_some_and(|path| std::env::split_paths(&path).any(|d| d.join(program).exists()))
        };
        let root = rustix::process::geteuid().is_root();
        if setting.cpu.is_some() && !installed("taskset") {
            return Some("taskset is not installed (Debian package util-linux)".into());
        }
        if !matches!(self, Self::KernelExt2 | Self::KernelExt3) && !Path::new("/dev/fuse").exists()
        {
            return Some("there is no /dev/fuse".into());
        }
        match self {
            Self::Weft(_) if !setting.weft.exists() => {
                Some(format!("{} is not there; build it first", setting.weft.display()))
            }
            Self::Weft(_) => None,
            _ if !installed("mke2fs") => Some("mke2fs is not installed (e2fsprogs)".into()),
            Self::Fuse2fs if !installed("fuse2fs") => {
                Some("fuse2fs is not installed (Debian package fuse2fs)".into())
            }
            Self::Fuse2fs => None,
            _ if !root => Some("a loop mount needs root".into()),
            _ if !Path::new("/dev/loop-control").exists() => Some("there is no loop device".into()),
            _ => None,
        }
    }

    fn image(&self, setting: &Setting) -> PathBuf {
        let name: String =
            self.to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        setting.work.join(format!("{name}.img"))
    }

    /// Makes an empty volume.
    pub fn make(&self, setting: &Setting) -> Result<Volume> {
        let image = self.image(setting);
        let _ = std::fs::remove_file(&image);
        std::fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        let volume = Volume { peer: *self, image, setting: setting.clone() };
        let mut command = match self {
            Self::Weft(order) => {
                let journal = matches!(order.0, weft::patch::Policy::Journal(_));
                let mut command = Command::new(&setting.weft);
                command.args([
                    "mkfs",
                    if journal { "ext3" } else { "ext2" },
                    "--quiet",
                    "-b",
                    "4096",
                ]);
                command
            }
            Self::KernelExt2 | Self::KernelExt3 | Self::Fuse2fs => {
                let kind = if *self == Self::KernelExt3 { "ext3" } else { "ext2" };
                let mut command = Command::new("mke2fs");
                command.args(["-q", "-F", "-b", "4096", "-t", kind]);
                command
            }
        };
        run(command.arg(&volume.image))?;
        Ok(volume)
    }
}

/// An image with a volume of one system. Removed on drop.
#[derive(Debug)]
pub struct Volume {
    peer: Peer,
    image: PathBuf,
    setting: Setting,
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.image);
    }
}

/// A mounted volume. Dropping it unmounts without reporting errors.
#[derive(Debug)]
pub struct Mounted<'a> {
    volume: &'a Volume,
    dir: PathBuf,
    server: Option<Child>,
}

impl Volume {
    /// The image file.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Mounts it; a server, if it has one, runs in the foreground as a child process.
    pub fn mount(&self) -> Result<Mounted<'_>> {
        let dir = self.setting.work.join("mnt");
        std::fs::create_dir_all(&dir)?;
        let mut mounted = Mounted { volume: self, dir, server: None };
        match self.peer {
            Peer::KernelExt2 => mounted.loop_mount("ext2")?,
            Peer::KernelExt3 => mounted.loop_mount("ext3")?,
            Peer::Weft(order) => {
                let mut command = self.setting.command(&self.setting.weft);
                command.args(["mount", "--quiet"]).arg(format!("--order={order}"));
                command.arg(&self.image).arg(&mounted.dir);
                mounted.serve(command)?;
            }
            Peer::Fuse2fs => {
                let mut command = self.setting.command("fuse2fs");
                command.arg("-f").arg(&self.image).arg(&mounted.dir);
                // The defaults of fuse2fs are its fastest options: with allow_other and
                // default_permissions it takes a third longer, longer lifetimes of names and
                // attributes change nothing.
                mounted.serve(command)?;
            }
        }
        Ok(mounted)
    }
}

impl Mounted<'_> {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// CPU seconds used by the server so far.
    pub fn server_cpu(&self) -> f64 {
        self.server.as_ref().map_or(0.0, |s| crate::machine::cpu_seconds(&s.id().to_string()))
    }

    fn loop_mount(&mut self, kind: &str) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", "loop"]).arg(&self.volume.image).arg(&self.dir);
        run(&mut command)
    }

    fn serve(&mut self, mut command: Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
        let deadline = Instant::now() + PATIENCE;
        while mounts::mounted_at(&self.dir)?.is_none() {
            if let Some(status) = child.try_wait()? {
                let mut said = String::new();
                if let Some(mut stderr) = child.stderr.take() {
                    std::io::Read::read_to_string(&mut stderr, &mut said)?;
                }
                bail!("{} ended with {status}: {}", self.volume.peer, said.trim());
            }
            ensure!(Instant::now() < deadline, "{} does not mount", self.volume.peer);
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(child);
        Ok(())
    }

    /// Unmounts, waits for the server, and syncs the image: only then is the work durable.
    pub fn finish(mut self) -> Result<()> {
        mounts::unmount(&self.dir, false)?;
        if let Some(mut server) = self.server.take() {
            let status = server.wait()?;
            ensure!(status.success(), "{} ended with {status}", self.volume.peer);
        }
        std::fs::File::open(&self.volume.image)?.sync_data()?;
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if mounts::mounted_at(&self.dir).is_ok_and(|m| m.is_some()) {
            let _ = mounts::unmount(&self.dir, true);
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
