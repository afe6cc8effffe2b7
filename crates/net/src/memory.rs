//! What the allocator says about itself.

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

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_env = "gnu")]
    fn what_is_used_is_seen() {
        let heap = super::heap().unwrap();
        assert!(heap.in_use > 0 && heap.in_use + heap.free <= heap.from_kernel + heap.mapped);
    }
}
