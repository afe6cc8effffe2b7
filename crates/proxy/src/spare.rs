//! What bytes are kept in while they are on their way: buffers and pipes, a few of which wait in each thread for the
//! next use.

use bytes::{Buf, Bytes};
use remora_net::pipe::Pipe;
use std::cell::RefCell;
use std::io;
use std::ops::{Deref, DerefMut};

/// Bytes a buffer holds: fits the processor's cache, and is enough for few system calls.
pub(crate) const SIZE: usize = 64 << 10;
/// Bytes a pipe is asked to hold.
const PIPE: usize = 256 << 10;
/// What a thread keeps of each. A tunnel may hold several buffers of one flow.
const MOST: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// Lets go of what waits in this thread.
pub(crate) fn clear() {
    BUFFERS.take();
    PIPES.take();
}

#[cfg(test)]
thread_local! {
    /// As if there were no descriptors left.
    pub(crate) static NO_PIPES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Buffers and pipes that wait in this thread.
#[cfg(test)]
pub(crate) fn waiting() -> (usize, usize) {
    (BUFFERS.with_borrow(Vec::len), PIPES.with_borrow(Vec::len))
}

/// A buffer; goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u8]>);

impl Buffer {
    pub(crate) fn take() -> Self {
        let spare = BUFFERS.with_borrow_mut(Vec::pop);
        Self(spare.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice()))
    }
}

/// The first bytes of a buffer, which goes back when nobody needs them any more.
#[derive(Debug)]
struct Filled(Buffer, usize);

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl Buffer {
    /// Its first bytes, without copying them.
    pub(crate) fn into_bytes(self, count: usize) -> Bytes {
        Bytes::from_owner(Filled(self, count))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        // A thread that ends keeps nothing.
        let _ = BUFFERS.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && spare.len() < MOST
            {
                spare.push(bytes);
            }
        });
    }
}

/// Bytes that were read and not yet passed on.
#[derive(Debug)]
pub(crate) enum Held {
    Nothing,
    /// The first bytes of a stream, which somebody else read.
    Before(Bytes),
    /// The bytes of a buffer between two places.
    Read(Buffer, u32, u32),
}

// Places in a buffer are kept small.
const _: () = assert!(SIZE < u32::MAX as usize);

impl Held {
    pub(crate) fn before(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::Nothing
        } else {
            Self::Before(bytes)
        }
    }

    /// The first bytes of a buffer.
    pub(crate) fn read(buffer: Buffer, count: usize) -> Self {
        match u32::try_from(count) {
            Ok(end) if end > 0 => Self::Read(buffer, 0, end),
            _ => Self::Nothing,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Nothing => &[],
            Self::Before(bytes) => bytes,
            Self::Read(buffer, start, end) => &buffer[*start as usize..*end as usize],
        }
    }

    /// So many were passed on. What is empty holds no buffer.
    pub(crate) fn advance(&mut self, count: usize) {
        match self {
            Self::Nothing => {}
            Self::Before(bytes) => bytes.advance(count),
            // No more than the buffer holds.
            Self::Read(_, start, _) => *start += u32::try_from(count).unwrap_or(u32::MAX),
        }
        if self.bytes().is_empty() {
            *self = Self::Nothing;
        }
    }
}

/// A pipe; goes back when it is dropped, unless something is in it.
#[derive(Debug)]
pub(crate) struct Line(Option<Pipe>);

impl Line {
    pub(crate) fn take() -> io::Result<Self> {
        #[cfg(test)]
        if NO_PIPES.get() {
            return Err(io::Error::other("no descriptors"));
        }
        if let Some(spare) = PIPES.with_borrow_mut(Vec::pop) {
            return Ok(Self(Some(spare)));
        }
        let mut pipe = Pipe::new()?;
        // A user's pipes share a limit: what the kernel gives without asking will do.
        let _ = pipe.grow(PIPE);
        Ok(Self(Some(pipe)))
    }

    pub(crate) fn pipe(&mut self) -> Option<&mut Pipe> {
        self.0.as_mut()
    }

    pub(crate) fn held(&self) -> usize {
        self.0.as_ref().map_or(0, Pipe::held)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(pipe) = self.0.take().filter(|pipe| pipe.held() == 0) else {
            return;
        };
        let _ = PIPES.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && spare.len() < MOST
            {
                spare.push(pipe);
            }
        });
    }
}
