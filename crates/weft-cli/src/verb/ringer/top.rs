//! `ringer top` and `ringer leases`: the holders of leases, and the rates of messages and
//! transfers.

use super::{CellReport, UNEXPECTED, addresses, ask, ask_all, no_cell, the_owners, xattr};
use crate::cli::cache;
use crate::cli::ringer::{Leases, Reaching, Top};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use crate::verb::top::watch;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use weft::ringer::{ClientId, Mode};
use weft::ringer_client::STORE_XATTR;
use weft::ringer_net::{Answer, Ask, CellStatus, ClientStatus};

/// Returns true if `name` is a directory that a cell is mounted on.
pub fn is_mount(name: &str) -> bool {
    Path::new(name).is_dir() && xattr::get(Path::new(name), STORE_XATTR).is_ok()
}

/// `top` of a mount.
pub fn of_mount(out: Output, args: &cache::Top) -> Outcome {
    watch(out, args, read_mount, show_mount)
}

/// `ringer top`.
pub(super) fn top(out: Output, args: &Top) -> Outcome {
    let count = if args.once { 1 } else { args.count };
    let looks =
        cache::Top { cache: args.reaching.server.clone(), interval_ms: args.interval_ms, count };
    if Path::new(&looks.cache).is_dir() {
        return of_mount(out, &looks);
    }
    addresses(&looks.cache)?;
    watch(out, &looks, |_| read_server(&args.reaching), show_server)
}

fn read_server(reaching: &Reaching) -> Result<CellStatus, Failure> {
    match the_owners(ask_all(reaching, &Ask::Status {})?)? {
        Answer::Status { status } => Ok(status),
        _ => Err(Failure::new(UNEXPECTED)),
    }
}

/// The figures of a client in the last interval, as JSON.
#[derive(Debug, Serialize)]
struct ClientLine {
    client: String,
    state: &'static str,
    read_leases: u64,
    write_leases: u64,
    received_per_second: f64,
    sent_per_second: f64,
    recalls_per_second: f64,
}

/// The figures of a cell in the last interval, as JSON.
#[derive(Debug, Serialize)]
struct CellLine {
    server: String,
    cell: String,
    transactions_per_second: f64,
    received_per_second: f64,
    sent_per_second: f64,
    recalls_per_second: f64,
    read_leases: u64,
    write_leases: u64,
    clients: Vec<ClientLine>,
}

fn show_server(
    out: Output,
    server: &str,
    before: &CellStatus,
    now: &CellStatus,
    secs: f64,
) -> Result<(), Failure> {
    let old: BTreeMap<ClientId, &ClientStatus> =
        before.clients.iter().map(|c| (c.client, c)).collect();
    // The counters of a restarted server begin at 0.
    let rate = |then: u64, now: u64| now.saturating_sub(then) as f64 / secs.max(0.001);
    let mut clients: Vec<ClientLine> = now
        .clients
        .iter()
        .filter(|c| c.live || c.connected)
        .map(|c| {
            let then = |of: fn(&ClientStatus) -> u64| old.get(&c.client).map_or(0, |c| of(c));
            ClientLine {
                client: format!("{:016x}", c.client.0),
                state: CellReport::state(c.connected, c.live),
                read_leases: c.reads,
                write_leases: c.writes,
                received_per_second: rate(then(|c| c.received), c.received),
                sent_per_second: rate(then(|c| c.sent), c.sent),
                recalls_per_second: rate(then(|c| c.recalls), c.recalls),
            }
        })
        .collect();
    // The busiest clients first.
    clients.sort_by(|a, b| b.received_per_second.total_cmp(&a.received_per_second));
    let sum = |of: fn(&ClientLine) -> f64| clients.iter().map(of).sum::<f64>();
    let report = CellLine {
        server: server.to_owned(),
        cell: format!("{:016x}", now.cell),
        transactions_per_second: rate(before.revision, now.revision),
        received_per_second: sum(|c| c.received_per_second),
        sent_per_second: sum(|c| c.sent_per_second),
        recalls_per_second: sum(|c| c.recalls_per_second),
        read_leases: clients.iter().map(|c| c.read_leases).sum(),
        write_leases: clients.iter().map(|c| c.write_leases).sum(),
        clients,
    };
    out.report(&report, |to| {
        writeln!(
            to,
            "{server}: {} clients, {:.0} transactions/s, {:.0} messages/s in, {:.0} out, {:.0} \
             recalls/s",
            report.clients.len(),
            report.transactions_per_second,
            report.received_per_second,
            report.sent_per_second,
            report.recalls_per_second,
        )?;
        writeln!(to, "leases: {} to read, {} to write", report.read_leases, report.write_leases)?;
        writeln!(
            to,
            "{:16}  {:>9} {:>9} {:>9} {:>9} {:>9}  ",
            "client", "to read", "to write", "in/s", "out/s", "recalls/s"
        )?;
        report.clients.iter().try_for_each(|c| {
            writeln!(
                to,
                "{:16}  {:9} {:9} {:9.0} {:9.0} {:9.0}  {}",
                c.client,
                c.read_leases,
                c.write_leases,
                c.received_per_second,
                c.sent_per_second,
                c.recalls_per_second,
                c.state
            )
        })
    })?;
    Ok(())
}

