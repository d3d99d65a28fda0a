//! `ringer`: the shared file service.

#[cfg(feature = "archive")]
mod archive;
mod care;
mod cells;
mod copies;
mod encryption;
mod history;
mod members;
mod owner;
mod sharing;
mod snapshots;
mod tag;
pub mod top;
mod xattr;

use super::background;
use crate::cli::ringer::{
    Conflicts, Doctor, Keep, Key, Mount, Reaching, Resolve, Ringer, Search, Serve, Status,
};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft::cache::CellMetrics;
use weft::mount_options::MountOptions;
use weft::net::{Address, ClientTls, Role, ServerTls};
use weft::ringer::Bytes;
use weft::ringer::mds::MdsOptions;
use weft::ringer_client::{CONFLICTS_XATTR, CellTree, OwnerOptions, RingerFsOptions};
use weft::ringer_net::pki::{self, Authority};
use weft::ringer_net::{self as net, Answer, Ask, CellStatus, PORT};
#[cfg(feature = "etcd")]
use weft::ringer_server::store::EtcdOptions;
use weft::ringer_server::{ProxyServeOptions, ServeOptions, Server};
use weft::{Tree, mounts};

/// The error for a reply of another type than the request asks for.
const UNEXPECTED: &str =
    "protocol error: unexpected reply from the server (another version of weft?)";
/// The exit code of `ringer doctor` for problems found, as of fsck(8).
const SOMETHING_WRONG: u8 = 4;
/// The exit code of `ringer doctor` for a check that failed.
const NOT_LOOKED_AT: u8 = 8;

/// `ringer`.
pub fn run(out: Output, verb: &Ringer) -> Outcome {
    match verb {
        Ringer::Serve(args) => serve(out, args),
        Ringer::Mount(args) => mount(out, args),
        Ringer::Status(args) => status(out, args),
        Ringer::Top(args) => top::top(out, args),
        Ringer::Leases(args) => top::leases(out, args),
        Ringer::Search(args) => search(out, args),
        Ringer::Tag(args) => tag::tag(out, args),
        Ringer::Snapshot(args) => snapshots::snapshot(out, args),
        Ringer::Doctor(args) => doctor(out, args),
        Ringer::Backup(args) => care::backup(out, args),
        Ringer::RestoreCell(args) => care::restore(out, args),
        Ringer::Scrub(args) => care::scrub(out, args),
        Ringer::Conflicts(args) => conflicts(out, args),
        Ringer::Resolve(args) => resolve(out, args),
        Ringer::Own(args) => owner::own(out, args),
        Ringer::Attach(args) => cells::attach(out, args),
        Ringer::Detach(args) => cells::detach(out, args),
        Ringer::Policy(args) => copies::policy(out, args),
        Ringer::Holders(args) => copies::holders(out, args),
        Ringer::Encrypt(args) => encryption::encrypt(out, args),
        Ringer::Key(args) => key(out, args),
        Ringer::Pin(args) => copies::pin(out, args, true),
        Ringer::Unpin(args) => copies::pin(out, args, false),
        Ringer::History(args) => history::history(out, args),
        Ringer::Restore(args) => history::restore(out, args),
        Ringer::Init(args) => members::init(out, args),
        Ringer::Invite(args) => members::invite(out, args),
        Ringer::Join(args) => members::join(out, args),
        Ringer::Revoke(args) => members::revoke(out, args),
        Ringer::Members(args) => members::members(out, args),
        Ringer::Forget(args) => members::forget(out, args),
        #[cfg(feature = "archive")]
        Ringer::Archive(args) => archive::run(out, args),
    }
}

/// `ringer key`.
fn key(out: Output, args: &Key) -> Outcome {
    match args {
        Key::List { mountpoint } => encryption::list(out, mountpoint),
        Key::Export { directory } => encryption::export(out, directory),
        Key::Import { mountpoint, from } => encryption::import(out, mountpoint, from.as_deref()),
        Key::Id { mountpoint } => sharing::id(out, mountpoint),
        Key::Trust { mountpoint, ids, remove } => sharing::trust(out, mountpoint, ids, *remove),
        Key::Share { directory, ids } => sharing::share(out, directory, ids),
        Key::Members { directory } => sharing::members(out, directory),
    }
}

