//! Programs in namespaces, and what they use.

use crate::place;
use remora_net::Namespace;
use remora_testkit::Actor;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A program of ours; it is gone when this value is.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Just before it was started.
    pub started: Instant,
}

/// How a program is started.
#[derive(Debug, Clone)]
pub struct Start {
    /// Program and arguments.
    pub words: Vec<String>,
    /// All it knows of the environment.
    pub env: Vec<(String, String)>,
    /// Where.
    pub directory: PathBuf,
    /// As whom.
    pub uid: u32,
    /// On which CPU.
    pub cpu: usize,
    /// What it says goes there.
    pub log: PathBuf,
}

/// What a program used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Seconds outside the kernel.
    pub user: f64,
    /// Seconds inside.
    pub system: f64,
}

impl Usage {
    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

/// Memory in KB.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// All that is resident.
    pub resident: f64,
    /// What nobody else could share.
    pub dirty: f64,
}

impl Start {
    /// Starts it in a namespace.
    pub fn run(self, namespace: &Namespace, realtime: bool) -> Process {
        // The thread's place is inherited, so nothing stands between the measured start and the program.
        let (child, started) = Actor::root(namespace).run(move || {
            use std::os::unix::process::CommandExt;
            place::here(self.cpu, realtime);
            let log = std::fs::File::create(&self.log).expect("log file");
            let mut command = Command::new(&self.words[0]);
            command
                .args(&self.words[1..])
                .env_clear()
                .envs(self.env)
                .current_dir(&self.directory)
                .uid(self.uid)
                .gid(self.uid)
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("log file"))
                .stderr(log);
            let started = Instant::now();
            let child = command
                .spawn()
                .unwrap_or_else(|error| panic!("start {}: {error}", self.words[0]));
            (child, started)
        });
        Process { child, started }
    }
}

impl Process {
    /// CPU so far, of all its threads.
    pub fn usage(&self) -> Usage {
        let stat = self.read("stat");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        // The kernel counts in hundredths of a second.
        let seconds = |place: usize| {
            fields
                .get(place)
                .and_then(|f| f.parse::<f64>().ok())
                .unwrap_or(0.0)
                / 100.0
        };
        Usage {
            user: seconds(11),
            system: seconds(12),
        }
    }

    /// CPU so far in seconds, to the nanosecond.
    pub fn exact(&self) -> f64 {
        let directory = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let nanos = |path: PathBuf| {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            text.split(' ')
                .next()
                .and_then(|n| n.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        tasks.map(|task| nanos(task.path())).sum::<f64>() / 1e9
    }

    /// Memory now.
    pub fn memory(&self) -> Memory {
        let text = self.read("smaps_rollup");
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number.and_then(|n| n.parse().ok()).unwrap_or(f64::NAN)
        };
        Memory {
            resident: field("Rss:"),
            dirty: field("Private_Dirty:"),
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
