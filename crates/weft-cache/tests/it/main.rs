//! The cache from outside: under power cuts, faults, damage and races.

mod admission;
mod damage;
mod defects;
mod faults;
mod gate;
mod rig;
mod threads;
mod torment;
mod warm;