// A function for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn failed(e: impl Into<net::Error>) -> Failure {
    Failure::new(e.into().to_string())
}

/// Parses an address from the command line, made independent of the working directory.
fn address(text: &str) -> Result<Address, Failure> {
    let address = Address::parse(text, PORT).and_then(Address::absolute);
    address.map_err(|e| Failure::usage(e.to_string()))
}

/// Parses at least one address.
fn addresses(text: &str) -> Result<Vec<Address>, Failure> {
    text.split(',').map(address).collect()
}

fn size(text: &str) -> Result<u64, Failure> {
    weft::block::parse_size(text).map_err(|e| Failure::usage(e.to_string()))
}

/// The cell that is served, and its addresses.
#[derive(Debug, Serialize, Deserialize)]
struct Served {
    cell: String,
    addresses: Vec<String>,
    process: u32,
    /// The address of the metrics for Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics: Option<String>,
    /// Damage of the cell's file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

fn serve(out: Output, args: &Serve) -> Outcome {
    if args.background && !args.detached {
        if weft::net::inherited_count().map_err(failed)? > 0 {
            super::serve::refuse_beside_inherited(false, true)?;
        }
        let (_, said) = again(args.pid_file.as_deref())?;
        let served: Served = serde_json::from_str(&said).map_err(|_| {
            Failure::new(format!("unexpected output of the background process: {said:?}"))
        })?;
        return report(out, &served);
    }
    // Before the server starts, so that an early signal ends it all the same.
    let told = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let server = start(args)?;
    let metrics = args.metrics.as_deref().map(|at| CellMetrics::serve(at, server.watch()));
    let metrics = metrics.transpose().map_err(|e| Failure::new(e.to_string()))?;
    let served = Served {
        metrics: metrics.as_ref().and_then(CellMetrics::address).map(|at| at.to_string()),
        cell: args.cell.display().to_string(),
        addresses: server.addresses().iter().map(Address::to_string).collect(),
        process: std::process::id(),
        notes: server.notes().to_vec(),
    };
    if let (Some(file), false) = (&args.pid_file, args.detached) {
        background::write_own_pid(file)?;
    }
    if args.detached {
        background::let_go(&serde_json::to_string(&served).map_err(std::io::Error::from)?)?;
    } else {
        report(out, &served)?;
    }
    let tell = Arc::clone(&told);
    std::thread::spawn(move || {
        signals.forever().next();
        tell.store(true, Ordering::Release);
    });
    while !told.load(Ordering::Acquire) && !server.has_ended(Duration::from_millis(100)) {}
    server.stop().map_err(failed)?;
    Ok(DONE)
}

fn start(args: &Serve) -> Result<Server, Failure> {
    let options = serve_options(args)?;
    if let Some(parents) = &args.upstream {
        let tls = args.upstream_certificates.as_deref().map(ClientTls::mutual).transpose();
        let proxy = ProxyServeOptions {
            parents: addresses(parents)?,
            tls: tls.map_err(failed)?,
            directory: std::path::absolute(&args.cell)?,
        };
        return Server::start_proxy(proxy, options).map_err(failed);
    }
    #[cfg(feature = "etcd")]
    if !args.etcd.members.is_empty() {
        let Some(name) = args.cell.to_str() else {
            return Err(Failure::usage("the name of a cell in etcd must be UTF-8"));
        };
        let mut etcd = EtcdOptions::new(args.etcd.members.clone(), name.to_owned());
        etcd.certificates.clone_from(&args.etcd.etcd_certificates);
        etcd.session = Duration::from_secs(args.etcd.session);
        let advertise = args.etcd.advertise.as_deref().map(address).transpose()?;
        return Server::start_member(&etcd, advertise.as_ref(), options).map_err(failed);
    }
    Server::start(&std::path::absolute(&args.cell)?, options).map_err(failed)
}

fn serve_options(args: &Serve) -> Result<ServeOptions, Failure> {
    let mut listen: Vec<Address> =
        args.listen.iter().map(|a| address(a)).collect::<Result<_, _>>()?;
    let activated = weft::net::inherited_count().map_err(failed)? > 0;
    if activated {
        super::serve::refuse_beside_inherited(!listen.is_empty(), args.background)?;
    } else if listen.is_empty() {
        listen.push(address("localhost")?);
    }
    let (mut tls, mut authority, mut admins) = (None, None, Vec::new());
    if let Some(dir) = &args.tls_certificates {
        // A proxy (`--upstream`) admits the clients that its parent admits.
        if args.upstream.is_none() {
            authority = Authority::open(dir).map_err(failed)?.map(Arc::new);
        }
        let server = match &authority {
            None => ServerTls::mutual(dir, Role::Server),
            Some(_) => {
                admins.push(pki::fingerprint_in(&dir.join("client-cert.pem")).map_err(failed)?);
                ServerTls::joining(dir)
            }
        };
        tls = Some(server.map_err(failed)?);
    }
    for address in &listen {
        if tls.is_none() && !args.insecure && !address.is_local().map_err(failed)? {
            return Err(Failure::usage(format!(
                "{address} is reachable from other machines: give --tls-certificates DIRECTORY \
                (or --insecure to let anyone who reaches it read and change everything)"
            )));
        }
    }
    let epoch_micros = args.epoch * 1_000_000;
    Ok(ServeOptions {
        listen,
        activated,
        tls,
        insecure: args.insecure,
        authority,
        admins,
        connections_max: args.connections_max,
        relays_max: args.relays_max,
        mds: MdsOptions { epoch_micros, root: owner::of_root(args)?, ..MdsOptions::default() },
    })
}

fn report(out: Output, served: &Served) -> Outcome {
    for note in &served.notes {
        out.note(note);
    }
    let places = served.addresses.join(" and ");
    out.confirm(served, &format!("{} is served at {places}", served.cell))?;
    Ok(DONE)
}

/// Runs this command again in a background process, and waits until it is ready.
fn again(pid_file: Option<&Path>) -> Result<(u32, String), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    // The same arguments, without the name of the program.
    command.args(std::env::args_os().skip(1)).arg("--detached").arg("--quiet");
    background::start(&mut command, pid_file)
}

