//! `serve`: serves a device to clients.

use super::{background, cache};
use crate::cli::{Serve, ServeNbd, ServeProtocol, ServeTls};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::Command;
use std::time::Duration;
use weft::block::BlockDevice;
use weft::mounts::absolute_source;
use weft::nbd::server::{Options, Server};
use weft::nbd::wire::PORT;
use weft::nbd::{Export, Uri};
use weft::net::{Address, Listener, ServerTls};

/// The time limit for requests in progress when the server ends.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The device that is served, and its addresses.
#[derive(Debug, Serialize, Deserialize)]
struct Served {
    source: String,
    export: String,
    len_bytes: u64,
    read_only: bool,
    uris: Vec<String>,
    process: u32,
}

/// `serve`.
pub fn run(out: Output, args: &Serve) -> Outcome {
    match &args.protocol {
        ServeProtocol::Nbd(args) => nbd(out, args),
    }
}

fn nbd(out: Output, args: &ServeNbd) -> Outcome {
    let inherited = inherited(args)?;
    // Whoever passes sockets knows them, and its output is not the server's.
    let activated = !inherited.is_empty();
    let addresses = if inherited.is_empty() { addresses(args)? } else { Vec::new() };
    refuse_exposed(args, &addresses)?;
    if args.background && !args.detached {
        return in_background(out, args);
    }
    // Before the server starts, so that an early signal ends it all the same.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let source = open(args)?;
    let device = source.device();
    let len_bytes = device.geometry().len_bytes;
    let mut export = Export::new(&args.export, device);
    export.description.clone_from(&args.description);
    export.read_only |= args.read_only;
    let read_only = export.read_only;
    let mut server = Server::new(vec![export], options(args)?).map_err(failed)?;
    let mut listening = Vec::new();
    for listener in inherited {
        listening.push(server.listen_on(listener).map_err(failed)?);
    }
    for address in addresses {
        // The socket is removed at the end, when the working directory may be another.
        let address = address.absolute().map_err(failed)?;
        listening.push(server.listen(&address).map_err(failed)?);
    }
    let uris = listening.into_iter().map(|address| uri(args, address)).collect();
    let served = Served {
        source: args.source.clone(),
        export: args.export.clone(),
        len_bytes,
        read_only,
        uris,
        process: std::process::id(),
    };
    if let (Some(file), false) = (&args.pid_file, args.detached) {
        background::write_own_pid(file)?;
    }
    if args.detached {
        background::let_go(&serde_json::to_string(&served).map_err(std::io::Error::from)?)?;
    } else if !activated {
        report(out, &served)?;
    }
    signals.forever().next();
    let stopped = server.stop(STOP_LIMIT);
    source.close(out, &args.source)?;
    stopped.map_err(failed)?;
    Ok(DONE)
}

/// Opens the source that is served.
fn open(args: &ServeNbd) -> Result<cache::Opened, Failure> {
    if args.caching.metrics.is_some() && args.caching.cache.is_none() {
        return Err(Failure::usage("--metrics is for a cache: give --cache too"));
    }
    cache::open_source(&absolute_source(&args.source)?, &args.caching, None, args.read_only)
}

// A function for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn failed(e: impl Into<weft::nbd::Error>) -> Failure {
    Failure::new(e.into().to_string())
}

fn options(args: &ServeNbd) -> Result<Options, Failure> {
    let tls = match (args.tls, &args.tls_certificates) {
        (ServeTls::Off, None) if !args.tls_verify_peer => None,
        (ServeTls::Off, _) => {
            return Err(Failure::usage("certificates are for --tls on or --tls require"));
        }
        (_, None) => {
            let what = "give the directory of server-cert.pem: --tls-certificates DIRECTORY";
            return Err(Failure::usage(what));
        }
        (_, Some(directory)) => {
            Some(ServerTls::from_directory(directory, args.tls_verify_peer).map_err(failed)?)
        }
    };
    Ok(Options {
        connections_max: args.connections_max,
        threads: args.threads,
        idle_limit: args.idle_limit.map(Duration::from_secs),
        socket_mode: args.socket_mode.into(),
        tls,
        tls_required: args.tls == ServeTls::Require,
        ..Options::default()
    })
}

