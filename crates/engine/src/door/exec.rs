//! A process in a container, and a visitor who talks to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Sender;
use tokio::sync::{mpsc, oneshot};

use super::Terminal;
use super::frame::{self, Kind};
use super::serve::Refused;
use crate::container::terminal::resize;
use crate::container::{Container, Stdio};
use crate::pod::Order;
use crate::session::Command;
use crate::sys;
use crate::world::PodId;

/// How much is read at a time.
const PIECE: usize = 16 * 1024;
/// How long output may take after the end of the process.
const AFTER: Duration = Duration::from_millis(500);

/// Starts the process.
pub(super) async fn begin(
    commands: &mpsc::Sender<Command>,
    pod: PodId,
    container: &str,
    args: Vec<String>,
    input: bool,
    terminal: Option<Terminal>,
) -> Result<Container, Refused> {
    let (reply, started) = oneshot::channel();
    let kind = terminal.as_ref().and_then(|t| t.kind.clone());
    let order = Order::Exec {
        container: container.to_owned(),
        args,
        env: kind.map(|kind| ("TERM".to_owned(), kind)).into_iter().collect(),
        stdio: match (&terminal, input) {
            (Some(Terminal { rows, columns, .. }), _) => Stdio::Terminal {
                rows: *rows,
                columns: *columns,
            },
            (None, true) => Stdio::Interactive,
            (None, false) => Stdio::Pipe,
        },
        reply,
    };
    let gone = || Refused::Because("the pod is gone".to_owned());
    commands
        .send(Command::Order(pod, order))
        .await
        .map_err(|_| gone())?;
    started.await.map_err(|_| gone())?.map_err(Refused::Because)
}

/// Where what the visitor types goes.
enum Input {
    None,
    Pipe(Sender),
    Terminal(Arc<AsyncFd<OwnedFd>>),
}

impl Input {
    /// Takes a piece; an empty one is the end.
    async fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Pipe(_) if bytes.is_empty() => {
                *self = Self::None;
                Ok(())
            }
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::Terminal(fd) => write_terminal(fd, bytes).await,
        }
    }

    fn resize(&self, bytes: &[u8]) {
        if let (Self::Terminal(fd), [a, b, c, d]) = (self, bytes) {
            resize(
                fd.get_ref(),
                u16::from_be_bytes([*a, *b]),
                u16::from_be_bytes([*c, *d]),
            );
        }
    }
}

async fn write_terminal(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = fd.writable().await?;
        match ready.try_io(|fd| sys::write(fd.get_ref(), bytes)) {
            Ok(Ok(put)) => bytes = bytes.get(put..).unwrap_or_default(),
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Carries everything back and forth until the process has ended.
pub(super) async fn carry(stream: &mut UnixStream, mut process: Container) -> Result<(), Refused> {
    let (mut from, mut to) = stream.split();
    let (pieces, mut outgoing) = mpsc::channel::<(Kind, Vec<u8>)>(16);
    let mut input = Input::None;
    if let Some(fd) = process.terminal.take() {
        use std::os::fd::AsFd as _;
        sys::set_nonblocking(fd.as_fd())?;
        let fd = Arc::new(sys::watch(fd)?);
        tokio::spawn(read_terminal(Arc::clone(&fd), pieces.clone()));
        input = Input::Terminal(fd);
    } else if let Some(pipe) = process.stdin.take() {
        input = Input::Pipe(pipe);
    }
    if let Some(out) = process.stdout.take() {
        tokio::spawn(read_pipe(out, Kind::Out, pieces.clone()));
    }
    if let Some(err) = process.stderr.take() {
        tokio::spawn(read_pipe(err, Kind::Err, pieces.clone()));
    }
    drop(pieces);
    let incoming = async {
        loop {
            match frame::receive(&mut from).await {
                Ok(Some((Kind::In, bytes))) => {
                    // A process that reads no more is still a process.
                    if input.take(&bytes).await.is_err() {
                        input = Input::None;
                    }
                }
                Ok(Some((Kind::Size, bytes))) => input.resize(&bytes),
                Ok(Some(_)) => {}
                // Dropping the process kills it.
                Ok(None) | Err(_) => return,
            }
        }
    };
    let outgoing = async {
        let exit = process.wait();
        tokio::pin!(exit);
        let ended = loop {
            tokio::select! {
                Some((kind, bytes)) = outgoing.recv() => frame::send(&mut to, kind, &bytes).await?,
                code = &mut exit => break code,
            }
        };
        // What it started may hold its output open: what is there is sent, and not much longer waited for.
        while let Ok(Some((kind, bytes))) = tokio::time::timeout(AFTER, outgoing.recv()).await {
            frame::send(&mut to, kind, &bytes).await?;
        }
        let code = ended.map_or(137, |exit| exit.code);
        frame::send(&mut to, Kind::Exit, &code.to_be_bytes()).await?;
        Ok(())
    };
    tokio::select! {
        () = incoming => Err(Refused::Gone),
        done = outgoing => done,
    }
}

async fn read_pipe(mut from: impl AsyncRead + Unpin, kind: Kind, to: mpsc::Sender<(Kind, Vec<u8>)>) {
    let mut buffer = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.send((kind, buffer[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn read_terminal(fd: Arc<AsyncFd<OwnedFd>>, to: mpsc::Sender<(Kind, Vec<u8>)>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let Ok(mut ready) = fd.readable().await else {
            return;
        };
        match ready.try_io(|fd| sys::read(fd.get_ref(), &mut buffer)) {
            Ok(Ok(read @ 1..)) => {
                if to.send((Kind::Out, buffer[..read].to_vec())).await.is_err() {
                    return;
                }
            }
            // EIO: nobody has the terminal open any more.
            Ok(Ok(_) | Err(_)) => return,
            Err(_) => {}
        }
    }
}