fn mount(out: Output, args: &Mount) -> Outcome {
    let (server, dir) = (&args.reaching.server, args.mountpoint.display());
    if args.background && !args.detached {
        let (process, said) = again(args.pid_file.as_deref())?;
        let notes: Vec<String> = serde_json::from_str(&said).map_err(|_| {
            Failure::new(format!("unexpected output of the background process: {said:?}"))
        })?;
        for note in &notes {
            out.note(note);
        }
        let text = format!("{server} is mounted on {dir}");
        out.confirm(&serde_json::json!({ "mounted": server, "process": process }), &text)?;
        return Ok(DONE);
    }
    let mut options = MountOptions::default();
    for list in &args.options {
        options.parse(list).map_err(|e| Failure::usage(e.to_string()))?;
    }
    options.read_only |= args.read_only;
    if mounts::clear_dead(&args.mountpoint)? {
        out.note(&format!("unmounted {dir}: the process of an earlier mount there had died"));
    }
    let mut client = client_options(args)?;
    client.owners = OwnerOptions { uid: options.uid, gid: options.gid, by_name: args.map_users };
    let store = client.directory.clone();
    let fs = CellTree::join(client).map_err(failed)?;
    let notes = fs.notes();
    let session = Tree::cell(&store, fs)?.mount(&args.mountpoint, &options)?;
    if let (Some(file), false) = (&args.pid_file, args.detached) {
        background::write_own_pid(file)?;
    }
    if args.detached {
        background::let_go(&serde_json::to_string(&notes).map_err(std::io::Error::from)?)?;
    } else {
        for note in &notes {
            out.note(note);
        }
        out.note(&format!("{server} is mounted on {dir}; unmount it, or press Ctrl-C, to end"));
    }
    session.wait()?;
    Ok(DONE)
}

