//! A root file system made of this machine's programs, for containers in tests.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod images;

use remora_engine::container::{Container, Exit, Mount, Root, Spec, Stdio};
use remora_engine::sandbox::{Processes, Sandbox, SandboxSpec};
use remora_engine::users::{UserNamespace, Users};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;

/// Containers from the programs in `/usr` of this machine.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) sandbox: Arc<Sandbox>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(&SandboxSpec {
            hostname: Some("bench".into()),
            ..SandboxSpec::default()
        })
        .await
    }

    /// With users of its own.
    pub(crate) async fn own(processes: Processes) -> Self {
        let ids = Users::default().ids().unwrap();
        let users = UserNamespace::create(ids, "bench", &[]).await.unwrap();
        Self::with(&SandboxSpec {
            hostname: Some("bench".into()),
            network: Some(users.network().clone()),
            users: Some(users),
            processes,
            ..SandboxSpec::default()
        })
        .await
    }

    pub(crate) async fn with(spec: &SandboxSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fill(&dir.path().join("root"));
        let sandbox = Sandbox::create(spec).await.unwrap();
        Self { dir, sandbox }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// A container that runs a shell script.
    pub(crate) fn script(&self, id: &str, script: &str) -> Spec {
        let root = Root::Bind(self.path("root"));
        let mut spec = Spec::new(id, root, &["sh", "-c", script], Arc::clone(&self.sandbox));
        spec.mounts.push(Mount::bind("/usr", "/usr").readonly());
        spec.stdio = Stdio::Pipe;
        spec
    }

    /// The same on an overlay, so that changes stay apart.
    pub(crate) fn overlay(&self, id: &str, script: &str) -> Spec {
        let mut spec = self.script(id, script);
        let dir = |name: &str| {
            let path = self.path(&format!("{id}/{name}"));
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        spec.root = Root::Overlay {
            lower: vec![self.path("root")],
            upper: dir("upper"),
            work: dir("work"),
        };
        spec
    }
}

fn fill(root: &Path) {
    std::fs::create_dir_all(root.join("usr")).unwrap();
    for name in ["bin", "lib", "lib64", "sbin"] {
        if Path::new("/").join(name).is_symlink() {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
    }
}

/// Everything a container says until it ends: (exit, output, complaints).
pub(crate) async fn finish(mut container: Container) -> (Exit, String, String) {
    let mut texts = [String::new(), String::new()];
    let pipes = [container.stdout.take(), container.stderr.take()];
    for (pipe, text) in pipes.into_iter().zip(&mut texts) {
        if let Some(mut pipe) = pipe {
            pipe.read_to_string(text).await.unwrap();
        }
    }
    let exit = container.wait().await.unwrap();
    let [out, err] = texts;
    (exit, out, err)
}

/// Starts and takes everything it says; complaints fail the test.
pub(crate) async fn run(spec: &Spec) -> String {
    let container = remora_engine::container::start(spec).await.unwrap();
    let (exit, out, err) = finish(container).await;
    assert_eq!((exit.code, err.as_str()), (0, ""), "{out}");
    out
}
