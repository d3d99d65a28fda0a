//! Small requests through a mount: files that live for a moment, `git status`, `ls -l` of a large
//! directory and `find` from the disk, beside the kernel's ext2.

use crate::comparison::{COLUMNS, Comparison, Cost, Work};
use crate::io_uring::Allowed;
use crate::peer::{Peer, Setting, Volume};
use crate::report::Section;
use crate::stats::thousands;
use crate::tree::{self, run};
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weft::Order;
use weft::patch::{JournalMode, Policy};

/// The large directory.
const LARGE: &str = "large";

/// The amount of work.
#[derive(Debug, Clone, Copy)]
struct Amount {
    /// Files in the large directory.
    listed: u64,
    /// Files that live for a moment.
    short_lived: u32,
}

impl Amount {
    const fn of(bench: &Bench) -> Self {
        if bench.quick {
            Self { listed: 10_000, short_lived: 300 }
        } else {
            Self { listed: 100_000, short_lived: 3000 }
        }
    }

    fn works(self, tree: &tree::Tree) -> Vec<Work> {
        let work = |title: String, units, unit| Work { title, units, unit };
        let status = |when: &str| work(format!("git status, {when}"), tree.files, "file");
        let list = |when: &str| {
            let title = format!("ls -l of {} files, {when}", thousands(self.listed));
            work(title, self.listed, "file")
        };
        vec![
            work(
                format!("{} files made, looked at, renamed and removed", self.short_lived),
                self.short_lived.into(),
                "file",
            ),
            status("the first after a mount"),
            status("the second"),
            list("the first after a mount"),
            list("the second"),
            work("find, from the disk".into(), tree.files, "file"),
        ]
    }
}

/// Measures all systems.
pub fn metadata(bench: &Bench) -> Result<()> {
    let tree = bench.tree()?;
    let amount = Amount::of(bench);
    let setting = Setting::new(bench, None);
    let mut section = Section::new("metadata", "Small requests through a mount");
    let _io_uring = Allowed::set(&mut section);
    section.line(&format!(
        "All systems begin with the same volume, of which each gets a copy: a git repository of {}, \
         and a directory of {} empty files. Seconds, {} pairs after a warm-up. For the files that \
         are made until all is durable; otherwise until the command ends, on a fresh mount. After a \
         mount the caches of the file system are empty and the image is in the host's page cache; \
         for `find` it is not{}.",
        tree.describe(),
        thousands(amount.listed),
        bench.pairs,
        if machine::in_memory(&setting.work) { " (here it is: it lies in memory)" } else { "" }
    ));
    section.line(COLUMNS);
    ensure!(crate::peer::installed("git").is_some(), "git is not installed (Debian package git)");
    let mut peers = setting.weft_over_each_transport(
        &mut section,
        &[Order(Policy::Soft), Order(Policy::Journal(JournalMode::Ordered))],
    );
    peers.extend([Peer::KernelExt2, Peer::KernelExt3]);
    let mut comparison = Comparison::new(&mut section, &setting, &peers, amount.works(&tree));
    let peers = comparison.peers();
    let volumes = volumes(&setting, &tree, amount, &peers)?;
    comparison.run(&mut section, bench, "small requests", |peer, counting| {
        let volume = volumes.iter().find(|(owner, _)| *owner == peer);
        let (_, volume) = volume.context("each system has a volume")?;
        one_round(volume, amount, counting)
    });
    comparison.tables(&mut section);
    section.signed(&machine::describe(), &bench.command("metadata")).save(&bench.report)
}

/// Returns the costs in the order of [`Amount::works`].
fn one_round(volume: &Volume, amount: Amount, counting: bool) -> Result<Vec<Option<Cost>>> {
    let mount = || if counting { volume.mount_counting() } else { volume.mount() };
    let this = std::env::current_exe().context("find this program")?;
    let short_lived = Cost::until_durable(mount()?, |dir| {
        let files = format!("--files={}", amount.short_lived);
        run(Command::new(this).arg("short-lived").arg(dir).arg(files))
    })?;

    let mounted = mount()?;
    let status = |dir: &Path| quietly(git(&dir.join(tree::NAME)).arg("status"));
    let statuses = [Cost::of(&mounted, status)?, Cost::of(&mounted, status)?];
    mounted.finish()?;

    let mounted = mount()?;
    let list = |dir: &Path| quietly(Command::new("ls").arg("-l").arg(dir.join(LARGE)));
    let lists = [Cost::of(&mounted, list)?, Cost::of(&mounted, list)?];
    mounted.finish()?;

    volume.drop_cached()?;
    let mounted = mount()?;
    let mut find =
        Cost::of(&mounted, |dir| quietly(Command::new("find").arg(dir.join(tree::NAME))))?;
    find.requests = mounted.finish()?.requests;

    let costs = [&[short_lived], &statuses[..], &lists, &[find]].concat();
    Ok(costs.into_iter().map(Some).collect())
}