fn client_options(args: &Mount) -> Result<RingerFsOptions, Failure> {
    let store = std::path::absolute(&args.store)?;
    if weft::mounts::is_within(&store, &args.mountpoint) {
        return Err(Failure::usage(format!(
            "the store {} is below the mount point {}, which would hide it; give it another place",
            store.display(),
            args.mountpoint.display()
        )));
    }
    let servers = addresses(&args.reaching.server)?;
    let mut options = RingerFsOptions::new(servers[0].clone(), store);
    options.servers = servers;
    options.listen = args.listen.as_deref().map(address).transpose()?;
    if let Some(directory) = &args.reaching.tls_certificates {
        let client = ClientTls::mutual(directory).map_err(failed)?;
        let member = ServerTls::mutual(directory, Role::Client).map_err(failed)?;
        options.tls = Some((client, member));
    }
    let absolute = args.cells_certificates.as_ref().map(std::path::absolute);
    options.cells_certificates = absolute.transpose()?;
    options.block_bytes = u32::try_from(size(&args.block_size)?)
        .map_err(|_| Failure::usage("--block-size is at most 4M"))?;
    options.cache_max_bytes = size(&args.cache_size)?;
    if let Some(text) = &args.store_size {
        options.store_max_bytes = size(text)?;
    }
    options.patience = Duration::from_secs(args.patience);
    options.allow_attach = args.allow_attach;
    options.allow_shared_memory = args.allow_shared_memory;
    options.accept_older_cell = args.accept_older_cell;
    options.adopt_store = args.adopt_store;
    Ok(options)
}

/// Sends a query to each server.
fn ask_all(
    reaching: &Reaching,
    question: &Ask,
) -> Result<Vec<(Address, net::Result<Answer>)>, Failure> {
    let tls = reaching.tls_certificates.as_deref().map(ClientTls::mutual).transpose();
    let tls = tls.map_err(failed)?;
    let ask = |server: Address| {
        let answer = net::ask(&server, tls.as_ref(), question);
        (server, answer)
    };
    Ok(addresses(&reaching.server)?.into_iter().map(ask).collect())
}

/// Returns the answer of the server that owns the cell, or the reasons why none answered.
fn the_owners(answers: Vec<(Address, net::Result<Answer>)>) -> Result<Answer, Failure> {
    let alone = answers.len() == 1;
    let mut whys = Vec::new();
    for (server, answer) in answers {
        match answer {
            Ok(answer) => return Ok(answer),
            Err(why) if alone => return Err(failed(why)),
            Err(why) => whys.push(format!("{server}: {why}")),
        }
    }
    Err(Failure::new(format!("cannot reach the server that owns the cell: {}", whys.join("; "))))
}

/// Sends a query to the server that owns the cell.
fn ask(reaching: &Reaching, question: &Ask) -> Result<Answer, Failure> {
    the_owners(ask_all(reaching, question)?)
}

/// The state of a cell, as JSON.
#[derive(Debug, Serialize)]
struct CellReport {
    cell: String,
    /// The number of starts of the server.
    generation: u32,
    transactions: u64,
    waits_for_clients: bool,
    /// Whether the server's disk is full, so that changes wait.
    disk_full: bool,
    epoch_seconds: f64,
    clients: Vec<ClientReport>,
    /// The servers that were queried, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers: Vec<ServerReport>,
}

#[derive(Debug, Serialize)]
struct ServerReport {
    address: String,
    /// `owner`, `standby` or `away`.
    role: &'static str,
}

impl ServerReport {
    fn new((server, answer): &(Address, net::Result<Answer>)) -> Self {
        let role = match answer {
            Ok(_) => "owner",
            Err(net::Error::Standby { .. }) => "standby",
            Err(_) => "away",
        };
        Self { address: server.to_string(), role }
    }
}

#[derive(Debug, Serialize)]
struct ClientReport {
    client: String,
    connected: bool,
    /// Whether its leases are valid.
    live: bool,
    epoch: u64,
    read_leases: u64,
    write_leases: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    listens: Option<String>,
}

impl CellReport {
    /// The state of a client in words.
    fn state(connected: bool, live: bool) -> &'static str {
        match (connected, live) {
            (true, true) => "here",
            (false, true) => "disconnected, leases valid",
            _ => "gone",
        }
    }

    fn new(status: CellStatus) -> Self {
        let clients = status.clients.into_iter().map(|c| ClientReport {
            client: format!("{:016x}", c.client.0),
            connected: c.connected,
            live: c.live,
            epoch: c.epoch.0,
            read_leases: c.reads,
            write_leases: c.writes,
            listens: c.listens.map(|text| String::from_utf8_lossy(&text.0).into_owned()),
        });
        Self {
            cell: format!("{:016x}", status.cell),
            generation: status.generation.0,
            transactions: status.revision,
            waits_for_clients: status.in_grace,
            disk_full: status.is_full,
            epoch_seconds: status.epoch_micros as f64 / 1e6,
            clients: clients.collect(),
            servers: Vec::new(),
        }
    }
}

