//! `remora proxy sidecar` as a process: two pods in namespaces of their own and a control plane.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod sidecar {
    mod access;
    mod admin;
    mod certificates;
    mod clock;
    mod early;
    mod faults;
    mod gate;
    mod last_good;
    mod life;
    mod names;
    mod orphans;
    pub(crate) mod process;
    pub(crate) mod scene;
    mod status;
    mod stop;
}
