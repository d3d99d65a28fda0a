//! The same work through mounts: untar, rm and a PostMark-like mix, on weft and its peers.

use crate::comparison::{COLUMNS, Comparison, Cost, Work};
use crate::io_uring::{Allowed, Transport};
use crate::peer::{Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use crate::tree::{self, Tree, run};
use crate::{Bench, machine, postmark};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;
use weft::Order;
use weft::patch::{JournalMode, Policy};

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Untar,
    Remove,
    Postmark,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Untar, Self::Remove, Self::Postmark];

    fn describe(self, bench: &Bench, tree: &Tree) -> Work {
        let (title, units, unit) = match self {
            Self::Untar => ("untar", tree.files, "file"),
            Self::Remove => ("rm -rf", tree.files, "file"),
            Self::Postmark => ("small files", mix(bench).scaled().transactions, "transaction"),
        };
        Work { title: title.into(), units, unit }
    }

    fn run(self, bench: &Bench, setting: &Setting, tree: &Tree, dir: &Path) -> Result<()> {
        match self {
            Self::Untar => run(setting.command("tar").arg("-xf").arg(&tree.tar).arg("-C").arg(dir)),
            Self::Remove => run(setting.command("rm").arg("-rf").arg(dir.join(tree::NAME))),
            Self::Postmark => {
                let this = std::env::current_exe().context("find this program")?;
                run(setting.command(this).arg("postmark").arg(dir).args(mix(bench).arguments()))
            }
        }
    }
}

fn mix(bench: &Bench) -> postmark::Mix {
    postmark::Mix { quick: bench.quick, ..postmark::Mix::default() }
}

/// The systems of the table, in the order of the runs.
fn peers(setting: &Setting, section: &mut Section) -> Vec<Peer> {
    let orders = [Policy::Soft, Policy::Journal(JournalMode::Ordered), Policy::Async].map(Order);
    let mut peers = setting.weft_over_each_transport(section, &orders);
    peers.extend([
        Peer::KernelExt2,
        Peer::KernelExt3,
        Peer::Fuse2fs,
        Peer::Passthrough(Transport::Device),
        Peer::Passthrough(Transport::IoUring),
    ]);
    peers
}

/// Measures both sets of tables: on one CPU, and with the scheduler left free.
pub fn mounted(bench: &Bench) -> Result<()> {
    for (name, title, cpu) in [
        ("mount-one-cpu", "Through a mount, client and server on one CPU", Some(0)),
        ("mount-free", "Through a mount, the scheduler left free", None),
    ] {
        compare(bench, name, title, cpu)?;
    }
    Ok(())
}

fn compare(bench: &Bench, name: &str, title: &str, cpu: Option<usize>) -> Result<()> {
    let tree = bench.tree()?;
    let setting = Setting::new(bench, cpu);
    let mut section = Section::new(name, title);
    let _io_uring = Allowed::set(&mut section);
    section.line(&format!(
        "`tar -xf` of {}, `rm -rf` of it after a remount, and a mix of small files as PostMark \
         makes them ({}). Seconds until all is durable, {} pairs after a warm-up. Nothing uses the \
         write-back cache of FUSE.{}",
        tree.describe(),
        mix(bench).describe(),
        bench.pairs,
        cpu.map_or(String::new(), |cpu| format!(
            " Client and server are held on CPU {cpu} with taskset; the kernel's own writeback and \
             loop threads are not."
        ))
    ));
    section.line(COLUMNS);
    let works = Kind::ALL.map(|kind| kind.describe(bench, &tree)).to_vec();
    let peers = peers(&setting, &mut section);
    let mut comparison = Comparison::new(&mut section, &setting, &peers, works);
    comparison.run(&mut section, bench, title, |peer, counting| {
        let volume = peer.make(&setting)?;
        let once = |kind: Kind| {
            let mounted = if counting { volume.mount_counting()? } else { volume.mount()? };
            let cost = Cost::until_durable(mounted, |dir| kind.run(bench, &setting, &tree, dir));
            cost.map(Some).with_context(|| format!("{kind:?} on {peer}"))
        };
        Kind::ALL.into_iter().map(once).collect()
    });
    comparison.tables(&mut section);
    section.signed(&machine::describe(), &bench.command("mount")).save(&bench.report)
}

/// `weft import` beside `tar` on the kernel's ext3.
pub fn import(bench: &Bench) -> Result<()> {
    let tree = bench.tree()?;
    let setting = Setting::new(bench, None);
    let mut section = Section::new("import", "Import, in process, beside the kernel's ext3");
    section.line(&format!(
        "`weft import` of {} into a fresh volume with soft updates and with the ordered journal, \
         beside `tar -xf` on the kernel's ext3 on a loop device. Seconds until all is durable, {} \
         pairs after a warm-up.",
        tree.describe(),
        bench.pairs
    ));
    let orders = [Order(Policy::Soft), Order(Policy::Journal(JournalMode::Ordered))];
    let mut ours = [Times::default(), Times::default()];
    let mut kernel = Times::default();
    let peer = Peer::KernelExt3;
    let missing = peer.missing(&setting);
    if let Some(why) = &missing {
        section.line(&format!("Skipped: {peer}: {why}."));
    }
    for round in 0..=bench.pairs {
        for (order, times) in orders.iter().zip(&mut ours) {
            let seconds = import_once(&setting, &tree, *order)?;
            if round > 0 {
                times.push(seconds);
            }
        }
        if missing.is_none() {
            let volume = peer.make(&setting)?;
            let mounted = volume.mount()?;
            let began = Instant::now();
            Kind::Untar.run(bench, &setting, &tree, mounted.dir())?;
            mounted.finish()?;
            if round > 0 {
                kernel.push(began.elapsed().as_secs_f64());
            }
        }
    }
    let ratio = |times: &Times| {
        kernel.ratio_to(times).map_or("-".into(), |r| format!("{r:.2} times as fast"))
    };
    let mut rows: Vec<Vec<String>> = orders
        .iter()
        .zip(&ours)
        .map(|(order, times)| vec![format!("weft import, {order}"), times.show(), ratio(times)])
        .collect();
    rows.push(vec!["tar, kernel ext3".into(), kernel.show(), String::new()]);
    section.table(&["", "seconds", "against the kernel"], &rows);
    section.signed(&machine::describe(), "weft-bench import").save(&bench.report)
}

fn import_once(setting: &Setting, tree: &Tree, order: Order) -> Result<f64> {
    let volume = Peer::Weft(order).make(setting)?;
    let image = volume.image();
    let mut target = image.as_os_str().to_owned();
    target.push(":/");
    let began = Instant::now();
    run(setting
        .command(&setting.weft)
        .args(["import", "--quiet"])
        .arg(format!("--order={order}"))
        .arg(&tree.tar)
        .arg(PathBuf::from(target)))?;
    std::fs::File::open(image)?.sync_data()?;
    Ok(began.elapsed().as_secs_f64())
}
