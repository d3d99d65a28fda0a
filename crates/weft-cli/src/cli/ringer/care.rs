//! The arguments of the maintenance verbs of a cell and a local store: `doctor`, `backup`,
//! `restore-cell`, `scrub`.

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
    /// The backup file to create; it must not exist
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct RestoreCell {
    /// The file made by `backup`
    pub backup: PathBuf,
    /// The cell to create, for `serve`; it must not exist
    pub cell: PathBuf,
}

#[derive(Debug, Args)]
pub struct Scrub {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
}
