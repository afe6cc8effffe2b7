//! The pod's certificate as files for other programs: key, chain and roots, replaced atomically.
//!
//! The layout is that of Kubernetes: the files are links through `..data`, which links to the directory of one set. One
//! rename replaces all of them, so a reader never combines the key of one set with the certificate of another.
// istio: the names; differs from istio: one rename instead of three writes, because readers saw partial updates.

use remora_mtls::Pem;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Directory names that are tried before giving up.
const MAX_ATTEMPTS: u128 = 1000;
const DATA: &str = "..data";
const NAMES: [&str; 3] = ["key.pem", "cert-chain.pem", "root-cert.pem"];

/// Writes a set of files and activates it.
pub(crate) fn write(directory: &Path, pem: &Pem) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let before = fs::read_link(directory.join(DATA)).ok();
    let set = create_set_directory(directory)?;
    let written = fill(&directory.join(&set), pem).and_then(|()| {
        replace_link(directory, Path::new(&set), DATA)?;
        for name in NAMES {
            let target = Path::new(DATA).join(name);
            if fs::read_link(directory.join(name)).is_ok_and(|old| old == target) {
                continue;
            }
            replace_link(directory, &target, name)?;
        }
        Ok(())
    });
    // The previous set, or the new one if it could not be activated.
    let unused = match &written {
        Ok(()) => before,
        Err(_) => Some(PathBuf::from(&set)),
    };
    if let Some(old) = unused
        && is_set(&old)
    {
        let _ = fs::remove_dir_all(directory.join(old));
    }
    written
}

/// Whether this module created the directory; only such directories are removed.
fn is_set(path: &Path) -> bool {
    let name = path.to_str().unwrap_or_default();
    name.starts_with("..set-") && !name.contains('/')
}

/// Creates the directory of a new set.
fn create_set_directory(directory: &Path) -> io::Result<String> {
    // Names are not reused: a reader may still use the previous directory for a while.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = now.unwrap_or_default().as_nanos();
    for number in first..first.saturating_add(MAX_ATTEMPTS) {
        let name = format!("..set-{number}");
        match fs::DirBuilder::new().mode(0o755).create(directory.join(&name)) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn fill(set: &Path, pem: &Pem) -> io::Result<()> {
    let texts = [(&pem.key, 0o600), (&pem.chain, 0o644), (&pem.roots, 0o644)];
    for (name, (text, mode)) in NAMES.iter().zip(texts) {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(set.join(name))?;
        file.write_all(text.as_bytes())?;
        // A full disk fails here, before the links are replaced.
        file.sync_all()?;
    }
    Ok(())
}

fn replace_link(directory: &Path, target: &Path, name: &str) -> io::Result<()> {
    let new = directory.join(format!("..new-{name}"));
    let _ = fs::remove_file(&new);
    symlink(target, &new)?;
    fs::rename(&new, directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::{DATA, write};
    use remora_mtls::Pem;
    use std::fs;

    fn pem(text: &str) -> Pem {
        Pem {
            chain: format!("chain {text}"),
            key: format!("key {text}"),
            roots: format!("roots {text}"),
        }
    }

    #[test]
    fn a_reader_sees_one_set_or_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certs");
        // Left behind by another program.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("key.pem"), "old").unwrap();
        write(&path, &pem("1")).unwrap();
        let through = fs::read_link(path.join(DATA)).unwrap();
        let held = path.join(&through);
        for round in 2..6 {
            write(&path, &pem(&round.to_string())).unwrap();
            for name in ["key.pem", "cert-chain.pem", "root-cert.pem"] {
                let text = fs::read_to_string(path.join(name)).unwrap();
                assert!(text.ends_with(&round.to_string()), "{name}: {text}");
            }
        }
        assert!(!held.exists(), "old sets are removed");
        let key = fs::metadata(path.join("key.pem")).unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777,
            0o600
        );
        let entries = fs::read_dir(&path).unwrap().count();
        assert_eq!(entries, 5, "three links, the set and its link");
    }
}
