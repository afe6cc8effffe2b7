//! A registry that does what it is told, however wrong.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Ends the connection after so many bytes of the body.
    pub(crate) cut: Option<usize>,
}

impl Reply {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

type Answer = dyn Fn(&Asked) -> Reply + Send + Sync;

pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    pub(crate) fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::wrapped(answer, Some)
    }

    /// `wrap` turns the accepted connection into what is spoken on it.
    pub(crate) fn wrapped<S: Read + Write + 'static>(
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
        wrap: impl Fn(std::net::TcpStream) -> Option<S> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer, wrap) = (Arc::clone(&log), Arc::new(answer), Arc::new(wrap));
        // The thread ends with the test program.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer, wrap) = (Arc::clone(&seen), Arc::clone(&answer), Arc::clone(&wrap));
                std::thread::spawn(move || {
                    if let Some(stream) = wrap(stream) {
                        serve(stream, &*answer, &seen);
                    }
                });
            }
        });
        Self { address, log }
    }

    /// What was asked for under a path.
    pub(crate) fn asked(&self, part: &str) -> Vec<Asked> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|a| a.path.contains(part)).cloned().collect()
    }
}

fn serve<S: Read + Write>(stream: S, answer: &Answer, log: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    if reader.read_line(&mut first).is_err() {
        return;
    }
    let Some(path) = first.split(' ').nth(1) else {
        return;
    };
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
    }
    let asked = Asked {
        path: path.to_owned(),
        headers,
    };
    log.lock().unwrap().push(asked.clone());
    let reply = answer(&asked);
    let mut headers = reply.headers.clone();
    if !headers.iter().any(|(name, _)| name == "content-length") {
        headers.push(("content-length".to_owned(), reply.body.len().to_string()));
    }
    let headers: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let head = format!(
        "HTTP/1.1 {} X\r\nconnection: close\r\n{}\r\n",
        reply.status,
        headers.concat()
    );
    let stream = reader.get_mut();
    let end = reply.cut.unwrap_or(reply.body.len());
    // The other side may have had enough.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&reply.body[..end]);
    let _ = stream.flush();
}
