//! Processes in namespaces, with everything they say.

use remora_net::Namespace;
use remora_testkit::Actor;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Nothing takes longer, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The program; another one can be tried, or measured, by naming it.
pub(crate) fn binary() -> PathBuf {
    match std::env::var_os("REMORA_BINARY") {
        Some(path) => remora_testkit::reachable(Path::new(&path)),
        None => remora_testkit::reachable(Path::new(env!("CARGO_BIN_EXE_remora"))),
    }
}

/// A process of ours. It is gone when this value is.
pub(crate) struct Process {
    child: Child,
    said: Arc<(Mutex<String>, Condvar)>,
}

/// How a process is started.
pub(crate) struct Start<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) uid: u32,
    pub(crate) directory: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
}

impl Start<'_> {
    /// `remora` with these arguments.
    pub(crate) fn remora(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(binary());
        command.args(arguments);
        self.run(command)
    }

    pub(crate) fn run(&self, mut command: Command) -> Process {
        command
            .current_dir(&self.directory)
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = Actor::new(self.namespace, self.uid, self.uid)
            .run(move || command.spawn())
            .unwrap();
        let said = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let (heard, lines) = (Arc::clone(&said), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let (text, changed) = &*heard;
                let mut text = text.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
                changed.notify_all();
            }
        });
        Process { child, said }
    }
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said this.
    pub(crate) fn says(&self, part: &str) {
        let (text, changed) = &*self.said;
        let text = text.lock().unwrap();
        let (text, _) = changed
            .wait_timeout_while(text, PATIENCE, |text| !text.contains(part))
            .unwrap();
        assert!(text.contains(part), "never said {part:?}, but:\n{text}");
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        self.said.0.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Waits for its end: the code, or 128 and the signal.
    pub(crate) fn end(&mut self) -> i32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return code(status);
            }
            assert!(started.elapsed() < PATIENCE, "it never ended:\n{}", self.said());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// SIGTERM, and its end.
    pub(crate) fn stop(&mut self) -> i32 {
        self.signal("TERM");
        self.end()
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
