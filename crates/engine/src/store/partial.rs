//! A download on its way: it survives the process, and is verified before anything uses it.

use super::{Store, StoreError, failed};
use crate::image::digest::{Digest, Hasher};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

/// Part of a blob in a file that nobody else writes to meanwhile.
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    digest: Digest,
    expected: u64,
    hasher: Hasher,
    have: u64,
}

impl Store {
    /// Takes up a download, or begins it. `None`: another process is at it.
    pub(crate) fn partial(&self, digest: &Digest, size: u64) -> Result<Option<Partial>, StoreError> {
        let path = self.root.join("tmp").join(format!("partial-{}", digest.hex()));
        let open = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = open.map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(e)) => return Err(failed("lock", &path)(e)),
        }
        // Whoever had it before us removed the name when it was done.
        if !is_same(&file, &path) {
            return Ok(None);
        }
        let mut hasher = digest.hasher();
        let have = hash(&mut file, &mut hasher).map_err(failed("read", &path))?;
        let mut partial = Partial {
            file,
            path,
            digest: digest.clone(),
            expected: size,
            hasher,
            have,
        };
        if have > size {
            partial.restart()?;
        }
        Ok(Some(partial))
    }
}

fn is_same(file: &File, path: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn hash(file: &mut File, hasher: &mut Hasher) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        let got = file.read(&mut buffer)?;
        if got == 0 {
            return Ok(total);
        }
        hasher.update(buffer.get(..got).unwrap_or_default());
        total += u64::try_from(got).unwrap_or_default();
    }
}

impl Partial {
    /// Bytes that are there.
    pub(crate) fn have(&self) -> u64 {
        self.have
    }

    /// Begins again from nothing.
    pub(crate) fn restart(&mut self) -> Result<(), StoreError> {
        let cut = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cut.map_err(failed("cut", &self.path))?;
        self.hasher = self.digest.hasher();
        self.have = 0;
        Ok(())
    }

    /// Adds what came. More than was promised is refused at once.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let more = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.have.saturating_add(more) > self.expected {
            self.restart()?;
            return Err(self.wrong_size());
        }
        self.file.write_all(bytes).map_err(failed("write", &self.path))?;
        self.hasher.update(bytes);
        self.have += more;
        Ok(())
    }

    fn wrong_size(&self) -> StoreError {
        StoreError::Size {
            digest: self.digest.clone(),
            expected: self.expected,
        }
    }

    /// The whole content, verified; its file is gone when the value is.
    pub(crate) fn finish(mut self) -> Result<File, StoreError> {
        if self.have != self.expected {
            return Err(self.wrong_size());
        }
        let found = std::mem::replace(&mut self.hasher, Hasher::sha256()).finish();
        // Used or useless, the name goes; the content lives as long as the descriptor.
        std::fs::remove_file(&self.path).map_err(failed("remove", &self.path))?;
        if found != self.digest {
            return Err(StoreError::Digest {
                expected: self.digest,
                found,
            });
        }
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(failed("read", &self.path))?;
        Ok(self.file)
    }
}
