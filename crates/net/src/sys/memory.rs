//! System calls about memory: the allocator's, and the executable's pages.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::time::Duration;

/// Sets an option of the allocator (`mallopt`); false if the allocator refuses it.
#[cfg(target_env = "gnu")]
pub(crate) fn allocator_option(name: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: both arguments are integers; the allocator guards its own state.
    unsafe { libc::mallopt(name, value) == 1 }
}

/// The statistics of the C library's allocator.
#[cfg(target_env = "gnu")]
pub(crate) fn heap() -> crate::memory::Heap {
    // SAFETY: it takes nothing and returns plain numbers by value; the allocator locks itself.
    let info = unsafe { libc::mallinfo2() };
    crate::memory::Heap {
        from_kernel: info.arena,
        in_use: info.uordblks,
        free: info.fordblks,
        mapped: info.hblkhd,
    }
}

/// Returns free heap memory to the kernel.
#[cfg(target_env = "gnu")]
pub(crate) fn trim() {
    // SAFETY: it takes a number and touches only what is free; the allocator locks itself.
    unsafe { libc::malloc_trim(0) };
}

/// CPU time of all threads of the process so far.
pub(crate) fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local that outlives the call. This clock always exists, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// Drops the resident pages of the executable's code and constants; returns their size in bytes at most.
///
/// The kernel faults them in again from the page cache when they are needed.
pub(crate) fn forget_program() -> usize {
    let mut parts: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback is called only before this returns, and with the pointer to `parts` that is given here.
    unsafe { libc::dl_iterate_phdr(Some(first_object), (&raw mut parts).cast()) };
    // SAFETY: it takes a number and returns one.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else {
        return 0;
    };
    let forget = |part: &Range<usize>| {
        let (start, end) = (part.start.next_multiple_of(page), part.end - part.end % page);
        let length = end.saturating_sub(start);
        // SAFETY: these are whole pages of a segment that is not writable, so they are what the file says (no linker
        // we use leaves relocations in such segments): dropping them changes no byte that the program can read.
        let done = unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) } == 0;
        if done { length } else { 0 }
    };
    parts.iter().map(forget).sum()
}

/// Collects the read-only segments of the first loaded object, the executable, and ends the iteration.
unsafe extern "C" fn first_object(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: `forget_program` passes this pointer, and no other code uses it during the iteration.
    let parts = unsafe { &mut *data.cast::<Vec<Range<usize>>>() };
    // SAFETY: the C library passes the description of a loaded object, with that many headers.
    let (base, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info.dlpi_addr, headers)
    };
    let constant = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0);
    parts.extend(constant.filter_map(|header| {
        let start = usize::try_from(base + header.p_vaddr).ok()?;
        let end = usize::try_from(base + header.p_vaddr + header.p_memsz).ok()?;
        Some(start..end)
    }));
    1
}