/// Runs a command whose output nobody reads.
fn quietly(command: &mut Command) -> Result<()> {
    let status = command.env("LC_ALL", "C").stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// git in a repository, with no configuration but its own.
fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    command.args(["-c", "safe.directory=*", "-c", "gc.auto=0", "-C"]).arg(repository);
    command
}

/// Makes the volume of each system.
fn volumes(
    setting: &Setting,
    tree: &tree::Tree,
    amount: Amount,
    peers: &[Peer],
) -> Result<Vec<(Peer, Volume)>> {
    eprintln!("small requests: making the volumes");
    let content = tempfile::tempdir_in(&setting.work)?;
    fill(content.path(), tree, amount)?;
    let mut volumes = Vec::new();
    for (order, journaled) in [(Policy::Soft, false), (Policy::Journal(JournalMode::Ordered), true)]
    {
        let original = Peer::Weft(Order(order)).make(setting)?;
        let mut root = original.image().as_os_str().to_owned();
        root.push(":/");
        run(Command::new(&setting.weft)
            .args(["import", "--quiet"])
            .arg(content.path())
            .arg(PathBuf::from(root)))?;
        // Moved, because a system may have the name of the original.
        let image = setting.work.join("original.img");
        fs::rename(original.image(), &image)?;
        drop(original);
        for peer in peers.iter().filter(|peer| peer.is_journaled() == journaled) {
            let volume = peer.copy_of(setting, &image)?;
            // The index has the inodes and times of the directory that was copied.
            let mounted = volume.mount()?;
            run(git(&mounted.dir().join(tree::NAME)).args(["update-index", "-q", "--refresh"]))?;
            mounted.finish()?;
            volumes.push((*peer, volume));
        }
        fs::remove_file(&image)?;
    }
    Ok(volumes)
}

/// Makes the content of all volumes.
fn fill(dir: &Path, tree: &tree::Tree, amount: Amount) -> Result<()> {
    run(Command::new("tar").arg("-xf").arg(&tree.tar).arg("-C").arg(dir))?;
    let repository = dir.join(tree::NAME);
    run(git(&repository).args(["init", "-q"]))?;
    run(git(&repository).args(["add", "-A"]))?;
    run(git(&repository).args(["commit", "-q", "-m", "The tree"]))?;
    // One pack, so that find meets the tree and not 30,000 objects; deltas would take minutes.
    run(git(&repository).args(["-c", "pack.window=0", "repack", "-a", "-d", "-q"]))?;
    let large = dir.join(LARGE);
    fs::create_dir(&large)?;
    for i in 0..amount.listed {
        File::create_new(large.join(format!("file{i:06}")))?;
    }
    Ok(())
}

/// Makes `files` files in a new directory in `dir`, looks at each, renames each, removes each, and
/// removes the directory.
pub fn short_lived(dir: &Path, files: u32) -> Result<()> {
    let top = dir.join("short-lived");
    fs::create_dir(&top).with_context(|| format!("make {}", top.display()))?;
    let name = |i: u32| top.join(format!("file{i:05}"));
    let renamed = |i: u32| top.join(format!("renamed{i:05}"));
    for i in 0..files {
        File::create_new(name(i))?;
    }
    for i in 0..files {
        ensure!(fs::symlink_metadata(name(i))?.len() == 0, "{} is not empty", name(i).display());
    }
    for i in 0..files {
        fs::rename(name(i), renamed(i))?;
    }
    for i in 0..files {
        fs::remove_file(renamed(i))?;
    }
    fs::remove_dir(&top)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lived_files_leave_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        short_lived(dir.path(), 20).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
