//! Threads in a namespace, as a user.

use remora_net::Namespace;
use remora_net::privilege;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a namespace, as a user. Jobs run there one after the other.
#[derive(Debug)]
pub struct Actor {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Actor {
    /// Starts a thread in `namespace` as `uid` and `gid`.
    #[expect(
        clippy::expect_used,
        reason = "a test that has no namespaces must fail loudly"
    )]
    pub fn new(namespace: &Namespace, uid: u32, gid: u32) -> Self {
        let namespace = namespace.clone();
        let (jobs, queue) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            namespace
                .enter()
                .expect("enter the test's network namespace: run the tests as root");
            if (uid, gid) != privilege::ids() {
                privilege::become_user(uid, gid).expect("become another user: run the tests as root");
            }
            while let Ok(job) = queue.recv() {
                job();
            }
        });
        Self {
            jobs: Some(jobs),
            thread: Some(thread),
        }
    }

    /// A thread as root.
    pub fn root(namespace: &Namespace) -> Self {
        Self::new(namespace, 0, 0)
    }

    /// Runs `work` on the thread and waits for its result.
    #[expect(clippy::expect_used, reason = "a test whose actor died must fail loudly")]
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = channel();
        let job: Job = Box::new(move || {
            let _ = answer.send(work());
        });
        self.jobs
            .as_ref()
            .expect("actor is running")
            .send(job)
            .expect("actor is alive");
        result.recv().expect("the actor's work panicked")
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