fn status(out: Output, args: &Status) -> Outcome {
    let place = std::path::Path::new(&args.reaching.server);
    if place.is_dir() {
        return copies::store_status(out, place);
    }
    let answers = ask_all(&args.reaching, &Ask::Status {})?;
    let servers: Vec<_> = answers.iter().map(ServerReport::new).collect();
    let Answer::Status { status } = the_owners(answers)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let mut report = CellReport::new(status);
    if servers.len() > 1 {
        report.servers = servers;
    }
    out.report(&report, |to| {
        let CellReport { cell, generation, transactions, clients, .. } = &report;
        writeln!(to, "cell {cell}, start {generation}, {}", count(*transactions, "transaction"))?;
        if report.disk_full {
            writeln!(to, "the server's disk is full: changes wait until there is room")?;
        }
        if report.waits_for_clients {
            writeln!(to, "recovering: waiting for clients to reclaim their leases")?;
        }
        for ServerReport { address, role } in &report.servers {
            writeln!(to, "server {address}  {role}")?;
        }
        for c in clients {
            let state = CellReport::state(c.connected, c.live);
            let leases = format!("{} to read, {} to write", c.read_leases, c.write_leases);
            let listens = c.listens.as_deref().unwrap_or("-");
            writeln!(to, "client {}  {state}  leases: {leases}  {listens}", c.client)?;
        }
        Ok(())
    })?;
    Ok(DONE)
}

/// The result of a check of all records, as JSON.
#[derive(Debug, Serialize)]
struct DoctorReport {
    cell: String,
    rnodes: u64,
    names: u64,
    problem_count: u64,
    /// The first problems.
    problems: Vec<ProblemReport>,
}

#[derive(Debug, Serialize)]
struct ProblemReport {
    code: String,
    text: String,
}

fn doctor(out: Output, args: &Doctor) -> Outcome {
    let not_looked = |e| Failure { code: NOT_LOOKED_AT, ..e };
    let cell = cells::number_of(&args.reaching).map_err(not_looked)?;
    let looked = ask_all(&args.reaching, &Ask::Check {}).and_then(the_owners);
    let answer = looked.map_err(not_looked)?;
    let Answer::Checked { rnodes, names, problem_count, problems } = answer else {
        return Err(Failure { code: NOT_LOOKED_AT, ..Failure::new(UNEXPECTED) });
    };
    let text = |bytes: Bytes| String::from_utf8_lossy(&bytes.0).into_owned();
    let problems = problems.into_iter();
    let problems = problems.map(|(code, at)| ProblemReport { code: text(code), text: text(at) });
    let cell = cell.to_string();
    let report = DoctorReport { cell, rnodes, names, problem_count, problems: problems.collect() };
    out.report(&report, |to| {
        for ProblemReport { code, text } in &report.problems {
            writeln!(to, "{code}: {text}")?;
        }
        let state =
            if problem_count == 0 { "no errors".into() } else { count(problem_count, "problem") };
        let (inodes, names) = (count(rnodes, "inode"), count(names, "name"));
        writeln!(to, "cell {}: {inodes}, {names}: {state}", report.cell)
    })?;
    Ok(if problem_count == 0 { DONE } else { SOMETHING_WRONG })
}

/// The results of a search, as JSON.
#[derive(Debug, Serialize)]
struct FoundReport {
    /// Paths from the root of the cell.
    paths: Vec<String>,
    /// Whether all results are listed.
    complete: bool,
    /// The outcome for each cell, if a mount was searched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cells: Vec<cells::AskedCell>,
}