/// The figures of a mount, by name.
type Figures = BTreeMap<String, u64>;

fn read_mount(place: &str) -> Result<Figures, Failure> {
    let place = Path::new(place);
    let text = xattr::get(place, STORE_XATTR).map_err(|e| no_cell(place, e))?;
    let figures = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(figures.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect())
}

fn show_mount(
    out: Output,
    place: &str,
    before: &Figures,
    now: &Figures,
    secs: f64,
) -> Result<(), Failure> {
    let of = |name: &str| now.get(name).copied().unwrap_or(0);
    let rate = |name: &str| {
        let then = before.get(name).copied().unwrap_or(0);
        of(name).saturating_sub(then) as f64 / secs.max(0.001)
    };
    let report = serde_json::json!({
        "mount": place,
        "cell": format!("{:016x}", of("cell")),
        "client": format!("{:016x}", of("client")),
        "read_leases": of("read_leases"),
        "write_leases": of("write_leases"),
        "changes_not_sent": of("changes_not_sent"),
        "files_with_copies_to_make": of("files_with_copies_to_make"),
        "staying_bytes": of("staying_bytes"),
        "cached_bytes": of("cached_bytes"),
        "peer_bytes_read_per_second": rate("peer_bytes_read"),
        "peer_bytes_given_per_second": rate("peer_bytes_given"),
        "archive_bytes_read_per_second": rate("archive_bytes_read"),
        "archive_bytes_put_per_second": rate("archive_bytes_put"),
        "archive_wrong_blocks": of("archive_wrong_blocks"),
        "archive_failures": of("archive_failures"),
    });
    let speed = |name: &str| format!("{}/s", human(rate(name) as u64));
    out.report(&report, |to| {
        writeln!(to, "{place}: client {:016x}", of("client"))?;
        writeln!(to, "leases     {} to read, {} to write", of("read_leases"), of("write_leases"))?;
        writeln!(
            to,
            "clients    {} from others, {} to others",
            speed("peer_bytes_read"),
            speed("peer_bytes_given")
        )?;
        writeln!(
            to,
            "archives   {} from, {} to; {} wrong blocks, {} failures",
            speed("archive_bytes_read"),
            speed("archive_bytes_put"),
            of("archive_wrong_blocks"),
            of("archive_failures")
        )?;
        writeln!(
            to,
            "store      {} kept, {} to read again",
            human(of("staying_bytes")),
            human(of("cached_bytes"))
        )?;
        writeln!(
            to,
            "to do      {} changes to send, {} files to copy",
            of("changes_not_sent"),
            of("files_with_copies_to_make")
        )
    })?;
    Ok(())
}

/// A lease, as JSON.
#[derive(Debug, Serialize)]
struct LeaseReport {
    client: String,
    inode: u64,
    /// The path from the root of the cell; none if the inode has no name, or the server does not
    /// know it.
    path: Option<String>,
    /// `write`, `read`, or `hold` for one that keeps a file without a name.
    mode: &'static str,
}

/// Leases, as JSON.
#[derive(Debug, Serialize)]
struct LeasesReport {
    leases: Vec<LeaseReport>,
    /// The number of all leases.
    total: u64,
}

/// `ringer leases`.
pub(super) fn leases(out: Output, args: &Leases) -> Outcome {
    let question = Ask::Leases { limit: args.limit };
    let Answer::Leases { leases, total } = ask(&args.reaching, &question)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let reports = leases.into_iter().map(|lease| LeaseReport {
        client: format!("{:016x}", lease.client.0),
        inode: lease.rnode.0,
        path: lease.path.map(|path| String::from_utf8_lossy(&path.0).into_owned()),
        mode: match lease.mode {
            Mode::Hold => "hold",
            Mode::Read => "read",
            Mode::Write => "write",
        },
    });
    let report = LeasesReport { leases: reports.collect(), total };
    out.report(&report, |to| {
        report.leases.iter().try_for_each(|lease| {
            let inode = format!("inode {}", lease.inode);
            let what = lease.path.as_ref().unwrap_or(&inode);
            writeln!(to, "client {}  {:5}  {what}", lease.client, lease.mode)
        })
    })?;
    let shown = report.leases.len() as u64;
    if shown < total {
        out.note(&format!("{shown} of {total} leases shown: raise --limit"));
    }
    Ok(DONE)
}
