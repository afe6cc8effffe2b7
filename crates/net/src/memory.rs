//! Memory of this process: statistics and options of the C library's allocator, and the resident pages of the
//! executable.

use crate::sys::memory as sys;
use std::time::Duration;

/// Bytes of the heap of the C library's allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap {
    /// Bytes in arenas, from which the allocator serves several allocations each.
    pub from_kernel: usize,
    /// Bytes of the arenas that are allocated.
    pub in_use: usize,
    /// Bytes of the arenas that are free.
    pub free: usize,
    /// Bytes in mappings that serve one large allocation each.
    pub mapped: usize,
}

/// The present heap statistics; `None` where the C library has none.
#[cfg(target_env = "gnu")]
pub fn heap() -> Option<Heap> {
    Some(sys::heap())
}

/// The present heap statistics; `None` where the C library has none.
#[cfg(not(target_env = "gnu"))]
pub fn heap() -> Option<Heap> {
    None
}

/// Keeps up to this many freed bytes at the top of the heap instead of returning them to the kernel immediately.
///
/// A proxy frees and allocates the same buffers all the time. Without this each of them would be new memory, which
/// the kernel clears and maps page by page. Returns false where the allocator has no such option.
#[cfg(target_env = "gnu")]
pub fn set_trim_threshold(bytes: usize) -> bool {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    sys::allocator_option(libc::M_TRIM_THRESHOLD, bytes)
}

/// Returns false: this C library has no such option.
#[cfg(not(target_env = "gnu"))]
pub fn set_trim_threshold(_: usize) -> bool {
    false
}

/// CPU time of the process so far.
pub fn cpu_time() -> Duration {
    sys::cpu_time()
}

/// Returns unused memory to the kernel: free heap, and the resident pages of the executable, many of which only the
/// start needed. Pages that are needed again are faulted in from the page cache. For processes that are idle.
pub fn release_unused() {
    #[cfg(target_env = "gnu")]
    sys::trim();
    sys::forget_program();
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_env = "gnu")]
    fn the_heap_counts_allocated_bytes() {
        let heap = super::heap().unwrap();
        assert!(heap.in_use > 0 && heap.in_use + heap.free <= heap.from_kernel + heap.mapped);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn the_allocator_takes_the_option() {
        assert!(super::set_trim_threshold(1 << 20));
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
        // Relocations that the loader applied at the start are still there: every virtual call needs them.
        let name: Box<dyn Fn() -> String> = Box::new(|| format!("{:?}", std::thread::current().name()));
        assert!(name().contains("goes_on"), "{}", name());
        super::release_unused();
        assert_eq!(format!("{:>5.1}", 2.25), "  2.2");
    }
}
