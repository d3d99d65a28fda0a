//! The systems that do the same work: weft in each order, the kernel's ext2 and ext3 on a loop
//! device, fuse2fs. All work on an image file of the same size on the same host file system, and
//! all end with that image synced. libfuse's pass-through server, which shows what FUSE itself
//! costs, works on a directory there.

mod passthrough;

use crate::io_uring::{self, Transport};
use crate::report::Section;
use crate::tree::run;
use crate::{Bench, machine};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft::patch::Policy;
use weft::{Order, mounts};

/// Size of an image, in bytes, unless another is given.
const IMAGE_BYTES: u64 = 3 << 30;

/// Longest wait for a server to mount or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The filter with which weft logs its counts of requests when a mount ends, and nothing before.
const LOG_OF_REQUESTS: &str = "warn,weft_fuse::mount=debug";

/// One system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// weft, which chooses the transport itself.
    Weft(Order),
    WeftOver(Order, Transport),
    KernelExt2,
    KernelExt3,
    Fuse2fs,
    Passthrough(Transport),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weft(order) => write!(f, "weft, {order}"),
            Self::WeftOver(order, transport) => write!(f, "weft, {order}, {transport}"),
            Self::KernelExt2 => f.write_str("kernel ext2, loop"),
            Self::KernelExt3 => f.write_str("kernel ext3, loop"),
            Self::Fuse2fs => f.write_str("fuse2fs"),
            Self::Passthrough(transport) => write!(f, "libfuse's pass-through, {transport}"),
        }
    }
}

/// The locations of the programs and files.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The `weft` command.
    pub weft: PathBuf,
    /// libfuse's pass-through server, if there is one.
    pub passthrough: Option<PathBuf>,
    /// The directory for images and mount points.
    pub work: PathBuf,
    /// The only CPU for client and server; `None`: all.
    pub cpu: Option<usize>,
}

impl Setting {
    /// The setting that the command line describes.
    pub fn new(bench: &Bench, cpu: Option<usize>) -> Self {
        Self {
            weft: bench.weft.clone(),
            passthrough: bench.passthrough.clone().or_else(passthrough::find),
            work: bench.work.clone(),
            cpu,
        }
    }

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

    /// Returns true if `weft mount` has the option `io_uring=`.
    fn weft_has_io_uring(&self) -> bool {
        // Options are read before anything is opened.
        let out = Command::new(&self.weft)
            .args(["mount", "-o", "io_uring=on", "/nonexistent/image", "/nonexistent/dir"])
            .output();
        out.is_ok_and(|out| !String::from_utf8_lossy(&out.stderr).contains("unknown mount option"))
    }

    /// weft in these orders, with each transport if it can be chosen; otherwise `section` says so.
    pub fn weft_over_each_transport(&self, section: &mut Section, orders: &[Order]) -> Vec<Peer> {
        if !self.weft_has_io_uring() {
            section.line("Skipped: weft with io_uring: this `weft mount` has no option io_uring=.");
            return orders.iter().copied().map(Peer::Weft).collect();
        }
        let both = [Transport::Device, Transport::IoUring];
        orders.iter().flat_map(|order| both.map(|t| Peer::WeftOver(*order, t))).collect()
    }
}

/// Returns the file of this name in a directory of `PATH`.
pub fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists())
}

impl Peer {
    /// The order of writes, if this is weft.
    pub fn order(&self) -> Option<Order> {
        match self {
            Self::Weft(order) | Self::WeftOver(order, _) => Some(*order),
            _ => None,
        }
    }

    /// Returns true if there is no server.
    pub const fn is_kernel(&self) -> bool {
        matches!(self, Self::KernelExt2 | Self::KernelExt3)
    }

    /// Returns true if the volume has a journal.
    pub fn is_journaled(&self) -> bool {
        *self == Self::KernelExt3
            || self.order().is_some_and(|order| matches!(order.0, Policy::Journal(_)))
    }

