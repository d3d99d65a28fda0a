//! Tests of the engine through its front door.
mod device;
mod ordering;
mod perf_shape;
