//! Output that is held back until it is known to be whole.
//!
//! A manifest that is cut off in the middle would be applied in part. So output is collected (in memory, and in an
//! unnamed file beyond a megabyte) and leaves only when everything went well.

use anyhow::{Context as _, bail};
use std::io::{self, Seek as _, Write};
use std::path::Path;
use tempfile::{NamedTempFile, SpooledTempFile};

/// Beyond this, output waits in a file.
const IN_MEMORY: usize = 1 << 20;

/// Where output waits.
pub(crate) struct Spool {
    file: SpooledTempFile,
}

impl Spool {
    pub(crate) fn new() -> Self {
        Self {
            file: SpooledTempFile::new(IN_MEMORY),
        }
    }

    pub(crate) fn push(&mut self, text: &str) -> anyhow::Result<()> {
        self.file
            .write_all(text.as_bytes())
            .context("hold back output (is the temporary directory full?)")
    }

    /// Puts another's output behind this one's.
    pub(crate) fn append(&mut self, mut other: Self) -> anyhow::Result<()> {
        other.file.rewind().context("read back output")?;
        io::copy(&mut other.file, &mut self.file).context("hold back output")?;
        Ok(())
    }

    /// Lets text with colours go to standard output; they are taken out when nobody would see them.
    pub(crate) fn release_styled(mut self) -> anyhow::Result<()> {
        self.file.rewind().context("read back output")?;
        let mut stdout = anstream::stdout().lock();
        io::copy(&mut self.file, &mut stdout)?;
        stdout.flush()?;
        Ok(())
    }

    /// Lets the output go: to a file, replaced in one step, or to standard output.
    pub(crate) fn release(mut self, target: Option<&Path>) -> anyhow::Result<()> {
        self.file.rewind().context("read back output")?;
        match target {
            None => {
                let mut stdout = io::stdout().lock();
                io::copy(&mut self.file, &mut stdout)?;
                stdout.flush()?;
                Ok(())
            }
            Some(path) => self
                .replace(path)
                .with_context(|| format!("write {}", path.display())),
        }
    }

    fn replace(&mut self, path: &Path) -> anyhow::Result<()> {
        // A device or a pipe cannot be replaced, only written to.
        if path.exists() && !path.is_file() {
            let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
            io::copy(&mut self.file, &mut file)?;
            return Ok(());
        }
        let directory = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !directory.is_dir() {
            bail!("there is no directory {}", directory.display());
        }
        // Without the name of the temporary file, which says nothing to the user.
        let mut file = NamedTempFile::new_in(directory).map_err(|error| io::Error::from(error.kind()))?;
        io::copy(&mut self.file, &mut file)?;
        keep_mode(path, file.as_file())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }
}

/// A file that is replaced keeps its permissions; a new one gets the usual ones.
fn keep_mode(path: &Path, file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = match std::fs::metadata(path) {
        Ok(known) => known.permissions(),
        Err(_) => std::fs::Permissions::from_mode(0o644),
    };
    file.set_permissions(permissions)
}
