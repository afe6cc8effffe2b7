use super::{decoded, is_meant, query};
use http::Request;

#[test]
fn words_of_a_query_are_read() {
    let request = Request::get("/why?src=10.0.0.1&dst=%5Bfd00%3A%3A1%5D:80&empty=&odd=%zz%4").body(());
    let request = request.unwrap();
    assert_eq!(query(&request, "src"), "10.0.0.1");
    assert_eq!(query(&request, "dst"), "[fd00::1]:80");
    assert_eq!(query(&request, "empty"), "");
    assert_eq!(query(&request, "nothing"), "");
    assert_eq!(query(&request, "odd"), "%zz%4");
    assert_eq!(decoded("%ff%41"), "\u{fffd}A");
}

#[test]
fn only_names_of_the_same_host_are_meant() {
    let asked = |host: Option<&str>| {
        let mut request = Request::get("/");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        is_meant(&request.body(()).unwrap())
    };
    for host in [
        None,
        Some("localhost:15000"),
        Some("127.0.0.1"),
        Some("[::1]:15000"),
        Some("LOCALHOST"),
    ] {
        assert!(asked(host), "{host:?}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "10.0.0.1:15000",
        "",
        "a b",
    ] {
        assert!(!asked(Some(host)), "{host:?}");
    }
}
