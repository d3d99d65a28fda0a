//! The arguments of what looks after a cell and a local store: `doctor`, `backup`, `restore-cell`, `scrub`.

use super::Reaching;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub reaching: Reaching,
}

#[derive(Debug, Args)]
pub struct Backup {
    #[command(flatten)]
    pub reaching: Reaching,
    /// The file to make, which must not be there: a cell that `restore-cell` takes
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct RestoreCell {
    /// What `backup` has made
    pub backup: PathBuf,
    /// The cell to make, which must not be there: `serve` it
    pub cell: PathBuf,
}

#[derive(Debug, Args)]
pub struct Scrub {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
}