    /// The reason why this system cannot be measured here, if there is one.
    pub fn missing(&self, setting: &Setting) -> Option<String> {
        if setting.cpu.is_some() && installed("taskset").is_none() {
            return Some("taskset is not installed (Debian package util-linux)".into());
        }
        if !self.is_kernel() && !Path::new("/dev/fuse").exists() {
            return Some("there is no /dev/fuse".into());
        }
        if let Self::WeftOver(_, Transport::IoUring) | Self::Passthrough(Transport::IoUring) = self
            && let Some(why) = io_uring::missing()
        {
            return Some(why);
        }
        match self {
            Self::Weft(_) | Self::WeftOver(..) => (!setting.weft.exists())
                .then(|| format!("{} is not there; build it first", setting.weft.display())),
            Self::Passthrough(transport) => {
                passthrough::missing(setting.passthrough.as_deref(), *transport)
            }
            _ if installed("mke2fs").is_none() => {
                Some("mke2fs is not installed (e2fsprogs)".into())
            }
            Self::Fuse2fs => installed("fuse2fs")
                .is_none()
                .then(|| "fuse2fs is not installed (Debian package fuse2fs)".into()),
            _ if !rustix::process::geteuid().is_root() => Some("a loop mount needs root".into()),
            _ if !Path::new("/dev/loop-control").exists() => Some("there is no loop device".into()),
            _ => None,
        }
    }

    fn image(&self, setting: &Setting) -> PathBuf {
        let name: String =
            self.to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        setting.work.join(format!("{name}.img"))
    }

    /// Makes an empty volume of the usual size.
    pub fn make(&self, setting: &Setting) -> Result<Volume> {
        self.make_of(setting, IMAGE_BYTES)
    }

    /// Makes an empty volume in an image of `len_bytes`.
    pub fn make_of(&self, setting: &Setting, len_bytes: u64) -> Result<Volume> {
        let volume = self.unformatted(setting)?;
        if let Self::Passthrough(_) = self {
            std::fs::create_dir(&volume.image)?;
            return Ok(volume);
        }
        std::fs::File::create(&volume.image)?.set_len(len_bytes)?;
        let kind = if self.is_journaled() { "ext3" } else { "ext2" };
        let mut command = if self.order().is_some() {
            let mut command = Command::new(&setting.weft);
            command.args(["mkfs", kind, "--quiet", "-b", "4096"]);
            command
        } else {
            let mut command = Command::new("mke2fs");
            command.args(["-q", "-F", "-b", "4096", "-t", kind]);
            command
        };
        run(command.arg(&volume.image))?;
        Ok(volume)
    }

    /// Makes a volume with the content of another system's, in a copy of its image.
    pub fn copy_of(&self, setting: &Setting, image: &Path) -> Result<Volume> {
        let volume = self.unformatted(setting)?;
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(&volume.image))?;
        Ok(volume)
    }

    fn unformatted(&self, setting: &Setting) -> Result<Volume> {
        let volume = Volume { peer: *self, image: self.image(setting), setting: setting.clone() };
        volume.remove();
        Ok(volume)
    }
}

/// An image with a volume of one system (of the pass-through server: a directory). Removed on drop.
#[derive(Debug)]
pub struct Volume {
    peer: Peer,
    image: PathBuf,
    setting: Setting,
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A mounted volume. Dropping it unmounts without reporting errors.
#[derive(Debug)]
pub struct Mounted<'a> {
    volume: &'a Volume,
    dir: PathBuf,
    server: Option<Server>,
}

/// The work of a server, from its start to its end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Served {
    /// CPU seconds in all.
    pub cpu_seconds: f64,
    /// Requests of the kernel, if it counted them.
    pub requests: Option<u64>,
}

impl Volume {
    /// The image file.
    pub fn image(&self) -> &Path {
        &self.image
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_dir_all(&self.image);
    }

    /// Mounts it; a server, if it has one, runs in the foreground as a child process.
    pub fn mount(&self) -> Result<Mounted<'_>> {
        self.mount_with(false)
    }

    /// Mounts it, with a count of the requests if the server has one. The server then logs, so this
    /// is not for a run whose time counts.
    pub fn mount_counting(&self) -> Result<Mounted<'_>> {
        self.mount_with(true)
    }

    fn mount_with(&self, counting: bool) -> Result<Mounted<'_>> {
        let dir = self.setting.work.join("mnt");
        std::fs::create_dir_all(&dir)?;
        let mut mounted = Mounted { volume: self, dir, server: None };
        match self.peer {
            Peer::KernelExt2 => mounted.loop_mount("ext2")?,
            Peer::KernelExt3 => mounted.loop_mount("ext3")?,
            Peer::Weft(order) => mounted.serve(self.weft(order, None, counting))?,
            Peer::WeftOver(order, transport) => {
                mounted.serve(self.weft(order, Some(transport), counting))?;
            }
            Peer::Fuse2fs => {
                // The defaults of fuse2fs are its fastest options: with allow_other and
                // default_permissions it takes a third longer, longer lifetimes of names and
                // attributes change nothing.
                let mut command = self.setting.command("fuse2fs");
                command.arg("-f").arg(&self.image);
                mounted.serve(command)?;
            }
            Peer::Passthrough(transport) => {
                let program = self.setting.passthrough.as_deref();
                let program = program.context("there is no pass-through server")?;
                let command = self.setting.command(program);
                mounted.serve(passthrough::serving(command, program, &self.image, transport)?)?;
            }
        }
        Ok(mounted)
    }

    /// `weft mount` of the image, without the mount point.
    fn weft(&self, order: Order, transport: Option<Transport>, counting: bool) -> Command {
        let mut command = self.setting.command(&self.setting.weft);
        command.args(["mount", "--quiet"]).arg(format!("--order={order}"));
        match transport {
            None => {}
            Some(Transport::Device) => {
                command.args(["-o", "io_uring=off"]);
            }
            Some(Transport::IoUring) => {
                command.args(["-o", "io_uring=on"]);
            }
        }
        if counting {
            command.env("WEFT_LOG", LOG_OF_REQUESTS);
        }
        command.arg(&self.image);
        command
    }

    /// Writes the image to its disk and drops it from the host's page cache, so that the next reads
    /// come from the disk (of a file in memory: has no effect).
    pub fn drop_cached(&self) -> Result<()> {
        let file = std::fs::File::open(&self.image)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let file = std::fs::File::open(&self.image)?;
        match self.peer {
            Peer::Passthrough(_) => rustix::fs::syncfs(&file)?,
            _ => file.sync_data()?,
        }
        Ok(())
    }
}

