//! The engine: changes to blocks as patches with dependencies.
