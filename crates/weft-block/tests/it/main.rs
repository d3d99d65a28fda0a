//! Every device against a plain vector of bytes, and every reader of foreign data against garbage.

mod conformance;
mod containers;
mod extents;
mod garbage;
mod model;
mod wrap;
