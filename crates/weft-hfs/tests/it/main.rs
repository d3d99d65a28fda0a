//! The integration tests of weft-hfs.

mod apple;
mod beyond_damage;
mod cold;
mod companions;
mod conformance;
mod crash;
mod damage;
mod forwarding;
mod full;
mod hfsplus;
mod hfsutils;
mod interchange;
mod mac;
mod mfs;
mod model;
mod order;
mod tools;
mod volume;
