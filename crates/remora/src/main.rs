//! The `remora` binary.
fn main() {}
