//! Runs the real binary in a directory of its own and shows everything it did.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A directory with files.
pub struct Scene {
    directory: TempDir,
}

impl Scene {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let scene = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for (name, text) in files {
            let path = scene.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The command, with nothing of our own environment but the path.
    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear();
        command
    }

    pub fn remora(&self, arguments: &[&str]) -> Outcome {
        self.remora_with(arguments, "")
    }

    pub fn remora_with(&self, arguments: &[&str], stdin: &str) -> Outcome {
        run(self.command(&binary(), arguments), stdin)
    }
}

pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_remora"))
}

/// What a run did.
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Everything, for a snapshot.
    pub fn shown(&self) -> String {
        let mut text = format!(
            "exit code: {}\n",
            self.code.map_or("none".to_owned(), |c| c.to_string())
        );
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            writeln!(text, "----- {name} -----\n{}", output.trim_end()).unwrap();
        }
        text
    }
}

pub fn run(mut command: Command, stdin: &str) -> Outcome {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that does not read its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