impl Mounted<'_> {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// CPU seconds used by the server so far.
    pub fn server_cpu(&self) -> f64 {
        self.server_id().map_or(0.0, |id| machine::cpu_seconds(&id.to_string()))
    }

    /// The process of the server, if there is one.
    pub fn server_id(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.child.id())
    }

    fn loop_mount(&mut self, kind: &str) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", "loop"]).arg(&self.volume.image).arg(&self.dir);
        run(&mut command)
    }

    /// Starts a server, whose last argument is the mount point, and waits until it has mounted.
    fn serve(&mut self, mut command: Command) -> Result<()> {
        command.arg(&self.dir);
        // Not a pipe: a server that says much would wait until it is read, which is at the end.
        let log = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone()?);
        let child = command.spawn().with_context(|| format!("run {command:?}"))?;
        let mut server = Server { child, log };
        let deadline = Instant::now() + PATIENCE;
        while mounts::mounted_at(&self.dir)?.is_none() {
            if let Some(status) = server.child.try_wait()? {
                let said = server.said()?;
                bail!("{} ended with {status}: {}", self.volume.peer, said.trim());
            }
            ensure!(Instant::now() < deadline, "{} does not mount", self.volume.peer);
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Unmounts, waits for the server, and syncs the image: only then is the work durable.
    pub fn finish(mut self) -> Result<Served> {
        mounts::unmount(&self.dir, false)?;
        let mut served = Served::default();
        if let Some(mut server) = self.server.take() {
            let before = machine::family_cpu_seconds();
            let status = server.child.wait()?;
            let said = server.said()?;
            ensure!(status.success(), "{} ended with {status}: {}", self.volume.peer, said.trim());
            served.cpu_seconds = machine::family_cpu_seconds() - before;
            served.requests = requests_in(&said);
        }
        self.volume.sync()?;
        Ok(served)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if mounts::mounted_at(&self.dir).is_ok_and(|m| m.is_some()) {
            let _ = mounts::unmount(&self.dir, true);
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

/// A server in a process of its own, and what it says on standard error.
#[derive(Debug)]
struct Server {
    child: Child,
    log: File,
}

impl Server {
    /// Returns what it has said so far.
    fn said(&mut self) -> Result<String> {
        let mut said = Vec::new();
        self.log.rewind()?;
        self.log.read_to_end(&mut said)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

/// The sum of the counts in weft's last line: `unmounted requests=[("lookup", 12), ("read", 3)]`.
fn requests_in(log: &str) -> Option<u64> {
    let (_, list) = log.rsplit_once("unmounted requests=[")?;
    let (list, _) = list.split_once(']')?;
    list.split(')')
        .filter(|item| !item.is_empty())
        .map(|item| item.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_added_up() {
        let log = "a warning\n DEBUG weft_fuse::mount: unmounted requests=[(\"lookup\", 12), (\"read\", 30)]\n";
        assert_eq!(requests_in(log), Some(42));
        assert_eq!(requests_in("DEBUG unmounted requests=[]"), Some(0));
        assert_eq!(requests_in("DEBUG unmounted requests=[(\"read\", x)]"), None);
        assert_eq!(requests_in("a warning\n"), None);
    }
}