/// The addresses to listen on.
fn addresses(args: &ServeNbd) -> Result<Vec<Address>, Failure> {
    let mut addresses = Vec::new();
    for text in &args.listen {
        addresses.push(Address::parse(text, PORT).map_err(|e| Failure::usage(e.to_string()))?);
    }
    if let Some(path) = &args.socket {
        addresses.push(Address::Unix(path.clone()));
    }
    if addresses.is_empty() {
        addresses.push(Address::Tcp("localhost".into(), PORT));
    }
    Ok(addresses)
}

/// Refuses to serve other machines without TLS: NBD has no authentication, so any machine that
/// reaches the port may read and change everything. With `--tls on` a client may go without TLS.
fn refuse_exposed(args: &ServeNbd, addresses: &[Address]) -> Result<(), Failure> {
    if args.insecure || args.tls == ServeTls::Require {
        return Ok(());
    }
    for address in addresses {
        if !address.is_local().map_err(failed)? {
            let what = if args.read_only { "read" } else { "read and change" };
            return Err(Failure::usage(format!(
                "{address} is reachable from other machines, which could {what} {}: give \
                 --tls require --tls-certificates DIRECTORY, or --insecure if the network is \
                 yours alone",
                args.source
            )));
        }
    }
    Ok(())
}

/// The sockets that the process was started with, by a service manager (socket activation).
fn inherited(args: &ServeNbd) -> Result<Vec<Listener>, Failure> {
    if weft::net::inherited_count().map_err(failed)? == 0 {
        return Ok(Vec::new());
    }
    refuse_beside_inherited(!args.listen.is_empty() || args.socket.is_some(), args.background)?;
    let listeners = weft::net::inherited_listeners().map_err(failed)?;
    for listener in &listeners {
        let open = listener.open_to_others().map_err(failed)?;
        if let Some(why) = open.filter(|_| !args.insecure && args.tls != ServeTls::Require) {
            let what = if args.read_only { "read" } else { "read and change" };
            return Err(Failure::usage(format!(
                "{why}, who could {what} {}: give it other permissions (SocketMode=0600 in a unit \
                 of systemd), or serve with --tls require --tls-certificates DIRECTORY, or \
                 --insecure",
                args.source
            )));
        }
    }
    Ok(listeners)
}

/// Refuses what contradicts sockets that the process was started with.
pub fn refuse_beside_inherited(listens: bool, background: bool) -> Result<(), Failure> {
    if listens {
        return Err(Failure::usage(
            "the sockets to listen on were passed by the service manager (LISTEN_FDS): leave out \
             --listen and --socket, or unset LISTEN_FDS",
        ));
    }
    if background {
        return Err(Failure::usage(
            "with sockets of a service manager (LISTEN_FDS) the server must stay its process: leave \
             out --background",
        ));
    }
    Ok(())
}

/// The URI of an address that is listened on.
fn uri(args: &ServeNbd, address: Address) -> String {
    let uri = Uri {
        address,
        export: args.export.clone(),
        encrypted: args.tls == ServeTls::Require,
        tls_certificates: None,
        tls_hostname: None,
        connections: None,
        timeout: None,
    };
    uri.to_string()
}

/// Runs the server in a background process and waits until it can be reached.
fn in_background(out: Output, args: &ServeNbd) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    // The same arguments, without the name of the program.
    command.args(std::env::args_os().skip(1)).arg("--detached").arg("--quiet");
    let (_, said) = background::start(&mut command, args.pid_file.as_deref())?;
    let served: Served = serde_json::from_str(&said).map_err(|_| {
        Failure::new(format!("unexpected output of the background process: {said:?}"))
    })?;
    report(out, &served)?;
    Ok(DONE)
}

fn report(out: Output, served: &Served) -> Result<(), Failure> {
    let Served { source, read_only, uris, process, .. } = served;
    let how = if *read_only { ", for reading only" } else { "" };
    let end = if *process == std::process::id() {
        "; Ctrl-C ends it".to_owned()
    } else {
        format!(" by process {process}; kill {process} ends it")
    };
    out.confirm(served, &format!("{source} is served at {}{how}{end}", uris.join(" and ")))
}
