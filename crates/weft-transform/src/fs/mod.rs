//! A file system stacked on another, with networks attached to its regular files.
//!
//! The network of a file is determined on its first lookup: by the rules of the mount, or else by
//! its extended attribute [`NETWORK_ATTRIBUTE`] (empty: none), or else by the nearest rules file
//! ([`Rules`]); with [`Trust::Tree`] the rules of the mount come last. A file created under a rule
//! gets the attribute, so that it can be read wherever it is moved; a file without network that is
//! moved under a rule is rewritten through the rule's network, so that the rules of a directory
//! also hold for editors that save by renaming. [`views`] are files that show others through a
//! network.
//!
//! From the bottom up: what names, rules, links and access lists say (`path`, `rules`, `link`,
//! `access`); what an inode is (`inode`, `output`), and the table of all (`inodes`); what the files of
//! a mount share (`mount`, `temporaries`), and a stored file in it (`stored_file`); a file under its lock
//! (`locked_file`), files that show others (`derived`), and archives (`archive_tree`); the file system
//! (`transform_fs`), whose calls are in the modules for their subjects. The order of the locks is
//! stated in `locks`.

mod access;
mod archive_tree;
mod attach_ioctl;
mod attr_lifetime;
mod attributes;
mod calls;
mod commands;
mod creating;
mod decide;
mod derived;
mod explanation;
mod fill;
mod inode;
mod inodes;
mod lifetimes;
mod link;
mod listing;
mod locked_file;
mod locks;
mod meter_directory;
mod mount;
mod moves;
mod names;
mod opening;
mod options;
mod output;
mod output_writer;
mod outputs;
mod path;
mod rules;
mod snapshot;
mod stored_file;
mod synthetic;
mod temporaries;
mod transform_fs;
mod trees;
mod version;
mod views;

pub use commands::{COMMAND_BYTES, POP_COMMAND, PUSH_COMMAND, SHOW_COMMAND};
pub use explanation::{Explanation, Source, StageExplanation};
pub use link::{LINK, LINK_MAGIC, link_content};
pub use options::{
    CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, NETWORK_ATTRIBUTE, STORED_ATTRIBUTE, TransformOptions,
};
pub use rules::{RULES_NAME, Rules, Ruling, Trust};
pub use transform_fs::TransformFs;
