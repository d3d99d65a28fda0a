//! Tests of the engine through its front door.
mod device;
mod jbd2_tools;
mod ordering;
mod perf_shape;
