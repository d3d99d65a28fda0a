//! The place where commands of a crash test run: a worker process with namespaces of its own.
//!
//! ```text
//!  parent ──socket──────────────┐                    weft crash run
//!    └─ supervisor              │                    waits, and clears away
//!         └─ worker (PID 1) ────┘                    serves the mount, runs commands
//!              └─ /bin/sh -c COMMAND, and all that it starts
//! ```
//!
//! A [`Worker`] is this program again, which calls [`run_if_worker`] first. In namespaces of mounts
//! and processes it is the first process: no command can end it, its end is the end of everything
//! started in it, and its mount is seen by nobody else. So every worker mounts at *the same path*
//! ([`MountPoints::own`]), which programs may have written into their files. Where the host allows no namespaces the worker
//! is an ordinary process with a mount of its own, which the supervisor clears away;
//! [`Worker::isolation`] says which.
//!
//! In the worker, a [`TestMount`] mounts any file system, and a [`ShellCommand`] runs in it.
//!
//! The modules: [`Channel`] carries messages between parent and worker, `namespace` makes the
//! namespaces, `worker` starts and supervises, `reap` ends processes, `output` keeps what a command
//! prints, `command` runs it, `server` runs one that serves, `mount` mounts.

mod channel;
mod command;
mod error;
mod mount;
mod namespace;
mod output;
mod reap;
mod server;
mod worker;

pub use channel::{Channel, MESSAGE_BYTES_MAX};
pub use command::{Ended, Outcome, ShellCommand};
pub use error::{Error, Result};
pub use mount::{TestMount, mount_options};
pub use namespace::{Isolate, Isolation};
pub use output::{Kept, Output};
pub use server::{CheckServer, READY_MAX, Served};
pub(crate) use worker::VARIABLE as WORKER_VARIABLE;
pub use worker::{MountPoints, Seat, Worker, WorkerOptions, interrupt, run_if_worker};
