//! `remora why` as a process, with an admin port that says what it is told to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Scene, binary};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Output;

/// Answers one request; gives what was asked.
fn answered(head: &str, body: &str, arguments: &[&str]) -> (String, Output) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("http://{}", listener.local_addr().unwrap());
    let length = body.len();
    let answer = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        reader.read_line(&mut asked).unwrap();
        let mut line = asked.clone();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        stream.write_all(answer.as_bytes()).unwrap();
        asked
    });
    let arguments = [&["why", "--admin", &admin], arguments].concat();
    let output = Scene::new(&[]).command(&binary(), &arguments).output().unwrap();
    (serving.join().unwrap(), output)
}

#[test]
fn the_answer_is_printed_and_the_exit_code_says_whether_bytes_would_flow() {
    let (asked, output) = answered(
        "200 OK\r\nremora-allowed: true",
        "goes to 10.0.0.2:8080\nallowed\n",
        &["shop/web-0", "cart:80"],
    );
    assert_eq!(asked, "GET /why?src=shop/web-0&dst=cart:80 HTTP/1.1\r\n");
    assert_eq!(output.stdout, b"goes to 10.0.0.2:8080\nallowed\n");
    assert_eq!(output.status.code(), Some(0));
    let (asked, output) = answered(
        "200 OK\r\nremora-allowed: false",
        "{}\n",
        &["--json", "10.0.0.1", "[fd00::1]:80"],
    );
    assert_eq!(
        asked,
        "GET /why?src=10.0.0.1&dst=%5Bfd00::1%5D:80&format=json HTTP/1.1\r\n"
    );
    assert_eq!(
        (output.stdout.as_slice(), output.status.code()),
        (b"{}\n".as_slice(), Some(1))
    );
}

#[test]
fn a_question_that_makes_no_sense_and_a_place_without_a_proxy_are_told_apart() {
    let error = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let (_, output) = answered(
        "400 Bad Request",
        "the mesh knows nobody named \"x\"\n",
        &["10.0.0.1", "x:80"],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("the mesh knows nobody named \"x\""));
    let (_, output) = answered("200 OK", "hello", &["10.0.0.1", "x:80"]);
    assert!(
        error(&output).contains("is not a proxy of remora"),
        "{}",
        error(&output)
    );
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let admin = format!("http://{nobody}");
    let arguments = ["why", "--admin", &admin, "10.0.0.1", "cart:80"];
    let output = Scene::new(&[]).command(&binary(), &arguments).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(
        error(&output).contains("kubectl port-forward POD 15000"),
        "{}",
        error(&output)
    );
    let output = Scene::new(&[])
        .command(&binary(), &["why", "--admin", "nonsense", "a", "b"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
