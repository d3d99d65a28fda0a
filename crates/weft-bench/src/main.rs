//! The measurements.

fn main() {}
