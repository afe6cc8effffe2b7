//! Waits until a sidecar is ready: run by a `postStart` hook, so that the application starts afterwards.
//!
//! The first request is sent immediately. A remora sidecar delays its response until it is ready, so the wait ends with
//! an event. While the port refuses connections, requests are retried within milliseconds. Other sidecars are polled
//! once per period.

use crate::client::{self, Reply, Url};
use crate::status::WAITED_HEADER;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

/// Backoff between attempts while the port refuses connections.
const MIN_BACKOFF: Duration = Duration::from_millis(1);
const MAX_BACKOFF: Duration = Duration::from_millis(20);

/// Parameters of the wait.
#[derive(Debug, Clone)]
pub struct Wait {
    /// URL of the readiness endpoint.
    pub url: Url,
    /// Timeout of the whole wait.
    pub timeout: Duration,
    /// Timeout of a single request.
    pub request_timeout: Duration,
    /// Maximum time between two requests.
    pub period: Duration,
}

/// The sidecar did not become ready.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar is not ready after {} s: {last}", timeout.as_secs_f64())]
pub struct NotReady {
    timeout: Duration,
    last: String,
}

impl Wait {
    /// Returns when the sidecar is ready.
    pub fn run(&self) -> Result<(), NotReady> {
        let until = Instant::now() + self.timeout;
        let mut refused = MIN_BACKOFF;
        let (mut last, mut answered) = ("it was never asked".to_owned(), false);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NotReady {
                    timeout: self.timeout,
                    last,
                });
            }
            let asked = self.ask(left);
            let pause = match &asked {
                Ok(reply) if reply.status == 200 => return Ok(()),
                Ok(reply) if reply.header(WAITED_HEADER).is_some() => Duration::ZERO,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let pause = refused;
                    refused = (refused * 2).min(MAX_BACKOFF);
                    pause.min(self.period)
                }
                _ => self.period,
            };
            // The last attempt has little time left; an earlier response says more than its timeout.
            let silent = matches!(&asked, Err(error) if error.kind() == io::ErrorKind::TimedOut);
            if !silent || !answered {
                last = describe(&asked);
            }
            answered |= asked.is_ok();
            // There is no event for another process starting to listen, so the only option is to sleep.
            let end = (Instant::now() + pause).min(until);
            while let Some(left) = end
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
            {
                std::thread::park_timeout(left);
            }
        }
    }

    fn ask(&self, left: Duration) -> io::Result<Reply> {
        let patience = self.request_timeout.min(left);
        // A little less than our own patience, so that the answer is one and not a broken connection.
        let wait = patience.mul_f64(0.9).as_millis();
        let mark = if self.url.path.contains('?') { '&' } else { '?' };
        let url = Url {
            path: format!("{}{mark}wait={wait}", self.url.path),
            ..self.url.clone()
        };
        client::exchange(&url, "GET", b"", patience)
    }
}

/// What is missing, in words.
fn describe(asked: &io::Result<Reply>) -> String {
    let reply = match asked {
        Ok(reply) => reply,
        Err(error) => return format!("ask for its readiness: {error}"),
    };
    let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let Some(reason) = answer["reason"].as_str() else {
        return format!("its readiness is answered with status {}", reply.status);
    };
    let mut text = reason.to_owned();
    for (stage, why) in answer["trouble"].as_object().into_iter().flatten() {
        let why = why.as_str().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = write!(text, "; {stage}: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Wait;
    use crate::client::Url;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    fn wait(port: u16, timeout: Duration) -> Wait {
        Wait {
            url: Url::local(port, "/healthz/ready"),
            timeout,
            request_timeout: Duration::from_millis(500),
            period: Duration::from_secs(30),
        }
    }

    /// Answers one request after the other, then nothing.
    fn server(answers: Vec<String>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        port
    }

    fn answer(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn a_server_that_waits_is_asked_again_at_once() {
        let waited = answer("503 x\r\nremora-waited: true", "{}");
        let port = server(vec![waited.clone(), waited, answer("200 OK", "")]);
        let started = Instant::now();
        wait(port, Duration::from_mins(1)).run().unwrap();
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "not a period was waited"
        );
    }

    #[test]
    fn a_failing_wait_says_which_stage_is_missing() {
        let body = r#"{"reason":"waiting for certificate","trouble":{"certificate":"refused"}}"#;
        let port = server(vec![answer("503 x", body)]);
        let error = wait(port, Duration::from_millis(100)).run().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the sidecar is not ready after 0.1 s: waiting for certificate; certificate: refused"
        );
    }

    #[test]
    fn nobody_there_is_said() {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let error = wait(port, Duration::from_millis(50)).run().unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
