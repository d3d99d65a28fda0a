//! The command line of `weft ringer`.

mod care;
mod members;

pub use care::{Backup, Doctor, RestoreCell, Scrub};
use clap::{Args, Subcommand, ValueEnum};
pub use members::{Forget, Init, Invite, Join, Members, Revoke};
use std::path::PathBuf;
use weft::ringer_client::MemberId;

/// `weft ringer`.
#[derive(Debug, Subcommand)]
pub enum Ringer {
    /// Serve a cell: the names, attributes and leases of a shared folder
    Serve(Serve),
    /// Mount a cell, in the foreground unless --background
    Mount(Mount),
    /// Show the state of a cell and its clients, or that of a mount
    Status(Status),
    /// Show leases, messages and transfers, second by second
    Top(Top),
    /// List leases with their holders
    Leases(Leases),
    /// Find files by tags, attributes and words of their names
    #[command(
        after_help = "Conditions, all of which must hold: WORD (a word of the name begins so), \
        tag:TAG, NAME:VALUE (the attribute user.NAME), kind:file|dir|link, size>10M, \
        mtime<2026-01-01; with a leading - those that must not. Write -- before the first of these."
    )]
    Search(Search),
    /// Show or change the tags of files
    Tag(Tag),
    /// Make, list and remove snapshots of a directory
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Check the consistency of a cell's records, while it is served
    #[command(after_help = "Exit codes: 0 no errors, 4 errors found, 8 the check failed.")]
    Doctor(Doctor),
    /// Copy a cell into a file, while it is served
    #[command(
        after_help = "Needs an administrator of the cell. Blocks of files are with the clients and in archives, not in \
        the cell: what is copied are names, attributes, versions, members, and which blocks files are \
        made of. Exit codes: 4 if something is wrong with the cell, as `doctor` tells."
    )]
    Backup(Backup),
    /// Make a cell of a backup, to be served
    RestoreCell(RestoreCell),
    /// Check all blocks of a mount's store against their hashes, and repair them from other clients
    #[command(
        after_help = "Exit codes: 0 no damage, 1 all damage repaired, 4 some blocks have no \
        other copy, 8 the check failed."
    )]
    Scrub(Scrub),
    /// List changes that could not be sent because other clients had changed the same things
    Conflicts(Conflicts),
    /// Settle a conflict
    Resolve(Resolve),
    /// Attach another cell to an empty directory, on every mount
    Attach(Attach),
    /// Detach a cell from a directory; the cell stays as it is
    Detach(Detach),
    /// Show or set how many copies of the files below a directory are made, and what fsync waits
    /// for
    Policy(PolicyArgs),
    /// Show which clients keep copies of a file
    Holders(Holders),
    /// Encrypt an empty directory: server, other clients and archives get only ciphertext of
    /// content; names, lengths, attributes and times stay visible
    #[command(
        after_help = "A new key is made, and kept on this machine alone, in the local store of the mount: \
        carry it to others with `ringer key`, and keep a copy of it somewhere. Directories below it are \
        encrypted with the same key, if they are not given one of their own while they are empty. What \
        is in it cannot be moved out or linked to from outside: mv copies it."
    )]
    Encrypt(Encrypt),
    /// Share encrypted directories with members: list, hand over, export and import their keys
    #[command(subcommand)]
    Key(Key),
    /// Pin a file or directory tree to this machine
    Pin(Pin),
    /// Remove a pin
    Unpin(Pin),
    /// List earlier versions of a file, or files removed below a directory
    History(History),
    /// Restore an earlier version of a file, or a removed file
    Restore(Restore),
    /// Make a cell's certificate authority, and certificates for its server and its administrator
    Init(Init),
    /// Print a single-use token with which a new member can join a cell
    Invite(Invite),
    /// Join a cell: get a certificate by a token
    Join(Join),
    /// Revoke a member permanently
    Revoke(Revoke),
    /// List the members of a cell
    Members(Members),
    /// Drop a client permanently: its copies no longer count
    Forget(Forget),
    /// Keep copies of files in a directory or in S3
    #[cfg(feature = "archive")]
    #[command(subcommand)]
    Archive(Archive),
}

