//! The root certificate and its key in a directory, made at the first start.

use crate::files;
use crate::plane::PlaneError;
use remora_mtls::Authority;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A root that is made here lives this long.
// istio: ten years.
const ROOT_LIFE: Duration = Duration::from_hours(10 * 365 * 24);

/// `root-cert.pem` and `root-key.pem` in a directory.
///
/// The certificate is written last, under its name only when it is whole. So a start that was interrupted leaves no
/// certificate: then nothing was signed yet, and key and certificate are made anew. A certificate without its key is an
/// error: proxies may believe it.
pub(crate) fn open(directory: &Path, now: SystemTime) -> Result<Authority, PlaneError> {
    let (certificate, key) = (directory.join("root-cert.pem"), directory.join("root-key.pem"));
    if certificate.exists() {
        return Ok(Authority::from_pem(
            &files::read(&certificate)?,
            &files::read(&key)?,
        )?);
    }
    let authority = Authority::generate("remora", now, ROOT_LIFE)?;
    let (certificate_pem, key_pem) = authority.to_pem();
    std::fs::create_dir_all(directory).map_err(|source| PlaneError::Write {
        path: directory.to_owned(),
        source,
    })?;
    write(&key, &key_pem, 0o600)?;
    write(&certificate, &certificate_pem, 0o644)?;
    Ok(authority)
}

/// Writes a file whole or not at all, also if the machine loses power.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), PlaneError> {
    use std::io::Write as _;
    let temporary = path.with_extension("pem.tmp");
    let written = || {
        // What an interrupted start left may have another mode.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        match path.parent() {
            Some(directory) => std::fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    };
    written().map_err(|source| PlaneError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::open;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;

    #[test]
    fn a_first_start_that_was_interrupted_does_not_spoil_the_next_one() {
        for left in [
            &[][..],
            &["root-key.pem"],
            &["root-key.pem.tmp"],
            &["root-key.pem", "root-cert.pem.tmp"],
        ] {
            let directory = tempfile::tempdir().unwrap();
            for name in left {
                std::fs::write(directory.path().join(name), "-----BEGIN PRIV").unwrap();
            }
            let first = open(directory.path(), SystemTime::now()).unwrap();
            let read = open(directory.path(), SystemTime::now()).unwrap();
            assert_eq!(first.to_pem(), read.to_pem(), "{left:?}");
            let mode = |name: &str| {
                let metadata = std::fs::metadata(directory.path().join(name)).unwrap();
                metadata.permissions().mode() & 0o777
            };
            assert_eq!(mode("root-key.pem"), 0o600);
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn a_certificate_without_its_key_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        open(directory.path(), SystemTime::now()).unwrap();
        std::fs::remove_file(directory.path().join("root-key.pem")).unwrap();
        assert!(open(directory.path(), SystemTime::now()).is_err());
    }
}
