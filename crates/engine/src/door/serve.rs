//! One visitor, one request.

use std::io;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::frame::{self, Kind};
use super::{PodInfo, Request, Which, exec, named};
use crate::logs::Line;
use crate::session::Command;
use crate::world::{Stream, World};

/// How much is sent at a time.
const PIECE: usize = 64 * 1024;

/// Why a request is not answered.
pub(super) enum Refused {
    /// The visitor went away.
    Gone,
    /// The visitor is told.
    Because(String),
}

impl From<io::Error> for Refused {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Who answers.
pub(super) struct Visit {
    pub(super) world: Arc<World>,
    pub(super) commands: mpsc::Sender<Command>,
}

impl Visit {
    pub(super) async fn answer(self, mut stream: UnixStream) {
        if let Err(Refused::Because(text)) = self.talk(&mut stream).await {
            // A visitor that is gone need not be told.
            let _ = frame::send(&mut stream, Kind::Fail, text.as_bytes()).await;
        }
    }

    async fn talk(&self, stream: &mut UnixStream) -> Result<(), Refused> {
        let Some((Kind::Request, bytes)) = frame::receive(stream).await? else {
            return Err(Refused::Because("this is no request".to_owned()));
        };
        let request = serde_json::from_slice(&bytes)
            .map_err(|e| Refused::Because(format!("the request is not understood: {e}")))?;
        match request {
            Request::Pods => {
                let pods = self.pods().await?;
                answer(stream, &pods).await
            }
            Request::Logs { .. } => self.logs(stream, request).await,
            Request::Exec {
                pod,
                container,
                args,
                input,
                terminal,
            } => {
                let (info, container) = self.container(&pod, container).await?;
                let process = exec::begin(&self.commands, info.id, &container, args, input, terminal).await?;
                exec::carry(stream, process).await
            }
            Request::Delete { what, grace, wait } => self.delete(stream, what, grace, wait).await,
        }
    }

    async fn pods(&self) -> Result<Vec<PodInfo>, Refused> {
        let (reply, answer) = oneshot::channel();
        self.order(Command::List(reply)).await?;
        answer.await.map_err(|_| over())
    }

    async fn order(&self, command: Command) -> Result<(), Refused> {
        self.commands.send(command).await.map_err(|_| over())
    }

    /// The pod and container somebody means.
    async fn container(&self, pod: &Which, container: Option<String>) -> Result<(PodInfo, String), Refused> {
        let pods = self.pods().await?;
        let (found, _) = named(&pods, pod).map_err(|e| Refused::Because(e.to_string()))?;
        // Of several the first that runs, as kubectl has it.
        let running = found.iter().find(|p| p.phase == "Running");
        let info = running.or(found.first()).copied().cloned();
        let info = info.ok_or_else(|| Refused::Because(format!("{} is not here", pod.name)))?;
        let name = container.unwrap_or_else(|| info.usual_container.clone());
        if !info.containers.iter().any(|c| c.name == name) {
            let there: Vec<&str> = info.containers.iter().map(|c| c.name.as_str()).collect();
            return Err(Refused::Because(format!(
                "pod {} has no container {name}; it has {}",
                info.name,
                there.join(", ")
            )));
        }
        Ok((info, name))
    }

    async fn logs(&self, stream: &mut UnixStream, request: Request) -> Result<(), Refused> {
        let Request::Logs {
            pod,
            container,
            follow,
            tail,
            previous,
            timestamps,
        } = request
        else {
            return Ok(());
        };
        let (info, name) = self.container(&pod, container).await?;
        let path = self
            .world
            .logs
            .find(info.id, &name, previous)
            .map_err(|_| Refused::Because(no_logs(&info, &name, previous)))?;
        let broken = |e: io::Error| Refused::Because(format!("read {}: {e}", path.display()));
        let mut follower = self.world.logs.follow(path.clone()).map_err(broken)?;
        let mut kept = Vec::new();
        loop {
            let lines = follower.some().map_err(broken)?;
            if lines.is_empty() {
                break;
            }
            match tail {
                None => show(stream, &lines, timestamps).await?,
                Some(tail) => {
                    kept.extend(lines);
                    kept = last(kept, tail);
                }
            }
        }
        show(stream, &kept, timestamps).await?;
        // A visitor that hangs up in between is seen at once, not at the next line.
        let mut more = follow;
        while more {
            more = tokio::select! {
                more = follower.more() => more,
                _ = frame::receive(stream) => return Err(Refused::Gone),
            };
            loop {
                let lines = follower.some().map_err(broken)?;
                if lines.is_empty() {
                    break;
                }
                show(stream, &lines, timestamps).await?;
            }
        }
        frame::send(stream, Kind::Answer, b"null").await?;
        Ok(())
    }

