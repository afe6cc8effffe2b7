//! The program that is to run the containers instead of remora.

use crate::settings;
use anyhow::{Context as _, bail};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of this name or path, after it has shown that it can be started.
pub(super) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let path = if name.contains('/') {
        std::path::absolute(name).with_context(|| format!("--runtime {name}: make it absolute"))?
    } else {
        let mut candidates = settings::paths("PATH").into_iter().map(|place| place.join(name));
        match candidates.find(|path| path.is_absolute() && runs(path)) {
            Some(path) => path,
            None => bail!(
                "--runtime {name}: there is no such program in PATH; install it, give its path, or leave out \
                 --runtime: remora runs containers itself"
            ),
        }
    };
    let version = Command::new(&path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("--runtime {name}: start {}", path.display()))?;
    if !version.status.success() {
        bail!(
            "--runtime {name}: {} --version failed; it has to be an OCI runtime such as runc or crun",
            path.display()
        );
    }
    Ok(path)
}

fn runs(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
