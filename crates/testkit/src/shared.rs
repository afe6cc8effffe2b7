//! A folder that all tests of a program share.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tempfile::TempDir;

thread_local! {
    /// Keeps the folder as long as the thread of a test runs.
    static HELD: RefCell<Option<Arc<TempDir>>> = const { RefCell::new(None) };
}

/// The folder, while any test holds it.
static SHARED: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());

/// Makes a folder readable for every user.
pub(crate) fn open(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

/// A folder that every user can read. It is removed when the last test that uses it ends; a `static` is never dropped.
///
/// # Panics
///
/// If there is no place for it.
#[expect(
    clippy::expect_used,
    reason = "a test that cannot have its folder must fail loudly"
)]
pub fn shared_folder() -> PathBuf {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = shared.upgrade().unwrap_or_else(|| {
        let folder = TempDir::with_prefix("remora-test-").expect("make a folder for tests");
        open(folder.path()).expect("open the folder for everybody");
        Arc::new(folder)
    });
    *shared = Arc::downgrade(&folder);
    let path = folder.path().to_owned();
    HELD.set(Some(folder));
    path
}
