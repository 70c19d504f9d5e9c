//! The `fourspark` binary.
fn main() {}
