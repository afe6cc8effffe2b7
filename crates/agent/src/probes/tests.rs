use super::{Origin, Prober, Probes, ProbesError};
use crate::http::Answer;
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const PATH: &str = "/app-health/web/readyz";

/// Request heads that an application received.
type Heads = Arc<Mutex<Vec<String>>>;

/// An application that answers each connection with the next text.
async fn application(answers: &'static [&'static str]) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Heads::default();
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, from) = listener.accept().await.unwrap();
            assert_eq!(
                from.ip(),
                IpAddr::from([127, 0, 0, 6]),
                "known by the capture rules"
            );
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap().into());
            }
            seen.lock().unwrap().push(head.to_lowercase());
            let answer = answer.replace("PORT", &port.to_string());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (port, heads)
}

async fn ask(probe: &str, headers: &[(&'static str, &str)]) -> (u16, String) {
    ask_as(Origin::Kubelet, probe, headers).await
}

async fn ask_as(origin: Origin, probe: &str, headers: &[(&'static str, &str)]) -> (u16, String) {
    let all = Probes::parse(&format!("{{\"{PATH}\":{probe}}}")).unwrap();
    let prober = Prober::new(all, IpAddr::from([127, 0, 0, 1]));
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        all.insert(*name, value.parse().unwrap());
    }
    body(prober.answer(PATH, &all, origin).await).await
}

async fn body(answer: Answer) -> (u16, String) {
    let status = answer.status().as_u16();
    let bytes: Bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[test]
fn probes_are_read_whole_or_not_at_all() {
    let parse = |text: &str| Probes::parse(text).map(|_| ());
    assert_eq!(parse("{}"), Ok(()));
    assert_eq!(parse("[]"), Err(ProbesError::Json));
    for path in [
        "/x/web/livez",
        "/app-health/web",
        "/app-health//livez",
        "/app-health/web/other",
    ] {
        let text = format!(r#"{{"{path}":{{"tcpSocket":{{"port":1}}}}}}"#);
        assert_eq!(parse(&text), Err(ProbesError::Path(path.to_owned())));
    }
    for (probe, why) in [
        ("{}", "must have exactly one of httpGet, tcpSocket and grpc"),
        (
            r#"{"tcpSocket":{"port":1},"grpc":{"port":1}}"#,
            "must have exactly one of httpGet, tcpSocket and grpc",
        ),
        (r#"{"tcpSocket":{"port":"http"}}"#, "has no port that is a number"),
    ] {
        let expected = ProbesError::Probe {
            path: PATH.to_owned(),
            why,
        };
        assert_eq!(parse(&format!("{{\"{PATH}\":{probe}}}")), Err(expected));
    }
}

#[tokio::test]
async fn the_application_sees_the_kubelets_request() {
    let (port, heads) = application(&["HTTP/1.1 418 x\r\ncontent-length: 3\r\n\r\nabc"]).await;
    let probe = format!(
        r#"{{"httpGet":{{"path":"health?x=1","port":{port},"httpHeaders":[{{"name":"X-Own","value":"1"}}]}}}}"#
    );
    let headers = [
        ("user-agent", "kube-probe/1.37"),
        ("accept", "*/*"),
        ("host", "10.1.0.2:15020"),
        ("x-own", "0"),
    ];
    assert_eq!(ask(&probe, &headers).await, (418, String::new()));
    let head = heads.lock().unwrap()[0].clone();
    for part in [
        "get /health?x=1 http/1.1\r\n",
        &format!("host: 127.0.0.1:{port}\r\n"),
        "user-agent: kube-probe/1.37\r\n",
        "accept: */*\r\n",
        "x-own: 1\r\n",
        "connection: close\r\n",
    ] {
        assert!(head.contains(part), "{part:?} in {head}");
    }
}

/// Otherwise a client could bypass authorization policies and send data to the application.
#[tokio::test]
async fn no_header_of_a_client_reaches_the_application_and_no_body_comes_back() {
    const ANSWER: &str = "HTTP/1.1 200 x\r\ncontent-type: text/secret\r\ncontent-length: 6\r\n\r\nsecret";
    let headers = [
        ("authorization", "stolen"),
        ("x-evil", "hostile"),
        ("cookie", "a=b"),
        ("host", "admin.local"),
    ];
    for origin in [Origin::Kubelet, Origin::Other(IpAddr::from([10, 0, 0, 9]))] {
        let (port, heads) = application(&[ANSWER]).await;
        let probe = format!(r#"{{"httpGet":{{"path":"/","port":{port}}}}}"#);
        assert_eq!(ask_as(origin, &probe, &headers).await, (200, String::new()));
        let head = heads.lock().unwrap()[0].clone();
        for (name, value) in headers {
            assert!(
                !head.contains(value) && (name == "host" || !head.contains(name)),
                "{name} in {head}"
            );
        }
    }
}

/// Clients other than the kubelet have a separate limit, so that they cannot use up the kubelet's.
#[tokio::test]
async fn the_kubelets_probe_is_answered_while_other_clients_hold_probes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = format!(r#"{{"httpGet":{{"path":"/","port":{port}}}}}"#);
    let all = Probes::parse(&format!("{{\"{PATH}\":{probe}}}")).unwrap();
    let prober = Prober::new(all, IpAddr::from([127, 0, 0, 1]));
    let mut others = tokio::task::JoinSet::new();
    for last in 0..100 {
        let (prober, source) = (Arc::clone(&prober), IpAddr::from([10, 0, 0, last]));
        others.spawn(async move {
            let headers = HeaderMap::new();
            let answer = prober.answer(PATH, &headers, Origin::Other(source));
            answer.await.status().as_u16()
        });
    }
    // The application does not answer the clients that have a share; the others are refused.
    let mut silent = Vec::new();
    for _ in 0..super::MAX_OTHER_PROBES {
        silent.push(listener.accept().await.unwrap());
    }
    for _ in super::MAX_OTHER_PROBES..100 {
        assert_eq!(others.join_next().await.unwrap().unwrap(), 429);
    }
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap().into());
        }
        let answer = b"HTTP/1.1 200 x\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    });
    let kubelet = prober.answer(PATH, &HeaderMap::new(), Origin::Kubelet).await;
    assert_eq!(kubelet.status(), 200);
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let (port, heads) = application(&[
        "HTTP/1.1 302 x\r\nlocation: /second\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 301 x\r\nlocation: http://app.local:PORT/third\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 302 x\r\nlocation: http://other.local/\r\ncontent-length: 2\r\n\r\nok",
    ])
    .await;
    let probe = format!(
        r#"{{"httpGet":{{"path":"/","port":{port},"httpHeaders":[{{"name":"Host","value":"app.local:{port}"}}]}}}}"#
    );
    assert_eq!(ask(&probe, &[]).await, (200, String::new()));
    let heads = heads.lock().unwrap().clone();
    assert_eq!(heads.len(), 3);
    assert!(heads[2].starts_with("get /third ") && heads[2].contains(&format!("host: app.local:{port}\r\n")));
}

#[tokio::test]
async fn silence_ends_in_time_and_refusal_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let silent = format!(r#"{{"httpGet":{{"path":"/","port":{port}}},"timeoutSeconds":1}}"#);
    let (status, why) = ask(&silent, &[]).await;
    assert_eq!(status, 500);
    assert!(why.contains("no answer in 1 s"), "{why}");
    let tcp = format!(r#"{{"tcpSocket":{{"port":{port}}},"timeoutSeconds":1}}"#);
    assert_eq!(ask(&tcp, &[]).await.0, 200);
    drop(listener);
    assert_eq!(ask(&tcp, &[]).await.0, 500);
    let prober = Prober::new(Probes::default(), IpAddr::from([127, 0, 0, 1]));
    assert_eq!(
        prober
            .answer("/app-health/x/livez", &HeaderMap::new(), Origin::Kubelet)
            .await
            .status(),
        400
    );
}

/// A gRPC health service: its responses by service name.
async fn health() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((mut request, mut respond))) = connection.accept().await {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let asked = request.body_mut().data().await.unwrap().unwrap();
                    let serving = u8::from(asked.ends_with(b"good"));
                    let head = http::Response::builder().header("content-type", "application/grpc");
                    let mut send = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    send.send_data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, serving]), false)
                        .unwrap();
                    let mut trailers = HeaderMap::new();
                    let unknown = asked.ends_with(b"unknown");
                    trailers.insert("grpc-status", if unknown { "5" } else { "0" }.parse().unwrap());
                    send.send_trailers(trailers).unwrap();
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn grpc_services_are_well_only_when_they_say_so() {
    let port = health().await;
    for (service, expected) in [("good", 200), ("bad", 500), ("unknown", 500)] {
        let probe = format!(r#"{{"grpc":{{"port":{port},"service":"{service}"}}}}"#);
        let (status, why) = ask(&probe, &[]).await;
        assert_eq!(status, expected, "{service}: {why}");
    }
}

/// An HTTPS server with an untrusted certificate; its response names the HTTP version of the request.
async fn secure(versions: &[&[u8]]) -> u16 {
    let now = std::time::SystemTime::now();
    let life = std::time::Duration::from_hours(1);
    let authority = remora_mtls::Authority::generate("nobody", now, life).unwrap();
    let key = remora_mtls::PrivateKey::generate().unwrap();
    let own = authority
        .issue_server(&key, &["elsewhere.example".to_owned()], life, now)
        .unwrap();
    let mut config = remora_mtls::bootstrap_server(&own.leaf, &key).unwrap();
    config.alpn_protocols = versions.iter().map(|version| version.to_vec()).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let host = request.uri().authority().unwrap().to_string();
                let head = http::Response::builder().status(200).body(()).unwrap();
                let mut send = respond.send_response(head, false).unwrap();
                send.send_data(format!("h2 {host}").into(), true).unwrap();
            }
        } else {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap().into());
            }
            let answer = "HTTP/1.1 503 no\r\ncontent-length: 3\r\n\r\nold";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    port
}

#[tokio::test]
async fn https_is_asked_whoever_answers_in_the_best_version_it_has() {
    for (versions, expected) in [
        (&[b"h2".as_slice(), b"http/1.1"][..], 200),
        (&[b"http/1.1".as_slice()], 503),
        (&[], 503),
    ] {
        let port = secure(versions).await;
        let probe = format!(r#"{{"httpGet":{{"port":{port},"path":"/x","scheme":"HTTPS"}}}}"#);
        assert_eq!(ask(&probe, &[]).await.0, expected, "{versions:?}");
    }
}

#[tokio::test]
async fn of_a_long_answer_the_beginning_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap().into());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        // Endless body: the client must stop reading at its limit.
        while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
    });
    let probe = format!(r#"{{"httpGet":{{"port":{port}}}}}"#);
    assert_eq!(ask(&probe, &[]).await, (200, String::new()));
}

#[tokio::test]
async fn an_application_that_knows_no_older_version_is_asked_in_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // An HTTP/1 client is not understood.
                let Ok(mut connection) = h2::server::handshake(stream).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let head = http::Response::builder().status(418).body(()).unwrap();
                    let mut send = respond.send_response(head, false).unwrap();
                    send.send_data(request.uri().to_string().into(), true).unwrap();
                }
            });
        }
    });
    let probe = format!(r#"{{"httpGet":{{"port":{port},"path":"/x"}}}}"#);
    assert_eq!(ask(&probe, &[]).await.0, 418);
}
