//! The `weft` command from outside, and the rules of the house.

mod house;
