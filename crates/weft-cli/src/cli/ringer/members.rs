//! The command line of cell members: authority, invitations, joining, revocation.

use super::{Reaching, seconds};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Init {
    /// The directory for keys and certificates; existing files are not replaced
    pub directory: PathBuf,
    /// A host name or IP address of the server for its certificate; repeatable
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
    /// Grant the new member read access only, to everything
    #[arg(long, conflicts_with_all = ["subtree", "admin"])]
    pub read_only: bool,
    /// Make the new member an administrator, who can invite and revoke members
    #[arg(long, conflicts_with = "subtree")]
    pub admin: bool,
    /// Grant the new member access only to the files below this directory of the cell, to read
    /// (PATH:r) or change (PATH:rw) them; repeatable
    #[arg(long, value_name = "PATH:rw")]
    pub subtree: Vec<String>,
    /// The address at which the new member reaches the server [default: SERVER]
    #[arg(long, value_name = "ADDRESS")]
    pub server_address: Option<String>,
}

#[derive(Debug, Args)]
pub struct Join {
    /// The token that `invite` has printed
    pub token: String,
    /// The directory for this member's key and certificate
    pub directory: PathBuf,
    /// Write them into DIRECTORY/NUMBER, named after the cell's number, for `mount
    /// --cells-certificates`
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
    /// Even if only clients of this member have the content of some files: nobody can read those
    /// once these clients have ended
    #[arg(long)]
    pub force: bool,
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
    /// Number of the client, as shown by `status`
    pub client: String,
}
