//! A relay between two real pairs of sockets. The ends are threads, so that they can be slow or rude.

use super::{CopyError, sockets};
use crate::access::Traffic;
use crate::spare::{NO_PIPES, waiting};
use bytes::Bytes;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);
const MANY: usize = 64 << 20;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    for stream in [&one, &other] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (one, other)
}

fn inside(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(stream).unwrap()
}

/// Bytes that tell their place, so that loss, repetition and disorder are seen.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        Self((0..251_u8).cycle().take((1 << 20) + 251).collect())
    }

    fn at(&self, place: usize, length: usize) -> &[u8] {
        &self.0[place % 251..][..length]
    }
}

fn write_many(stream: &mut TcpStream, total: usize) -> std::io::Result<()> {
    let pattern = Pattern::new();
    let mut sent = 0;
    while sent < total {
        let now = (1 << 20).min(total - sent);
        stream.write_all(pattern.at(sent, now))?;
        sent += now;
    }
    Ok(())
}

fn read_many(stream: &mut TcpStream, counter: &AtomicUsize) -> std::io::Result<()> {
    let pattern = Pattern::new();
    let mut buffer = vec![0; 1 << 20];
    let mut place = 0;
    loop {
        let now = stream.read(&mut buffer)?;
        if now == 0 {
            return Ok(());
        }
        assert!(buffer[..now] == *pattern.at(place, now), "at {place}");
        place += now;
        counter.store(place, Ordering::Relaxed);
    }
}

/// Runs the relay in a thread of its own, so that what waits there can be looked at.
struct Relay {
    client: TcpStream,
    server: TcpStream,
    traffic: Arc<Traffic>,
    running: JoinHandle<(Result<(), CopyError>, (usize, usize))>,
}

impl Relay {
    fn new(prefix: &'static [u8], pipes: bool) -> Self {
        let ((client, near), (far, server)) = (pair(), pair());
        let traffic = Arc::new(Traffic::default());
        let counted = Arc::clone(&traffic);
        let running = std::thread::spawn(move || {
            NO_PIPES.set(!pipes);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let (mut near, mut far) = (inside(near), inside(far));
                let ended = sockets(Bytes::from_static(prefix), &mut near, &mut far, &counted).await;
                if ended.is_err() {
                    near.set_zero_linger().unwrap();
                    far.set_zero_linger().unwrap();
                }
                (ended, waiting())
            })
        });
        Self {
            client,
            server,
            traffic,
            running,
        }
    }
}

fn sending(mut stream: TcpStream, total: usize) -> JoinHandle<TcpStream> {
    std::thread::spawn(move || {
        write_many(&mut stream, total).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream
    })
}

#[test]
fn a_gigabyte_arrives_as_it_was_sent_and_is_counted() {
    let total = 1 << 30;
    let relay = Relay::new(b"", true);
    let sender = sending(relay.client, total);
    let (mut server, heard) = (relay.server, AtomicUsize::new(0));
    read_many(&mut server, &heard).unwrap();
    server.write_all(b"thanks").unwrap();
    drop(server);
    let mut answer = String::new();
    sender.join().unwrap().read_to_string(&mut answer).unwrap();
    let (ended, (buffers, pipes)) = relay.running.join().unwrap();
    ended.unwrap();
    assert_eq!((answer.as_str(), heard.into_inner()), ("thanks", total));
    assert_eq!(relay.traffic.read(), (total as u64, 6));
    assert_eq!(
        (buffers, pipes),
        (1, 1),
        "both were used, and both were given back"
    );
}

#[test]
fn without_descriptors_for_pipes_everything_is_copied() {
    let relay = Relay::new(b"", false);
    let sender = sending(relay.client, MANY);
    let (mut server, heard) = (relay.server, AtomicUsize::new(0));
    read_many(&mut server, &heard).unwrap();
    drop((server, sender.join().unwrap()));
    let (ended, (_, pipes)) = relay.running.join().unwrap();
    ended.unwrap();
    assert_eq!((heard.into_inner(), pipes), (MANY, 0));
    assert_eq!(relay.traffic.read(), (MANY as u64, 0));
}

