//! The C library's allocator: what it says about itself, and where it stands between the kernel and speed.

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
    Some(crate::sys::heap())
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
    crate::sys::allocator_option(libc::M_TRIM_THRESHOLD, bytes)
}

/// As above: false here.
#[cfg(not(target_env = "gnu"))]
pub fn keep_freed(_: usize) -> bool {
    false
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
}
