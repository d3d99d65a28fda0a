//! The command line of cell members: authority, invitations, joining, revocation.

use super::{Reaching, seconds};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Init {
    /// The directory for keys and certificates; nothing in it is replaced
    pub directory: PathBuf,
    /// A name or IP address by which clients reach the server; more than once
    #[arg(long, value_name = "NAME", required = true)]
    pub host: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Invite {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Validity of the token: a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = seconds)]
    pub expires: u64,
    /// Let the new member read everything and change nothing
    #[arg(long, conflicts_with_all = ["subtree", "admin"])]
    pub read_only: bool,
    /// Let the new member also invite members and revoke them
    #[arg(long, conflicts_with = "subtree")]
    pub admin: bool,
    /// Let the new member read (PATH:r) or change (PATH:rw) files below this directory of the cell,
    /// and no others; more than once
    #[arg(long, value_name = "PATH:rw")]
    pub subtree: Vec<String>,
    /// The address at which the new member reaches the server, if it is another one
    #[arg(long, value_name = "ADDRESS")]
    pub server_address: Option<String>,
}

#[derive(Debug, Args)]
pub struct Join {
    /// The token that `invite` has printed
    pub token: String,
    /// The directory for this member's key and certificate
    pub directory: PathBuf,
    /// Put them into DIRECTORY/NUMBER, by the cell's number: for `mount --cells-certificates`
    #[arg(long)]
    pub by_cell: bool,
    /// The member's name [default: the name of this machine]
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
pub struct Revoke {
    #[command(flatten)]
    pub reaching: Reaching,
    /// The member's name
    pub name: std::ffi::OsString,
}

#[derive(Debug, Args)]
pub struct Members {
    #[command(flatten)]
    pub reaching: Reaching,
}

#[derive(Debug, Args)]
pub struct Forget {
    #[command(flatten)]
    pub reaching: Reaching,
    /// The client's number, as `status` shows it
    pub client: String,
}
