//! SSHFS over OpenSSH on this machine, through the same network.

use super::{Micros, ReadsAndWrites};
use crate::{Bench, proxy};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(15);

/// A mount of a directory of this machine, removed on drop.
pub struct Mounted {
    dir: tempfile::TempDir,
    sshd: Child,
    sshfs: Child,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(self.mount()).status();
        for child in [&mut self.sshfs, &mut self.sshd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin"].iter().map(|d| Path::new(d).join(program)).find(|p| p.exists())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Mounted {
    /// Mounts over a link with this one-way delay; `None` if the programs are not installed.
    pub fn new(bench: &Bench, way: Duration, cached: bool) -> Result<Option<Self>> {
        let (Some(sshd), Some(sshfs)) = (find("sshd"), find("sshfs")) else { return Ok(None) };
        let dir = tempfile::tempdir_in(&bench.work)?;
        let at = |name: &str| dir.path().join(name);
        for name in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(name))
                .status()?;
            ensure!(made.success(), "ssh-keygen failed");
        }
        fs::copy(at("user_key.pub"), at("authorized_keys"))?;
        fs::set_permissions(at("authorized_keys"), fs::Permissions::from_mode(0o600))?;
        fs::create_dir(at("served"))?;
        fs::create_dir(at("mount"))?;
        let port = free_port()?;
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\n\
             StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\n\
             Subsystem sftp internal-sftp\n",
            at("host_key").display(),
            at("authorized_keys").display()
        );
        fs::write(at("sshd_config"), config)?;
        fs::create_dir_all("/run/sshd")?;
        let sshd = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stderr(Stdio::null())
            .spawn()
            .context("start sshd")?;
        let near = format!("127.0.0.1:{port}");
        wait(|| std::net::TcpStream::connect(&near).is_ok(), "sshd listens")?;
        let port = match way.is_zero() {
            true => port.to_string(),
            false => {
                let any = proxy::Address::Tcp("127.0.0.1:0".into());
                let proxy = proxy::Proxy::start(&any, &proxy::Address::Tcp(near), 2 * way)?;
                proxy.address.to_string().rsplit(':').next().context("a port")?.to_owned()
            }
        };
        let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
        let mut command = Command::new(sshfs);
        command
            .arg(format!("{user}@127.0.0.1:{}", at("served").display()))
            .arg(at("mount"))
            .args(["-f", "-p", &port])
            .arg(format!("-oIdentityFile={}", at("user_key").display()))
            .args(["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"])
            .args(["-oLogLevel=ERROR"]);
        if !cached {
            command.args(["-odir_cache=no", "-odirect_io", "-oattr_timeout=0,entry_timeout=0"]);
        }
        let sshfs = command.stdin(Stdio::null()).spawn().context("start sshfs")?;
        let mounted = Self { dir, sshd, sshfs };
        fs::write(mounted.dir.path().join("served/there"), b"")?;
        wait(|| mounted.mount().join("there").exists(), "sshfs mounts")?;
        Ok(Some(mounted))
    }

    pub fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    pub fn served(&self) -> PathBuf {
        self.dir.path().join("served")
    }
}

/// Waits until a condition holds.
pub fn wait(is_so: impl Fn() -> bool, what: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Times `stat` and `open` (with its close) of `files` files, nothing cached.
pub fn stat_and_open(bench: &Bench, way: Duration, files: u32) -> Result<Option<(Micros, Micros)>> {
    let Some(mounted) = Mounted::new(bench, way, false)? else { return Ok(None) };
    let (mut stat, mut open) = (Micros::default(), Micros::default());
    for number in 0..files {
        let name = format!("f{number}");
        fs::write(mounted.served().join(&name), b"content")?;
        let path = mounted.mount().join(&name);
        stat.time(|| Ok(fs::metadata(&path)?))?;
        open.time(|| Ok(File::open(&path)?))?;
    }
    Ok(Some((stat, open)))
}

/// Times reads and writes of whole files of each size: open, one call, close.
pub fn sizes(
    bench: &Bench,
    way: Duration,
    cached: bool,
    sizes: &[usize],
    runs: usize,
) -> Result<Option<ReadsAndWrites>> {
    let Some(mounted) = Mounted::new(bench, way, cached)? else { return Ok(None) };
    let mut all = Vec::new();
    for &size in sizes {
        let (mut reads, mut writes) = (Micros::default(), Micros::default());
        let data = vec![7; size];
        for run in 0..runs {
            let name = format!("{size}-{run}");
            fs::write(mounted.served().join(&name), &data)?;
            let path = mounted.mount().join(&name);
            let mut got = Vec::with_capacity(size);
            if cached {
                // A first read brings the file into the cache.
                File::open(&path)?.read_to_end(&mut got)?;
                got.clear();
            }
            reads.time(|| Ok(File::open(&path)?.read_to_end(&mut got)?))?;
            ensure!(got == data, "other bytes");
            writes.time(|| {
                let mut file = File::options().write(true).open(&path)?;
                Ok(file.write_all(&data)?)
            })?;
        }
        all.push((reads, writes));
    }
    Ok(Some(all))
}