    async fn delete(
        &self,
        stream: &mut UnixStream,
        what: Which,
        grace: Option<u64>,
        wait: bool,
    ) -> Result<(), Refused> {
        let (reply, answered) = oneshot::channel();
        let (gone, all_gone) = oneshot::channel();
        self.order(Command::Delete {
            what,
            grace,
            reply,
            gone,
        })
        .await?;
        let names = answered
            .await
            .map_err(|_| over())?
            .map_err(|e| Refused::Because(e.to_string()))?;
        if wait {
            tokio::select! {
                done = all_gone => done.map_err(|_| over())?,
                _ = frame::receive(stream) => return Err(Refused::Gone),
            }
        }
        answer(stream, &names).await
    }
}

fn over() -> Refused {
    Refused::Because("the run is over".to_owned())
}

async fn answer(stream: &mut UnixStream, value: &impl serde::Serialize) -> Result<(), Refused> {
    let bytes = serde_json::to_vec(value).map_err(|e| Refused::Because(e.to_string()))?;
    frame::send(stream, Kind::Answer, &bytes).await?;
    Ok(())
}

fn no_logs(pod: &PodInfo, container: &str, previous: bool) -> String {
    let state = pod.containers.iter().find(|c| c.name == container);
    let state = state.map_or("unknown", |c| c.state.as_str());
    if previous {
        format!("container {container} of {} was not started before", pod.name)
    } else {
        format!("container {container} of {} has not started: {state}", pod.name)
    }
}

/// The last lines; pieces of a line that was cut belong together.
fn last(lines: Vec<Line>, wanted: usize) -> Vec<Line> {
    let mut whole = 0;
    let mut first = lines.len();
    for (place, line) in lines.iter().enumerate().rev() {
        let ends = line.text.ends_with('\n') || place + 1 == lines.len();
        if ends {
            whole += 1;
        }
        if whole > wanted {
            break;
        }
        first = place;
    }
    lines.into_iter().skip(first).collect()
}

async fn show(stream: &mut UnixStream, lines: &[Line], timestamps: bool) -> Result<(), Refused> {
    let mut pending: Option<(Stream, String)> = None;
    for line in lines {
        let time = if timestamps {
            format!("{} ", line.time)
        } else {
            String::new()
        };
        let text = format!("{time}{}", line.text);
        match &mut pending {
            Some((kind, so_far)) if *kind == line.stream && so_far.len() < PIECE => so_far.push_str(&text),
            _ => {
                flush(stream, pending.take()).await?;
                pending = Some((line.stream, text));
            }
        }
    }
    flush(stream, pending).await
}

async fn flush(stream: &mut UnixStream, pending: Option<(Stream, String)>) -> Result<(), Refused> {
    if let Some((kind, text)) = pending {
        let kind = match kind {
            Stream::Out => Kind::Out,
            Stream::Err => Kind::Err,
        };
        frame::send(stream, kind, text.as_bytes()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::last;
    use crate::logs::Line;
    use crate::world::Stream;

    #[test]
    fn the_last_lines_are_whole_lines() {
        let line = |text: &str| Line {
            time: String::new(),
            stream: Stream::Out,
            text: text.to_owned(),
        };
        let all = || vec![line("a\n"), line("b1"), line("b2\n"), line("c\n"), line("rest")];
        let tail = |n| last(all(), n).iter().map(|l| l.text.clone()).collect::<String>();
        assert_eq!(tail(0), "");
        assert_eq!(tail(1), "rest");
        assert_eq!(tail(2), "c\nrest");
        assert_eq!(tail(3), "b1b2\nc\nrest");
        assert_eq!(tail(9), "a\nb1b2\nc\nrest");
    }
}
