//! What containers write: to a file, and to whoever watches.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;

use crate::container::Container;
use crate::logs::Writer;
use crate::world::{Notice, PodId, Stream, World};

/// A line longer than this is cut into several, so that nobody's output fills the memory.
const LONGEST: u64 = 16 * 1024;

/// Carries the output of a container away.
pub(super) fn pump(container: &mut Container, world: &Arc<World>, pod: PodId, name: &str, attempt: u32) {
    let name: Arc<str> = name.into();
    let writer = Arc::new(world.logs.begin(pod, &name, attempt));
    let streams = [
        (container.stdout.take(), Stream::Out),
        (container.stderr.take(), Stream::Err),
    ];
    for (receiver, stream) in streams {
        if let Some(receiver) = receiver {
            let carrier = Carrier {
                world: Arc::clone(world),
                pod,
                name: Arc::clone(&name),
                stream,
                writer: Arc::clone(&writer),
            };
            tokio::spawn(carrier.carry(receiver));
        }
    }
}

struct Carrier {
    world: Arc<World>,
    pod: PodId,
    name: Arc<str>,
    stream: Stream,
    writer: Arc<Writer>,
}

impl Carrier {
    async fn carry(self, receiver: Receiver) {
        let mut reader = BufReader::new(receiver);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(LONGEST).read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(n) if n > 0) {
                return;
            }
            let whole = line.last() == Some(&b'\n');
            if whole {
                line.pop();
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            self.writer.keep(self.stream, &text, whole);
            self.world.logs.tell();
            let notice = Notice::Line {
                pod: self.pod,
                container: Arc::clone(&self.name),
                stream: self.stream,
                text,
            };
            self.world.tell(notice).await;
        }
    }
}
