//! The developer front door.
fn main() {}