/// The operations on a cell's archives.
#[cfg(feature = "archive")]
#[derive(Debug, Subcommand)]
pub enum Archive {
    /// Make an empty directory or prefix an archive of the cell. `policy` sets which files go there
    #[command(
        after_help = "Each client that writes talks to the archive itself, and needs what opens it in \
        its environment: for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and, if it is not \
        Amazon's, AWS_ENDPOINT_URL (and AWS_ALLOW_HTTP=true for one without TLS)."
    )]
    Add(ArchiveAdd),
    /// List the archives of a cell
    List(ArchiveList),
    /// Stop relying on an archive; its content stays
    Remove(ArchiveRemove),
    /// Delete blocks from an archive that no file and no kept version uses
    Sweep(ArchiveSweep),
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveAdd {
    #[command(flatten)]
    pub reaching: Reaching,
    /// URL of the archive: file:///PATH, which every client must see at that path, or
    /// s3://BUCKET/PREFIX
    pub url: String,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveList {
    #[command(flatten)]
    pub reaching: Reaching,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveRemove {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Its number, as `list` shows it
    pub archive: String,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveSweep {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Its number, as `list` shows it [default: all, one after the other]
    pub archive: Option<String>,
    /// Only report what would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The file that the cell is kept in, or its name with --etcd; it is made if it does not exist.
    /// With --front the directory that identifies this proxy
    pub cell: PathBuf,
    /// Run as a proxy of the server of a cell, nearer to its clients: keep the leases that they
    /// take, and grant them again without asking that server. HOST:PORT, HOST, quic://HOST:PORT or
    /// unix:/PATH, several with commas
    #[arg(long, value_name = "SERVER")]
    pub front: Option<String>,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for that server: the proxy is a
    /// member of the cell
    #[arg(long, value_name = "DIR", requires = "front")]
    pub front_certificates: Option<PathBuf>,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub etcd: Etcd,
    /// Listen here: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH, with IPv6 addresses in
    /// brackets; more than once; over QUIC with --tls-certificates [default: localhost:7473]
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Directory of ca-cert.pem, server-cert.pem and server-key.pem: TLS, and only clients with a
    /// certificate of that authority; if `ringer init` made it, only members, and others can join
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Serve other machines, and all users of this one, without TLS: any process that reaches the
    /// port may do everything [default: over TCP without TLS only root and this user, on this
    /// machine]
    #[arg(long, conflicts_with = "tls_certificates")]
    pub insecure: bool,
    /// Time for which the leases of a silent client are kept
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub epoch: u64,
    /// Answer Prometheus on this TCP address, such as localhost:9106, under /metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Most connections at once; more are closed as they come
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub connections_max: usize,
    /// Most pairs of clients at once that talk through the server, as they do not reach each other
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub relays_max: usize,
    /// Return once it is served
    #[arg(long, short)]
    pub background: bool,
    /// Write the process id to this file once it is served
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// A cell that has several servers.
#[cfg(feature = "etcd")]
#[derive(Debug, Args)]
pub struct Etcd {
    /// Keep the cell in etcd: http://HOST:PORT of each member, separated by commas. Start several
    /// servers of it: one owns the cell, the others take over
    #[arg(long = "etcd", value_name = "URL", value_delimiter = ',', conflicts_with = "front")]
    pub members: Vec<String>,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for etcd
    #[arg(long, value_name = "DIR", requires = "members")]
    pub etcd_certificates: Option<PathBuf>,
    /// Time for which a silent server keeps the cell
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "members", value_parser = clap::value_parser!(u64).range(2..=60))]
    pub session: u64,
    /// Address at which clients reach this server, if that is not the first --listen
    #[arg(long, value_name = "ADDRESS", requires = "members")]
    pub advertise: Option<String>,
}

/// The address of a server, and the certificates for it.
#[derive(Debug, Args)]
pub struct Reaching {
    /// The metadata server: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH; several with commas
    /// between them if the cell has several
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem: TLS
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub reaching: Reaching,
    /// The directory to mount on
    pub mountpoint: PathBuf,
    /// The directory of this client: its identity, its changes and its blocks; it is made if it
    /// does not exist
    #[arg(long, short, value_name = "DIR")]
    pub store: PathBuf,
    /// Address at which other clients fetch blocks: HOST:PORT, quic://HOST:PORT or unix:/PATH
    /// [default: a socket in the store if the server is on one, else any port of the address that
    /// the server is reached from]
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Directory of certificates for attached cells: DIR/NUMBER with ca-cert.pem, client-cert.pem
    /// and client-key.pem for the cell of that number; `ringer join --by-cell` puts them there
    #[arg(long, value_name = "DIR")]
    pub cells_certificates: Option<PathBuf>,
    /// Let all users attach cells where they may set attributes, and not only root and this user
    #[arg(long)]
    pub allow_attach: bool,
    /// Size of the blocks of new files, 64K to 4M; a file has at most 65536
    #[arg(long, value_name = "SIZE", default_value = "256K")]
    pub block_size: String,
    /// Room for blocks fetched from other clients; attached cells have as much each
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub cache_size: String,
    /// Room for blocks that are kept: those written here, and copies that other clients rely on.
    /// Beyond it no copies are made here, and files with enough other copies are dropped; those
    /// without one stay [default: as much as the disk has]
    #[arg(long, value_name = "SIZE")]
    pub store_size: Option<String>,
    /// Time for which a call waits for the server, and a read for other clients, before it fails
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub patience: u64,
    /// Let databases share memory by their -shm files (SQLite in WAL mode): only if this machine
    /// alone opens them, else they lose rows
    #[arg(long)]
    pub allow_shared_memory: bool,
    /// Accept a cell that is older than this store has seen it, as after restore-cell; changes made
    /// here since are set aside in the store
    #[arg(long)]
    pub accept_older_cell: bool,
    /// Return once it is mounted
    #[arg(long, short)]
    pub background: bool,
    /// Refuse writes
    #[arg(long, short)]
    pub read_only: bool,
    /// Options as in fstab: ro, allow_other, noxattr, nosuid, ...
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Write the process id to this file once mounted
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the directory that
    /// a cell is mounted on
    #[command(flatten)]
    pub reaching: Reaching,
}

#[derive(Debug, Args)]
pub struct Top {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the directory that
    /// a cell is mounted on
    #[command(flatten)]
    pub reaching: Reaching,
    /// Milliseconds between two updates
    #[arg(long, short, value_name = "MS", default_value_t = 1000)]
    pub interval_ms: u64,
    /// Number of updates; 0 goes on until it is interrupted
    #[arg(long, short = 'n', default_value_t = 0)]
    pub count: u64,
    /// Show the figures once
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct Leases {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Number of leases to show, at most 10000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: u32,
}

/// The condition for which `fsync` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// This machine and the server's record.
    Local,
    /// This many other clients as well.
    Copies(u32),
}

fn waits(text: &str) -> Result<Waits, String> {
    let number = |text: &str| text.parse().ok().filter(|n| *n > 0).map(Waits::Copies);
    match text.strip_prefix("copies=") {
        None if text == "local" => Ok(Waits::Local),
        number_text => number_text.and_then(number).ok_or("local, or copies=N".into()),
    }
}

/// The time at which files are copied to archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Never
    No,
    /// Some time after a file was changed
    Later,
    /// The same, and fsync waits for it
    Fsync,
}

/// Parses a time; returns it in seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let unit = match text.strip_prefix(digits) {
        Some("" | "s") => 1,
        Some("m") => 60,
        Some("h") => 3600,
        Some("d") => 86400,
        _ => return Err("a number with s, m, h or d".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "a number with s, m, h or d".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "that is too long".into())
}

