//! Named threads.

use std::thread::JoinHandle;

use weft_ringer_net::{Error, Result};

/// Starts a thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(work).map_err(|e| Error::io("cannot start a thread", e))
}
