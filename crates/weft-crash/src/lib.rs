//! Crash-state exploration: every legal image after a power cut, and oracles that judge it
