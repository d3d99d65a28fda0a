//! Tests of the engine through its front door.
mod ages;
mod atomic;
mod cancelled;
mod cold;
mod device;
mod faults;
mod group;
mod group_counts;
mod jbd2_tools;
mod journal;
mod log;
mod ordering;
mod overdue;
mod patchgroups;
mod perf_shape;
mod read_ahead;
