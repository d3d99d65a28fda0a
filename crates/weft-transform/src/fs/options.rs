//! The options of a mount, and the attributes of its files that have a meaning.

use std::sync::Arc;

use super::rules::{Rules, Trust};
use crate::store::Limits;
use crate::{Meters, OutputCache};

/// The extended attribute that holds the text of a file's network. Setting it keeps what readers
/// see: the stored file is rewritten through the network, as a program expects that copies the
/// attributes of a file along with its content.
pub const NETWORK_ATTRIBUTE: &[u8] = b"user.weft.network";

/// Setting this extended attribute to the text of a network (empty: none) keeps the stored bytes: they
/// are what the network has made, or are read through it from now on. It cannot be read.
pub const STORED_ATTRIBUTE: &[u8] = b"user.weft.stored";

/// Setting this extended attribute to the text of a network rewrites the content of a file through
/// that network (empty: none). It cannot be read.
pub const CONVERT_ATTRIBUTE: &[u8] = b"user.weft.convert";

/// Reading this extended attribute returns an [`Explanation`](super::Explanation) in JSON.
pub const EXPLAIN_ATTRIBUTE: &[u8] = b"user.weft.explain";

/// The options of a [`TransformFs`](super::TransformFs).
#[derive(Debug)]
pub struct TransformOptions {
    /// The rules of the mount, which apply from the root down.
    pub rules: Rules,
    /// The source that takes precedence for a file that these rules match, if the tree names
    /// another network.
    pub trust: Trust,
    /// Apply the rules files in directories.
    pub rules_files: bool,
    /// Store the network of a rule as the attribute of each file created under the rule.
    pub pin: bool,
    /// The resource limits for a stored file.
    pub limits: Limits,
    /// Other processes may change the files below at any time: a front end's cache of a file is
    /// kept only while the file appears unchanged each time that it is opened.
    pub shared: bool,
    /// The counters of networks; with them the root has a directory `.weft`, hidden from listings,
    /// that shows the counters.
    pub meters: Option<Arc<Meters>>,
    /// The cache of network outputs on disk.
    pub outputs: Option<Arc<OutputCache>>,
    /// Views by name are snapshots if their [`outputs`](Self::outputs) are cached: a front end may
    /// let the kernel read the cached files directly, and a client that has a view open does not
    /// see changes of its base.
    pub snapshot_views: bool,
    /// An identifier that distinguishes the inodes of this tree from those of all others, if inode
    /// number, length and change times (in nanoseconds) tell whether a file is unchanged, even
    /// after a remount. Without it a stored file is read once to find its entry in
    /// [`outputs`](Self::outputs).
    pub identity: Option<String>,
}

impl Default for TransformOptions {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            trust: Trust::default(),
            rules_files: true,
            pin: true,
            limits: Limits::default(),
            shared: false,
            meters: None,
            outputs: None,
            snapshot_views: false,
            identity: None,
        }
    }
}
