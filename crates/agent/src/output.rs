//! The pod's certificate as files for other programs: key, chain and roots, exchanged as one.
//!
//! As Kubernetes does it: the files are links through `..data`, which is a link to the directory of one set. One rename
//! exchanges all of them; a reader never sees a key of one set beside a certificate of another.
// istio: the names; differs from istio: one exchange instead of three writes, because readers saw halves.

use remora_mtls::Pem;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Names that are tried.
const ATTEMPTS: u128 = 1000;
const DATA: &str = "..data";
const NAMES: [&str; 3] = ["key.pem", "cert-chain.pem", "root-cert.pem"];

/// Writes a set and makes it the one in force.
pub(crate) fn write(directory: &Path, pem: &Pem) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let before = fs::read_link(directory.join(DATA)).ok();
    let set = fresh(directory)?;
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
    // The one that is not in force any more, or never was.
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

/// Only directories that were made here are ever removed.
fn is_set(path: &Path) -> bool {
    let name = path.to_str().unwrap_or_default();
    name.starts_with("..set-") && !name.contains('/')
}

/// A directory for one set; nobody else may look into it before it is in force.
fn fresh(directory: &Path) -> io::Result<String> {
    // A name is not used twice: a reader may hold the one before for a while.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = now.unwrap_or_default().as_nanos();
    for number in first..first.saturating_add(ATTEMPTS) {
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
        // A disk that is full says so here, before anything is exchanged.
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
        // Left behind by others.
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
