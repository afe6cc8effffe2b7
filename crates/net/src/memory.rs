//! The C library's allocator: what it says about itself, and where it stands between the kernel and speed; and
//! the pages of the program itself.

use crate::sys::memory as sys;
use std::time::Duration;

/// Bytes of the heap of the C library's allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap {
    /// Taken from the kernel in pieces that are divided.
    pub from_kernel: usize,
    /// In use of these.
    pub in_use: usize,
    /// Not in use of these.
    pub free: usize,
    /// Taken from the kernel for one use each.
    pub mapped: usize,
}

/// The heap now; nothing where the C library does not say.
#[cfg(target_env = "gnu")]
pub fn heap() -> Option<Heap> {
    Some(sys::heap())
}

/// The heap now; nothing where the C library does not say.
#[cfg(not(target_env = "gnu"))]
pub fn heap() -> Option<Heap> {
    None
}

/// Keeps up to so many freed bytes at the end of the heap instead of giving them to the kernel at once.
///
/// A relay frees and asks for the same buffers all the time; without this each of them would be new memory, which the
/// kernel clears and maps page by page. False where the allocator knows no such option.
#[cfg(target_env = "gnu")]
pub fn keep_freed(bytes: usize) -> bool {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    sys::allocator_option(libc::M_TRIM_THRESHOLD, bytes)
}

/// As above: false here.
#[cfg(not(target_env = "gnu"))]
pub fn keep_freed(_: usize) -> bool {
    false
}

/// CPU time of the process so far.
pub fn cpu_time() -> Duration {
    sys::cpu_time()
}

/// Gives memory back that is not needed just now: what the allocator has free, and the program's code and constants,
/// of which the start needed much that will never be needed again. The rest comes back by itself, a page at a time,
/// from the kernel's copy of the file. For processes that are idle.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    sys::trim();
    sys::forget_program();
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_env = "gnu")]
    fn what_is_used_is_seen() {
        let heap = super::heap().unwrap();
        assert!(heap.in_use > 0 && heap.in_use + heap.free <= heap.from_kernel + heap.mapped);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn the_allocator_takes_the_option() {
        assert!(super::keep_freed(1 << 20));
    }

    fn resident_program() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        let before = resident_program();
        let forgotten = super::sys::forget_program();
        let after = resident_program();
        assert!(forgotten > 1 << 20, "{forgotten} bytes are no program");
        assert!(after < before, "{before} KB were resident, {after} KB are");
        // Addresses that the start wrote into the program are still there: every virtual call needs them.
        let name: Box<dyn Fn() -> String> = Box::new(|| format!("{:?}", std::thread::current().name()));
        assert!(name().contains("goes_on"), "{}", name());
        super::give_back();
        assert_eq!(format!("{:>5.1}", 2.25), "  2.2");
    }
}
