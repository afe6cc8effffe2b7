//! Clients that mean no good, or no TLS: the proxy refuses them, says why, and goes on.

use crate::scene::{MESH, PATIENCE, PROXY, Scene, echo, exchange, identity_files, service};
use remora_net::{Namespace, privilege};
use remora_proxy::inbound::{Mode, Modes};
use remora_testkit::has_programs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// Runs a program in the pod, past its proxy, with this on its standard input.
fn run(namespace: &Namespace, program: &str, args: &[&str], input: &'static [u8]) -> Output {
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let work = || {
        namespace.enter().unwrap();
        privilege::become_user(PROXY, PROXY).unwrap();
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let _ = pipe.write_all(input);
        drop(pipe);
        child.wait_with_output().unwrap()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn here() -> bool {
    has_programs(&[("openssl", "apt install openssl"), ("curl", "apt install curl")])
}

/// `openssl s_client` to a port of the server's pod. Ends when its input does.
fn s_client(scene: &Scene, port: u16, args: &[&str], input: &'static [u8]) -> String {
    let to = format!("{}:{port}", scene.lab.eth0.peer(false));
    let mut all = vec!["10", "openssl", "s_client", "-connect", &to];
    all.extend(args);
    let output = run(&scene.lab.pod, "timeout", &all, input);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn openssl_gets_a_tunnel_only_as_the_protocol_says() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.serve(8080, echo);
    let files = identity_files(&scene.authority, "web");
    let path = |name: &str| files.path().join(name).display().to_string();
    let (chain, key) = (path("chain.pem"), path("key.pem"));
    let own = ["-cert", &chain, "-key", &key];
    let weak = ["-cipher", "DEFAULT@SECLEVEL=0"];
    for (args, expected) in [
        ([&["-tls1"][..], &weak, &own].concat(), "TLS handshake"),
        ([&["-tls1_1"][..], &weak, &own].concat(), "TLS handshake"),
        ([&["-tls1_2", "-alpn", "h2"][..], &own].concat(), "TLS handshake"),
        ([&["-alpn", "http/1.1"][..], &own].concat(), "TLS handshake"),
        ([&["-alpn", "istio"][..], &own].concat(), "TLS handshake"),
        (vec!["-tls1_3", "-alpn", "h2"], "peer sent no certificates"),
        // Welcome as far as TLS is concerned.
        ([&["-alpn", "h2"][..], &own].concat(), "HTTP/2 handshake"),
    ] {
        let said = s_client(&scene, 15008, &args, b"GET / HTTP/1.1\r\n\r\n");
        let error = scene.server.record().error.unwrap();
        assert!(error.contains(expected), "{args:?}: {error}\n{said}");
    }
    scene.attempt(service(false)).unwrap();
}

#[test]
fn openssl_as_a_sidecar_keeps_to_the_rules_or_gets_nothing() {
    if !here() {
        return;
    }
    let modes = Modes {
        default: Mode::Strict,
        ..Modes::default()
    };
    let scene = Scene::strictness(MESH, modes);
    scene.serve(8080, echo);
    let files = identity_files(&scene.authority, "web");
    let path = |name: &str| files.path().join(name).display().to_string();
    let (chain, key, session, early) = (path("chain.pem"), path("key.pem"), path("session"), path("early"));
    std::os::unix::fs::chown(files.path(), Some(PROXY), Some(PROXY)).unwrap();
    std::fs::write(&early, "sent too early").unwrap();
    let own = ["-alpn", "istio", "-cert", &chain, "-key", &key, "-ign_eof"];
    for old in ["-tls1", "-tls1_1"] {
        let args = [&[old, "-cipher", "DEFAULT@SECLEVEL=0"][..], &own].concat();
        s_client(&scene, 8080, &args, b"");
        assert!(scene.server.record().error.is_some(), "{old}");
    }
    let speak = |args: &[&str], input| {
        let args = [args, &own[..6]].concat();
        let said = s_client(&scene, 8080, &args, input);
        assert!(!said.contains("Early data was accepted"), "{said}");
        let record = scene.server.record();
        assert!(record.source_id.is_some(), "{args:?}: {record}\n{said}");
    };
    speak(&["-tls1_2"], &b"hello\nQ\n"[..]);
    // The letter R asks for another handshake within the first, Q ends.
    speak(&["-tls1_2"], b"hello\nR\nhello\nQ\n");
    // The program may end before it has heard of a session.
    let started = Instant::now();
    while !Path::new(&session).exists() {
        assert!(started.elapsed() < PATIENCE, "no session to resume");
        speak(&["-tls1_3", "-sess_out", &session], b"hello\nQ\n");
    }
    speak(
        &["-tls1_3", "-sess_in", &session, "-early_data", &early],
        b"hello\nQ\n",
    );
    exchange(&mut scene.connect(service(false)), b"all is well").unwrap();
}

#[test]
fn ports_of_the_proxy_are_nothing_for_browsers() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.serve(8080, echo);
    for (port, scheme) in [
        (15001, "http"),
        (15006, "http"),
        (15008, "http"),
        (15008, "https"),
    ] {
        let url = format!("{scheme}://{}:{port}/", scene.lab.eth0.peer(false));
        let output = run(&scene.lab.pod, "curl", &["-sk", "--max-time", "20", &url], b"");
        assert!(!output.status.success(), "{url}");
        assert!(output.stdout.is_empty(), "{url}");
    }
    scene.attempt(service(false)).unwrap();
}

#[test]
fn garbage_is_refused_wherever_it_comes_in() {
    let modes = Modes {
        default: Mode::Strict,
        ..Modes::default()
    };
    let scene = Scene::strictness(MESH, modes);
    scene.serve(8080, echo);
    let noise: Vec<u8> = (0..100_000_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    // Starts as TLS does and goes wrong at different places.
    let record = |kind: u8, length: u16, rest: &[u8]| {
        let mut bytes = vec![kind, 3, 1];
        bytes.extend(length.to_be_bytes());
        bytes.extend(rest);
        bytes
    };
    let samples = [
        noise.clone(),
        vec![0; 70_000],
        vec![22; 70_000],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        record(22, 16_384, &noise[..16_384]),
        record(22, 0xffff, &noise[..200]),
        record(22, 0, &[]),
        record(21, 2, &[2, 40]),
        record(23, 100, &noise[..100]),
        // A hello that says it is longer than it may be.
        record(22, 512, &[&[1, 0xff, 0xff, 0xff][..], &noise[..508]].concat()),
    ];
    for port in [8080, 15008] {
        let to = SocketAddr::new(scene.lab.eth0.peer(false), port);
        for (number, sample) in samples.iter().enumerate() {
            let mut stream = scene.outsider(to).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(sample);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            // An alert at most: nothing of the application's.
            assert!(
                heard.is_empty() || heard[0] == 21,
                "sample {number} to {port}: {heard:?}"
            );
            assert!(scene.server.record().error.is_some(), "sample {number} to {port}");
        }
    }
    exchange(&mut scene.connect(service(false)), b"all is well").unwrap();
}
