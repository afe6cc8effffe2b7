//! A program where every user can run it.

use std::cell::RefCell;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tempfile::TempDir;

thread_local! {
    /// Keeps the folder as long as the thread of a test runs.
    static HELD: RefCell<Option<Arc<TempDir>>> = const { RefCell::new(None) };
}

/// The folder, while any test holds it.
static SHARED: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());

/// The program under a path that users other than ours can follow: its own, or a second name for it.
///
/// Tests run programs as the users of a pod. A checkout in a home directory is closed to them, although nothing is
/// wrong with it. The second name vanishes with the last test that asked.
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
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = shared.upgrade().unwrap_or_else(|| {
        let folder = TempDir::with_prefix("remora-test-").expect("make a folder for the program");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("open the folder for everybody");
        Arc::new(folder)
    });
    *shared = Arc::downgrade(&folder);
    let path = folder.path().join(program.file_name().unwrap_or_default());
    if !path.exists() {
        std::fs::hard_link(program, &path)
            .or_else(|_| std::fs::copy(program, &path).map(drop))
            .expect("give the program a second name");
    }
    HELD.set(Some(folder));
    path
}

fn is_open(program: &Path) -> bool {
    program
        .ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .all(|path| std::fs::metadata(path).is_ok_and(|data| data.mode() & 0o001 != 0))
}
