//! The same work through mounts: untar, rm and a PostMark-like mix, on weft and its peers.

use crate::peer::{Mounted, Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use crate::tree::{self, Tree, run};
use crate::{Bench, machine, postmark};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;
use weft::Order;
use weft::patch::{JournalMode, Policy};

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Untar,
    Remove,
    Postmark,
}

impl Work {
    const ALL: [Self; 3] = [Self::Untar, Self::Remove, Self::Postmark];

    fn run(
        self,
        bench: &Bench,
        setting: &Setting,
        tree: &Tree,
        mounted: &Mounted<'_>,
    ) -> Result<()> {
        match self {
            Self::Untar => {
                run(setting.command("tar").arg("-xf").arg(&tree.tar).arg("-C").arg(mounted.dir()))
            }
            Self::Remove => {
                run(setting.command("rm").arg("-rf").arg(mounted.dir().join(tree::NAME)))
            }
            Self::Postmark => {
                let mix = postmark::Mix { quick: bench.quick, ..postmark::Mix::default() };
                let this = std::env::current_exe().context("find this program")?;
                run(setting.command(this).arg("postmark").arg(mounted.dir()).args(mix.arguments()))
            }
        }
    }
}

/// The systems of the table, in the order of the runs.
fn peers() -> Vec<Peer> {
    vec![
        Peer::Weft(Order(Policy::Soft)),
        Peer::Weft(Order(Policy::Journal(JournalMode::Ordered))),
        Peer::Weft(Order(Policy::Async)),
        Peer::KernelExt2,
        Peer::KernelExt3,
        Peer::Fuse2fs,
    ]
}

struct Row {
    peer: Peer,
    times: [Times; 3],
    server_cpu: [Times; 3],
}

/// Measures both tables: on one CPU, and with the scheduler left free.
pub fn mounted(bench: &Bench) -> Result<()> {
    for (name, title, cpu) in [
        ("mount-one-cpu", "Through a mount, client and server on one CPU", Some(0)),
        ("mount-free", "Through a mount, the scheduler left free", None),
    ] {
        one_table(bench, name, title, cpu)?;
    }
    Ok(())
}

fn one_table(bench: &Bench, name: &str, title: &str, cpu: Option<usize>) -> Result<()> {
    let tree = bench.tree()?;
    let setting = Setting { weft: bench.weft.clone(), work: bench.work.clone(), cpu };
    let mut section = Section::new(name, title);
    section.line(&format!(
        "`tar -xf` of {}, `rm -rf` of it after a remount, and a mix of small files as PostMark \
         makes them ({}). Seconds, {} pairs after a warm-up.{}",
        tree.describe(),
        postmark::Mix { quick: bench.quick, ..postmark::Mix::default() }.describe(),
        bench.pairs,
        cpu.map_or(String::new(), |cpu| format!(
            " Client and server are held on CPU {cpu} with taskset; the kernel's own writeback and \
             loop threads are not."
        ))
    ));
    let mut rows = Vec::new();
    for peer in peers() {
        match peer.missing(&setting) {
            Some(why) => section.line(&format!("Skipped: {peer}: {why}.")),
            None => {
                rows.push(Row { peer, times: Default::default(), server_cpu: Default::default() });
            }
        }
    }
    for round in 0..=bench.pairs {
        let mut failed = None;
        for row in &mut rows {
            eprintln!("{title}: round {round} of {}, {}", bench.pairs, row.peer);
            let (seconds, cpu) = match one_round(bench, &setting, &tree, row.peer) {
                Ok(costs) => costs,
                Err(e) => {
                    // The other systems are still worth reporting.
                    section.line(&format!("Left out: {}: {e:#}.", row.peer));
                    failed = Some(row.peer);
                    continue;
                }
            };
            // The first round is the warm-up.
            if round > 0 {
                for (i, (seconds, cpu)) in seconds.into_iter().zip(cpu).enumerate() {
                    row.times[i].push(seconds);
                    row.server_cpu[i].push(cpu);
                }
            }
        }
        rows.retain(|row| Some(row.peer) != failed);
    }
    tables(&mut section, &rows);
    section
        .signed(&machine::describe(), &format!("weft-bench mount --pairs {}", bench.pairs))
        .save(&bench.report)
}

fn one_round(
    bench: &Bench,
    setting: &Setting,
    tree: &Tree,
    peer: Peer,
) -> Result<([f64; 3], [f64; 3])> {
    let volume = peer.make(setting)?;
    let (mut seconds, mut cpu) = ([0.0; 3], [0.0; 3]);
    for (i, work) in Work::ALL.into_iter().enumerate() {
        let mounted = volume.mount()?;
        let began = Instant::now();
        work.run(bench, setting, tree, &mounted).with_context(|| format!("{work:?} on {peer}"))?;
        cpu[i] = mounted.server_cpu();
        mounted.finish()?;
        seconds[i] = began.elapsed().as_secs_f64();
    }
    Ok((seconds, cpu))
}

fn tables(section: &mut Section, rows: &[Row]) {
    let show: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![row.peer.to_string()];
            for i in 0..3 {
                cells.push(row.times[i].show());
            }
            let cpu: Vec<String> =
                row.server_cpu.iter().map(|t| format!("{:.1}", t.median())).collect();
            cells.push(if row.server_cpu[0].median() > 0.0 { cpu.join(", ") } else { "-".into() });
            cells
        })
        .collect();
    section.table(&["", "untar", "rm -rf", "small files", "server's CPU in each"], &show);
    let Some(ours) = rows.iter().find(|r| r.peer == Peer::Weft(Order(Policy::Soft))) else {
        return;
    };
    let ratios: Vec<Vec<String>> = rows
        .iter()
        .filter(|row| row.peer != ours.peer)
        .map(|row| {
            let mut cells = vec![row.peer.to_string()];
            for i in 0..3 {
                let ratio = row.times[i].ratio_to(&ours.times[i]);
                cells.push(ratio.map_or("-".into(), |r| format!("{r:.2}")));
            }
            cells
        })
        .collect();
    section.line(
        "The same as multiples of weft with soft updates (median of the ratios within each round; \
         above 1, weft is faster):",
    );
    section.table(&["", "untar", "rm -rf", "small files"], &ratios);
}

/// `weft import` beside `tar` on the kernel's ext3.
pub fn import(bench: &Bench) -> Result<()> {
    let tree = bench.tree()?;
    let setting = Setting { weft: bench.weft.clone(), work: bench.work.clone(), cpu: None };
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
            Work::Untar.run(bench, &setting, &tree, &mounted)?;
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
