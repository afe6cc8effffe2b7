//! Limits for archives of strangers, and the meter that keeps to them.
//!
//! A small archive can ask for a lot: of disk (compression, sparse files), of memory (headers of unlimited length) and of
//! time (entries without number, paths without end). Honest layers stay far below all of these limits.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// What an archive may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes it may expand to, and bytes that may be written for it.
    pub(crate) bytes: u64,
    /// So many of them are free; beyond that `ratio` counts.
    pub(crate) free: u64,
    /// Bytes it may expand to for each byte that was read. Text seldom has more than 20; gzip cannot have more than 1032.
    pub(crate) ratio: u64,
    /// Entries.
    pub(crate) entries: u64,
    /// Bytes of all names together, because those of directories are kept until the end.
    pub(crate) names: u64,
    /// Bytes of the headers of one entry, extensions and padding included, because they are kept in memory.
    pub(crate) header: u64,
    /// Bytes of one path. The kernel takes no longer ones.
    pub(crate) path: usize,
    /// Directories in one another. Their removal holds a descriptor for each.
    pub(crate) depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 << 30,
            free: 1 << 30,
            ratio: 200,
            entries: 1_000_000,
            names: 256 << 20,
            header: 1 << 20,
            path: 4095,
            depth: 128,
        }
    }
}

/// Counts what one archive has taken.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    read: Cell<u64>,
    expanded: Cell<u64>,
    written: Cell<u64>,
    entries: Cell<u64>,
    names: Cell<u64>,
    /// What is left for the headers of the next entry; `None` while its content is read.
    header: Cell<Option<u64>>,
}

fn beyond(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}

fn add(cell: &Cell<u64>, more: usize) -> u64 {
    let sum = cell.get().saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
    cell.set(sum);
    sum
}

impl Meter {
    pub(crate) fn new(limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            read: Cell::new(0),
            expanded: Cell::new(0),
            written: Cell::new(0),
            entries: Cell::new(0),
            names: Cell::new(0),
            header: Cell::new(None),
        })
    }

    /// The headers of the next entry begin.
    pub(crate) fn header_begins(&self) {
        self.header.set(Some(self.limits.header));
    }

    /// They are read.
    pub(crate) fn header_ends(&self) {
        self.header.set(None);
    }

    /// One more entry, with a name of this length.
    pub(crate) fn entry(&self, name: usize) -> io::Result<()> {
        if name > self.limits.path {
            return Err(beyond(format!("a path has more than {} bytes", self.limits.path)));
        }
        if add(&self.entries, 1) > self.limits.entries {
            return Err(beyond(format!("more than {} entries", self.limits.entries)));
        }
        if add(&self.names, name) > self.limits.names {
            return Err(beyond(format!("more than {} bytes of names", self.limits.names)));
        }
        Ok(())
    }

    /// So many bytes are going to be written to a file.
    pub(crate) fn writes(&self, bytes: usize) -> io::Result<()> {
        self.within(add(&self.written, bytes))
    }

    /// Passes over the rest of an entry. A sparse file can have more than was read for it, so this counts as well.
    pub(crate) fn drain(&self, entry: &mut impl Read) -> io::Result<()> {
        let mut nowhere = Written {
            inner: io::sink(),
            meter: self,
        };
        io::copy(entry, &mut nowhere).map(drop)
    }

    fn expands(&self, bytes: usize) -> io::Result<()> {
        if let Some(left) = self.header.get() {
            let left = left.checked_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
            let limit = self.limits.header;
            self.header.set(Some(left.ok_or_else(|| {
                beyond(format!("the headers of an entry have more than {limit} bytes"))
            })?));
        }
        self.within(add(&self.expanded, bytes))
    }

    fn within(&self, total: u64) -> io::Result<()> {
        let Limits {
            bytes, free, ratio, ..
        } = self.limits;
        if total > bytes {
            return Err(beyond(format!("the content has more than {bytes} bytes")));
        }
        if total > free && total > self.read.get().saturating_mul(ratio) {
            let why = format!("more than {free} bytes, and more than {ratio} times what was read for them");
            return Err(beyond(format!("the content has {why}")));
        }
        Ok(())
    }

    /// Counts what comes from outside.
    pub(crate) fn source<R: Read>(self: &Rc<Self>, inner: R) -> impl Read + use<R> {
        let meter = Rc::clone(self);
        Observed {
            inner,
            see: move |bytes| {
                add(&meter.read, bytes);
                Ok(())
            },
        }
    }

    /// Counts what comes out of the decompression.
    pub(crate) fn content<R: Read>(self: &Rc<Self>, inner: R) -> impl Read + use<R> {
        let meter = Rc::clone(self);
        Observed {
            inner,
            see: move |bytes| meter.expands(bytes),
        }
    }
}

struct Observed<R, F> {
    inner: R,
    see: F,
}

impl<R: Read, F: FnMut(usize) -> io::Result<()>> Read for Observed<R, F> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(data)?;
        (self.see)(got)?;
        Ok(got)
    }
}

/// Counts what is written.
pub(super) struct Written<'a, W> {
    pub(super) inner: W,
    pub(super) meter: &'a Meter,
}

impl<W: io::Write> io::Write for Written<'_, W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.meter.writes(data.len())?;
        self.inner.write_all(data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
