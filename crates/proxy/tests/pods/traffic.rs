//! Bytes arrive, ends are ends and resets are resets.

use crate::scene::{MESH, PATIENCE, Scene, echo, exchange, service};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;

#[test]
fn a_service_is_reached_through_the_tunnel_in_both_families() {
    let scene = Scene::new();
    let (seen, callers) = channel();
    scene.serve(8080, move |stream: TcpStream| {
        seen.send(stream.peer_addr().unwrap()).unwrap();
        echo(stream);
    });
    for ipv6 in [false, true] {
        let mut stream = scene.connect(service(ipv6));
        exchange(&mut stream, b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(
            stream.read(&mut [0; 8]).unwrap(),
            0,
            "the end of the stream arrives"
        );
        let caller = callers.recv_timeout(PATIENCE).unwrap();
        let expected = if ipv6 { "::6" } else { "127.0.0.6" };
        assert_eq!(
            caller.ip().to_string(),
            expected,
            "the application sees the proxy's address"
        );
        let (out, back) = (scene.client.record(), scene.server.record());
        assert_eq!((out.forward, out.backward, out.error.as_deref()), (5, 5, None));
        assert_eq!((back.forward, back.backward, back.error.as_deref()), (5, 5, None));
        assert_eq!(out.service.as_deref(), Some("cart.shop.svc.cluster.local"));
        assert_eq!(
            out.destination_id.unwrap().as_str(),
            "spiffe://td/ns/shop/sa/cart"
        );
        assert_eq!(back.source_id.unwrap().as_str(), "spiffe://td/ns/shop/sa/web");
        assert_eq!(back.destination.port(), 8080);
    }
}

#[test]
fn a_workload_is_reached_by_its_own_address_too() {
    let scene = Scene::new();
    scene.serve(9000, echo);
    let mut stream = scene.connect(SocketAddr::new(scene.lab.eth0.peer(false), 9000));
    exchange(&mut stream, b"direct").unwrap();
    drop(stream);
    assert!(
        scene.server.record().source_id.is_some(),
        "through the tunnel, not plain"
    );
}

#[test]
fn what_is_not_of_the_mesh_passes_untouched() {
    let scene = Scene::with(&MESH.replace("tunnel: hbone", "tunnel: none"));
    // Nothing captures inbound connections of this address.
    remora_testkit::answer_for_everyone(&scene.lab.peer, 7000);
    scene.serve(7000, echo);
    let mut stream = scene.connect("192.0.2.1:443".parse().unwrap());
    exchange(&mut stream, b"plain").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    let record = scene.client.record();
    assert_eq!(record.destination.to_string(), "192.0.2.1:443");
    assert_eq!((record.destination_id, record.error), (None, None));
}

#[test]
fn half_a_close_leaves_the_other_half_open() {
    let scene = Scene::new();
    scene.serve(8080, |mut stream: TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream
            .write_all(format!("{} bytes", all.len()).as_bytes())
            .unwrap();
    });
    let mut stream = scene.connect(service(false));
    stream.write_all(&vec![7; 100_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "100000 bytes");
    assert_eq!(scene.client.record().error, None);
}

#[test]
fn a_reset_of_the_server_is_a_reset_at_the_client() {
    let scene = Scene::new();
    scene.serve(8080, |mut stream: TcpStream| {
        stream.write_all(b"half of the ans").unwrap();
        let mut word = [0; 2];
        stream.read_exact(&mut word).unwrap();
        // Closing with bytes unread is a reset.
        stream.write_all(b"w").unwrap();
        drop(stream);
    });
    let mut stream = scene.connect(service(false));
    let mut start = [0; 15];
    stream.read_exact(&mut start).unwrap();
    // More than it reads, so that bytes are left when it closes.
    stream.write_all(&[1; 4096]).unwrap();
    let mut rest = Vec::new();
    let error = stream.read_to_end(&mut rest).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::ConnectionReset,
        "a truncated answer must not look complete"
    );
    assert!(scene.client.record().error.unwrap().contains("reset"));
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once() {
    let scene = Scene::new();
    scene.serve(8080, |mut stream: TcpStream| {
        stream.write_all(b"220 ready").unwrap();
        echo(stream);
    });
    let mut stream = scene.connect(service(false));
    let mut greeting = [0; 9];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"220 ready");
    exchange(&mut stream, b"HELO").unwrap();
}

fn pattern(place: usize) -> u8 {
    u8::try_from(place % 251).unwrap()
}

#[test]
fn many_bytes_arrive_in_order_whatever_their_portions() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let stream = scene.connect(service(false));
    let mut writer = stream.try_clone().unwrap();
    let total: usize = 24 << 20;
    let sending = std::thread::spawn(move || {
        let mut sent = 0;
        let mut portion = 1;
        while sent < total {
            let now = portion.min(total - sent);
            let bytes: Vec<u8> = (sent..sent + now).map(pattern).collect();
            writer.write_all(&bytes).unwrap();
            sent += now;
            portion = if portion > 200_000 { 1 } else { portion * 3 };
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut reader = std::io::BufReader::new(stream);
    let mut buffer = vec![0; 100_000];
    let mut heard = 0;
    loop {
        let now = reader.read(&mut buffer).unwrap();
        if now == 0 {
            break;
        }
        for byte in &buffer[..now] {
            assert_eq!(*byte, pattern(heard), "at {heard}");
            heard += 1;
        }
    }
    sending.join().unwrap();
    assert_eq!(heard, total);
}

#[test]
fn a_closed_port_and_a_service_without_workloads_fail_quickly() {
    let scene = Scene::new();
    // Nobody listens on 8080. The connection is captured, so it opens, and is reset then.
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    assert!(scene.client.record().error.unwrap().contains("503"));
    scene
        .client
        .learn(&MESH.replace("serviceAccount: cart", "serviceAccount: cart\nhealthy: false"));
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    assert!(
        scene
            .client
            .record()
            .error
            .unwrap()
            .contains("no healthy workload")
    );
}

#[test]
fn ports_of_proxies_cannot_be_called_through_them() {
    let scene = Scene::new();
    for port in [15001, 15006, 15008] {
        let to = SocketAddr::new(scene.lab.eth0.peer(false), port);
        assert_eq!(scene.failure(to), ErrorKind::ConnectionReset);
        assert!(scene.client.record().error.unwrap().contains("port of proxies"));
    }
}
