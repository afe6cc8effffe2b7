//! A run in the background, what it says, and what is left of it.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

type Said = Arc<(Mutex<String>, Condvar)>;

pub(crate) struct Running {
    child: Child,
    said: Said,
    state: tempfile::TempDir,
}

fn images() -> PathBuf {
    remora_testkit::shared_folder().join("images")
}

impl Running {
    pub(crate) fn start(manifest: &str, args: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .args(["run", "-f", "-", "--logs", "--state-dir"])
            .arg(state.path());
        command.arg("--image-store").arg(images()).args(args);
        Self::spawn(command, state, manifest)
    }

    pub(crate) fn spawn(mut command: Command, state: tempfile::TempDir, manifest: &str) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Said::default();
        listen(child.stdout.take().unwrap(), &said);
        listen(child.stderr.take().unwrap(), &said);
        // Closed before it was read: the run ended early, and says why.
        let _ = child.stdin.take().unwrap().write_all(manifest.as_bytes());
        Self { child, said, state }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn said(&self) -> String {
        self.said.0.lock().unwrap().clone()
    }

    /// Waits until it has said something.
    pub(crate) fn wait_for(&self, what: &str) {
        self.wait_until(what, |said| said.contains(what));
    }

    /// Waits until what it has said is enough.
    pub(crate) fn wait_until(&self, what: &str, enough: impl Fn(&str) -> bool) {
        let (text, news) = &*self.said;
        let end = Instant::now() + PATIENCE;
        let mut said = text.lock().unwrap();
        while !enough(&said) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what:?} is missing: {said}");
            said = news.wait_timeout(said, left).unwrap().0;
        }
    }

    /// Its processes whose command line has this word.
    pub(crate) fn processes(&self, word: &str) -> Vec<u32> {
        let own = self.child.id().to_string();
        let numbers = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let is_ours = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            parent == Some(own.as_str()) && line.replace('\0', " ").contains(word)
        };
        numbers.filter(is_ours).collect()
    }

    pub(crate) fn signal(&self, number: i32) {
        // It may have ended.
        let _ = remora_net::process::signal(self.child.id(), number);
    }

    /// What another command says about this run.
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        let (verb, rest) = args.split_first().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .arg(verb)
            .arg("--state-dir")
            .arg(self.state.path())
            .args(rest);
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end: {}", self.said());
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Asks for its end, and waits for it.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal(2);
        self.wait()
    }

    pub(crate) fn state(&self) -> &Path {
        self.state.path()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn listen(from: impl Read + Send + 'static, said: &Said) {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let (text, news) = &*said;
            let mut text = text.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
            news.notify_all();
        }
    });
}