/// Parses the length of the longest text file that is searched, in bytes, as a policy has it.
fn text_size(text: &str) -> Result<u64, String> {
    const WHAT: &str = "none, or a number of bytes with K or M, at most 1M";
    if text.contains(char::is_whitespace) {
        return Err(WHAT.into());
    }
    let policy = format!("text={text}").parse::<weft::ringer::Policy>();
    policy.map(|policy| policy.text_bytes).map_err(|_| WHAT.into())
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// A directory of a mounted cell
    pub directory: PathBuf,
    /// Number of clients, beside the one that wrote a file, that are to have a copy of it
    #[arg(long, value_name = "N")]
    pub copies: Option<u32>,
    /// Condition for which fsync waits, beside the disk of this machine and the server: none
    /// (local), or copies=N on other clients
    #[arg(long, value_name = "WHAT", value_parser = waits)]
    pub fsync: Option<Waits>,
    /// Whether files are copied to the cell's archives: not at all, a while after they were
    /// changed, or so that fsync waits until one of them has the file
    #[arg(long, value_name = "WHEN")]
    pub archive: Option<When>,
    /// Number of earlier versions of a file that are kept; unless it is 0, removed files are kept
    /// too
    #[arg(long, value_name = "N")]
    pub versions: Option<u32>,
    /// Time for which they are kept: a number with s, m, h or d [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub keep: Option<u64>,
    /// The shortest time between two versions that one client keeps [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub every: Option<u64>,
    /// Index the words of text files of up to this size for search (64K, at most 1M); none for no
    /// file
    #[arg(long, value_name = "SIZE", value_parser = text_size)]
    pub text: Option<u64>,
    /// Take the policy of the directory above
    #[arg(long, conflicts_with_all = ["copies", "fsync", "archive", "versions", "keep", "every", "text"])]
    pub inherit: bool,
}

impl PolicyArgs {
    /// Returns true if any option sets a value.
    pub fn sets(&self) -> bool {
        let numbers = [self.copies, self.versions];
        let sizes = [self.keep, self.every, self.text];
        self.fsync.is_some()
            || self.archive.is_some()
            || numbers.iter().any(Option::is_some)
            || sizes.iter().any(Option::is_some)
    }
}