fn search(out: Output, args: &Search) -> Outcome {
    // One argument is one condition, including the blanks that the shell left in it.
    let quoted = args.conditions.iter().map(|c| {
        let is_bare = c.contains(char::is_whitespace) && !c.contains('"');
        if is_bare { format!("\"{c}\"") } else { c.clone() }
    });
    let query = quoted.collect::<Vec<_>>().join(" ");
    let place = std::path::Path::new(&args.reaching.server);
    if place.is_dir() {
        return cells::search(out, place, &query, args.limit);
    }
    let question = Ask::Search { query: Bytes(query.into_bytes()), limit: args.limit };
    let Answer::Found { hits, complete } = the_owners(ask_all(&args.reaching, &question)?)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let paths = hits.iter().map(|hit| String::from_utf8_lossy(&hit.path.0).into_owned()).collect();
    let report = FoundReport { paths, complete, cells: Vec::new() };
    out.report(&report, |to| report.paths.iter().try_for_each(|path| writeln!(to, "{path}")))?;
    if !complete {
        out.note("more results exist: raise --limit");
    }
    Ok(DONE)
}

/// A conflict, as JSON.
#[derive(Debug, Serialize)]
struct ConflictReport {
    /// The cell that the file is in.
    cell: String,
    number: u64,
    /// The inode number of the file; 0 if names are in conflict.
    inode: u64,
    /// The time of the last change, in seconds since 1970.
    seconds: i64,
    why: String,
    changes: String,
}

impl ConflictReport {
    fn parse(cell: &str, line: &str) -> Option<Self> {
        let mut parts = line.splitn(5, '\t');
        let mut next = || parts.next();
        Some(Self {
            cell: cell.to_owned(),
            number: next()?.parse().ok()?,
            inode: next()?.parse().ok()?,
            seconds: next()?.parse().ok()?,
            why: next()?.to_owned(),
            changes: next()?.to_owned(),
        })
    }
}

fn no_cell(mountpoint: &std::path::Path, e: rustix::io::Errno) -> Failure {
    Failure::new(match e {
        rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP => {
            format!("no cell is mounted on {}", mountpoint.display())
        }
        rustix::io::Errno::EXIST => "that name already exists".to_owned(),
        e => format!("{}: {e}", mountpoint.display()),
    })
}

fn conflicts(out: Output, args: &Conflicts) -> Outcome {
    let text =
        xattr::get(&args.mountpoint, CONFLICTS_XATTR).map_err(|e| no_cell(&args.mountpoint, e))?;
    let cell = cells::number_at(&args.mountpoint).map_err(|e| no_cell(&args.mountpoint, e))?;
    let report = |line| ConflictReport::parse(&cell, line);
    let reports: Vec<_> = text.lines().filter_map(report).collect();
    out.report(&reports, |to| {
        reports.iter().try_for_each(|c| {
            let about = if c.inode == 0 { String::new() } else { format!("inode {}, ", c.inode) };
            writeln!(to, "{}: {about}{}: {}", c.number, c.why, c.changes)
        })
    })?;
    if text.ends_with("more\n") {
        out.note("more conflicts exist: resolve some of these first");
    }
    // Conflicts of an attached cell are resolved at the directory that it is attached to.
    for cell in cells::inside(&args.mountpoint).iter().filter(|cell| cell.conflicts > 0) {
        let (number, found) = (&cell.cell, count(cell.conflicts, "conflict"));
        out.note(&format!(
            "attached cell {number} has {found}: run `conflicts` on the directory it is attached to"
        ));
    }
    Ok(DONE)
}

fn resolve(out: Output, args: &Resolve) -> Outcome {
    let number = args.number;
    let text = match (args.keep, &args.copy) {
        (Keep::Mine, None) => format!("mine {number}").into_bytes(),
        (Keep::Theirs, None) => format!("theirs {number}").into_bytes(),
        (Keep::Both, Some(path)) => {
            let slash: &OsStr = if path.as_bytes().starts_with(b"/") { "" } else { "/" }.as_ref();
            [format!("both {number} ").as_bytes(), slash.as_bytes(), path.as_bytes()].concat()
        }
        _ => return Err(Failure::usage("--as is only for --keep both")),
    };
    xattr::set(&args.mountpoint, CONFLICTS_XATTR, &text).map_err(|e| match e {
        rustix::io::Errno::NOENT if args.mountpoint.exists() => {
            Failure::new(format!("no such conflict, or no directory to put the copy in: {number}"))
        }
        e => no_cell(&args.mountpoint, e),
    })?;
    out.confirm(&serde_json::json!({ "settled": number }), &format!("resolved conflict {number}"))?;
    Ok(DONE)
}
