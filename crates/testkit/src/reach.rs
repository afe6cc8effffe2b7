//! A program where every user can run it.

use crate::shared::{open, shared_folder};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One name is given at a time.
static NAMING: Mutex<()> = Mutex::new(());

/// A path of the program that other users can access: its own, or a hard link or copy in a shared folder.
///
/// Tests run programs as the users of a pod. A checkout in a home directory is closed to them, although nothing is
/// wrong with it. The second name is removed when the last test that uses it ends.
///
/// # Panics
///
/// If there is no place for it.
#[expect(
    clippy::expect_used,
    reason = "a test that cannot have its program must fail loudly"
)]
pub fn reachable(program: &Path) -> PathBuf {
    if is_open(program) {
        return program.to_owned();
    }
    let folder = shared_folder();
    let _alone = NAMING.lock().unwrap_or_else(PoisonError::into_inner);
    // Other builds of it have the same name.
    let inode = std::fs::metadata(program).expect("look at the program").ino();
    let folder = folder.join(inode.to_string());
    let path = folder.join(program.file_name().unwrap_or_default());
    if !path.exists() {
        std::fs::create_dir_all(&folder)
            .and_then(|()| open(&folder))
            .expect("make a folder for the program");
        std::fs::hard_link(program, &path)
            .or_else(|_| std::fs::copy(program, &path).map(drop))
            .expect("give the program a second name");
    }
    path
}

fn is_open(program: &Path) -> bool {
    program
        .ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .all(|path| std::fs::metadata(path).is_ok_and(|data| data.mode() & 0o001 != 0))
}