#[derive(Debug, Args)]
pub struct Attach {
    /// An empty directory of a mounted cell
    pub directory: PathBuf,
    /// The metadata server of the other cell: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH, as
    /// every client reaches it; several with commas between them if the cell has several
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for that cell: TLS, to ask its
    /// server for its number
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// A directory that another cell is attached to; that cell need not answer
    pub directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct Holders {
    /// A file of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Pin {
    /// A file or directory of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Encrypt {
    /// An empty directory of a mounted cell
    pub directory: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// List the keys that a mount has, by their ids
    List {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
    },
    /// Print the key of an encrypted directory as a line of text, with which anyone can read its
    /// content
    Export {
        /// An encrypted directory of a mounted cell, or anything in it
        directory: PathBuf,
    },
    /// Import a key that `export` has printed, from standard input
    Import {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
        /// Read it from this file
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Print the id by which others share encrypted directories with this mount. It is no secret
    #[command(
        after_help = "Send it to who shares with you by a way that the cell's server has no hand in: mail, a \
        message, a phone call. Whoever can put another in its place reads what is shared with you."
    )]
    Id {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
    },
    /// Accept keys from members, by their ids, from now on; without an id, list them
    #[command(
        after_help = "A key that somebody else left for this mount is not taken: whoever gives you a key reads \
        what you write with it. Ask the member for the id (`key id`) in person, not through the cell."
    )]
    Trust {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
        /// Ids, as `key id` prints them
        #[arg(value_name = "ID")]
        ids: Vec<MemberId>,
        /// Accept no more keys from them; keys accepted before stay
        #[arg(long, requires = "ids")]
        remove: bool,
    },
    /// Share an encrypted directory with members, by their ids
    #[command(
        after_help = "The directory's key is left in the cell, encrypted for each of them alone. Who comes to \
        the directory with a mount that trusts this one's id (`key trust`) has the key from then on."
    )]
    Share {
        /// The directory that was encrypted
        directory: PathBuf,
        /// Ids, as `key id` prints them on the others' mounts
        #[arg(required = true, value_name = "ID")]
        ids: Vec<MemberId>,
    },
    /// List the members that an encrypted directory is shared with
    Members {
        /// The directory that was encrypted
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct Tag {
    /// Files or directories of a mounted cell
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Add a tag; more than once, or several with commas between them
    #[arg(long, short, value_name = "TAG", value_delimiter = ',')]
    pub add: Vec<String>,
    /// Remove a tag
    #[arg(long, short, value_name = "TAG", value_delimiter = ',')]
    pub remove: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Make a snapshot: DIRECTORY/.snapshots/NAME keeps the directory as it is now
    Create(SnapshotOf),
    /// List the snapshots of a directory
    List {
        /// A directory of a mounted cell
        directory: PathBuf,
    },
    /// Remove a snapshot; space that only it uses is free within minutes
    Remove(SnapshotOf),
}

#[derive(Debug, Args)]
pub struct SnapshotOf {
    /// A directory of a mounted cell
    pub directory: PathBuf,
    /// The name of the snapshot
    pub name: std::ffi::OsString,
}

#[derive(Debug, Args)]
pub struct Search {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the directory that
    /// a cell is mounted on: then the cells that are attached are searched too
    #[command(flatten)]
    pub reaching: Reaching,
    /// Conditions, such as tag:un project:x 'mtime>2026-01-01' report
    #[arg(required = true, value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// Number of results to show
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct Conflicts {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
}

/// The side of a conflict that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// Apply the local changes again, to the present state
    Mine,
    /// Keep what other clients made
    Theirs,
    /// Keep the file, and apply the local changes to a copy of it: see --as
    Both,
}

#[derive(Debug, Args)]
pub struct Resolve {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
    /// The conflict's number, as `conflicts` lists it
    #[arg(value_name = "NUMBER")]
    pub number: u64,
    /// The side to keep
    #[arg(long, value_name = "SIDE")]
    pub keep: Keep,
    /// The path of the copy, from the root of the cell
    #[arg(long = "as", value_name = "PATH", required_if_eq("keep", "both"))]
    pub copy: Option<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct History {
    /// A file or directory of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// A file of a mounted cell; or with --removed the directory given to `history`
    pub path: PathBuf,
    /// Number of the version, as `history` lists it
    #[arg(long, value_name = "NUMBER", required_unless_present = "removed")]
    pub version: Option<u64>,
    /// Number of the removed file, as `history` lists it
    #[arg(long, value_name = "NUMBER", conflicts_with = "version")]
    pub removed: Option<u64>,
    /// Restore into a new file, and leave the existing one as it is
    #[arg(long = "as", value_name = "PATH")]
    pub copy: Option<PathBuf>,
}