/// Both directions at once, each with an end of its own, the second long after the first.
#[test]
fn a_half_close_leaves_the_other_half_open_whether_copied_or_spliced() {
    for (first, second) in [(10, MANY), (MANY, 10), (MANY, MANY), (10, 10)] {
        let relay = Relay::new(b"", true);
        let sender = sending(relay.client, first);
        let (mut server, heard) = (relay.server, AtomicUsize::new(0));
        read_many(&mut server, &heard).unwrap();
        assert_eq!(heard.into_inner(), first);
        // The client's half is over; ours is not.
        let answering = sending(server, second);
        let heard = AtomicUsize::new(0);
        read_many(&mut sender.join().unwrap(), &heard).unwrap();
        assert_eq!(heard.into_inner(), second);
        drop(answering.join().unwrap());
        relay.running.join().unwrap().0.unwrap();
        assert_eq!(relay.traffic.read(), (first as u64, second as u64));
    }
}

#[test]
fn a_reader_that_stops_stops_the_writer_and_nothing_is_lost() {
    let relay = Relay::new(b"", true);
    let (mut client, mut server) = (relay.client, relay.server);
    client
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let pattern = Pattern::new();
    let mut sent = 0;
    // Nobody reads. The relay must stop to read, and then the writer has no room.
    while let Ok(now) = client.write(pattern.at(sent, 1 << 20)) {
        sent += now;
        assert!(sent < 1 << 30, "{sent} bytes were taken and are kept somewhere");
    }
    client.shutdown(Shutdown::Write).unwrap();
    let heard = AtomicUsize::new(0);
    read_many(&mut server, &heard).unwrap();
    drop((server, client));
    relay.running.join().unwrap().0.unwrap();
    assert_eq!(heard.into_inner(), sent);
    assert_eq!(relay.traffic.read(), (sent as u64, 0));
}

/// Reads until there was enough or the stream broke.
fn read_some(stream: &mut TcpStream, enough: usize) -> std::io::Result<()> {
    let mut portion = vec![0; 64 << 10];
    let mut heard = 0;
    while heard < enough {
        match stream.read(&mut portion)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            now => heard += now,
        }
    }
    Ok(())
}

#[test]
fn a_reader_that_resets_in_the_middle_of_a_flow_resets_the_writer() {
    let relay = Relay::new(b"", true);
    let mut client = relay.client;
    let writing = std::thread::spawn(move || write_many(&mut client, 1 << 30));
    let mut server = relay.server;
    read_some(&mut server, 8 << 20).unwrap();
    // With bytes unread, and more coming, this is a reset.
    drop(server);
    let kind = writing.join().unwrap().unwrap_err().kind();
    assert!(
        matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "{kind:?}"
    );
    let (ended, _) = relay.running.join().unwrap();
    assert!(matches!(ended, Err(CopyError::Socket(..))), "{ended:?}");
}

#[test]
fn a_writer_that_resets_in_the_middle_of_a_flow_never_looks_finished() {
    let relay = Relay::new(b"", true);
    let (mut client, mut server) = (relay.client, relay.server);
    server.write_all(b"unread").unwrap();
    client.peek(&mut [0]).unwrap();
    let reading = std::thread::spawn(move || read_some(&mut server, usize::MAX));
    write_many(&mut client, 32 << 20).unwrap();
    // With bytes unread this is a reset.
    drop(client);
    let kind = reading.join().unwrap().unwrap_err().kind();
    assert_eq!(kind, ErrorKind::ConnectionReset);
    let (ended, _) = relay.running.join().unwrap();
    assert!(matches!(ended, Err(CopyError::Socket(..))), "{ended:?}");
}

#[test]
fn what_was_read_before_goes_first() {
    let relay = Relay::new(b"first ", true);
    let mut client = relay.client;
    client.write_all(b"second").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut server, mut heard) = (relay.server, String::new());
    server.read_to_string(&mut heard).unwrap();
    drop(server);
    relay.running.join().unwrap().0.unwrap();
    assert_eq!(heard, "first second");
    assert_eq!(relay.traffic.read(), (12, 0));
}
