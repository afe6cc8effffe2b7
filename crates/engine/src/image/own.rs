//! The image that is this very program: no pull needed for the mesh itself.
//!
//! Its root file system holds the running binary as `/usr/local/bin/remora` and `/usr/local/bin/pilot-agent`, with
//! the libraries it is linked to if it is not static. It stands for `remora` and for the names of Istio's proxy.

use super::{Config, Digest, Image, Reference};
use crate::store::{Store, StoreError};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

/// Which of its names an image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// `remora`: runs as root, starts the program by its own name.
    Remora,
    /// Istio's `proxyv2`: runs as 1337, starts the program as `pilot-agent`.
    Proxy,
}

/// Whether a reference means this program.
pub fn named(reference: &Reference) -> Option<Own> {
    match reference.repository.rsplit('/').next()? {
        "remora" => Some(Own::Remora),
        // istio: pilot-agent is the entry point of the plain and the distroless variant.
        "proxyv2" | "proxyv2-distroless" => Some(Own::Proxy),
        _ => None,
    }
}

const EXE: &str = "/proc/self/exe";
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nistio-proxy:x:1337:1337::/home/istio-proxy:/sbin/nologin\n\
    nobody:x:65534:65534:nobody:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nistio-proxy:x:1337:\nnogroup:x:65534:\n";
/// The proxy's user.
const PROXY: u32 = 1337;

/// The image, made in the store if this program is new to it.
pub fn image(store: &Store, own: Own) -> Result<Image, StoreError> {
    let path = PathBuf::from(EXE);
    let meta = std::fs::metadata(&path).map_err(|source| StoreError::Io {
        what: "look at",
        path,
        source,
    })?;
    let key = format!(
        "{}:{}:{}:{}:{}",
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime(),
        meta.mtime_nsec()
    );
    let digest = Digest::of(key.as_bytes());
    let layer = store.made_layer(&digest, fill)?;
    let program = match own {
        Own::Remora => "/usr/local/bin/remora",
        Own::Proxy => "/usr/local/bin/pilot-agent",
    };
    let config = Config {
        entrypoint: vec![program.to_owned()],
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
        user: if own == Own::Proxy {
            format!("{PROXY}:{PROXY}")
        } else {
            String::new()
        },
        architecture: super::manifest::go_arch().to_owned(),
        ..Config::default()
    };
    Ok(Image {
        id: Digest::of(format!("{key}{program}").as_bytes()),
        config,
        layers: vec![layer],
    })
}

fn fill(root: &Path) -> io::Result<()> {
    for dir in [
        "etc/istio/proxy",
        "etc/ssl/certs",
        "home/istio-proxy",
        "root",
        "run",
        "tmp",
        "usr/bin",
        "usr/local/bin",
        "var/lib/istio/data",
        "var/log",
    ] {
        std::fs::create_dir_all(root.join(dir))?;
    }
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))?;
    std::fs::write(root.join("etc/passwd"), PASSWD)?;
    std::fs::write(root.join("etc/group"), GROUP)?;
    if rustix::process::geteuid().is_root() {
        for dir in ["etc/istio/proxy", "home/istio-proxy", "var/lib/istio/data"] {
            match chown(root.join(dir), Some(PROXY), Some(PROXY)) {
                // An id that our user namespace does not have.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                other => other?,
            }
        }
    }
    copy_program(&root.join("usr/local/bin/remora"))?;
    symlink("remora", root.join("usr/local/bin/pilot-agent"))?;
    let Some(interpreter) = interpreter(&File::open(EXE)?)? else {
        return Ok(());
    };
    copy_to(root, &interpreter)?;
    for library in libraries(&std::fs::read_to_string("/proc/self/maps")?) {
        copy_to(root, &library)?;
    }
    Ok(())
}

/// A further name for the same file where possible: then all of them share its pages in memory.
fn copy_program(to: &Path) -> io::Result<()> {
    let executable = std::fs::metadata(EXE)?.permissions().mode() & 0o5 == 0o5;
    let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    if executable && rustix::fs::linkat(rustix::fs::CWD, EXE, rustix::fs::CWD, to, flags).is_ok() {
        return Ok(());
    }
    std::fs::copy(EXE, to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))
}

fn copy_to(root: &Path, path: &Path) -> io::Result<()> {
    let inner = path.strip_prefix("/").map_err(io::Error::other)?;
    let to = root.join(inner);
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::copy(path, to).map(drop)
}

/// The loader a program names; a static one names none.
fn interpreter(program: &File) -> io::Result<Option<PathBuf>> {
    const PT_INTERP: u64 = 3;
    let number = |at: u64, size: usize| -> io::Result<u64> {
        let mut bytes = [0; 8];
        program.read_exact_at(bytes.get_mut(..size).unwrap_or_default(), at)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let (table, entry, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let at = table + index * entry;
        if number(at, 4)? == PT_INTERP {
            let (offset, size) = (number(at + 8, 8)?, number(at + 32, 8)?);
            let mut text = vec![0; usize::try_from(size).unwrap_or_default().min(4096)];
            program.read_exact_at(&mut text, offset)?;
            let text = String::from_utf8_lossy(&text);
            return Ok(Some(PathBuf::from(text.trim_end_matches('\0'))));
        }
    }
    Ok(None)
}

/// The shared libraries a process has loaded.
fn libraries(maps: &str) -> Vec<PathBuf> {
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let mut paths: Vec<PathBuf> = paths.filter(|p| p.contains(".so")).map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    paths.retain(|path| path.is_file());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let of = |text: &str| named(&Reference::parse(text).unwrap());
        assert_eq!(of("remora"), Some(Own::Remora));
        assert_eq!(of("ghcr.io/someone/remora:0.1"), Some(Own::Remora));
        assert_eq!(of("docker.io/istio/proxyv2:1.28.0"), Some(Own::Proxy));
        assert_eq!(
            of("gcr.io/istio-release/proxyv2:1.28.0-distroless"),
            Some(Own::Proxy)
        );
        assert_eq!(of("nginx"), None);
        assert_eq!(of("remora/nginx"), None);
    }
}
