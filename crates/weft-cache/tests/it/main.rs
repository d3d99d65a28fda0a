//! The cache from outside: under power cuts, faults, damage and races.

mod admission;
mod ages;
mod bad_sectors;
mod conformance;
mod damage;
mod defects;
mod faults;
mod live;
mod long_ranges;
mod readahead;
mod repair;
mod resized;
mod rig;
mod sizes;
mod threads;
mod torment;
mod torture;
mod warm;
mod watchdog;
