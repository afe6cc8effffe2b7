use super::{A, AAAA, Code, NoQuery, Query, is_failure, is_truncated, name_exists, wrong};
use std::net::IpAddr;

/// A question as resolvers write it; with a size, with extensions.
fn question(name: &str, kind: u16, size: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![
        0x12,
        0x34,
        0x01,
        0x00,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        u8::from(size.is_some()),
    ];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    if let Some(size) = size {
        bytes.extend([0, 0, 41]);
        bytes.extend(size.to_be_bytes());
        bytes.extend([0; 6]);
    }
    bytes
}

#[test]
fn a_question_is_read() {
    let bytes = question("Cart.Shop.example", AAAA, Some(1232));
    let query = Query::read(&bytes).unwrap();
    assert_eq!(query.name(), Some("cart.shop.example"));
    assert_eq!((query.kind, query.class), (AAAA, 1));
    assert_eq!(query.datagram(), 1232);
    for (size, limit) in [(None, 512), (Some(100), 512), (Some(65_535), 4096)] {
        assert_eq!(Query::read(&question("a.b", A, size)).unwrap().datagram(), limit);
    }
    assert_eq!(Query::read(&question("", A, None)).unwrap().name(), None);
    assert_eq!(Query::read(&question("a b.c", A, None)).unwrap().name(), None);
    assert_eq!(Query::read(&question("*.c", A, None)).unwrap().name(), None);
}

#[test]
fn what_is_no_question_is_refused_or_met_with_silence() {
    let good = question("a.b", A, Some(1232));
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Query::read(&bytes).unwrap_err()
    };
    assert_eq!(changed(2, 0x81), NoQuery::Silence, "an answer is not answered");
    assert_eq!(changed(2, 0x28), NoQuery::Wrong(Code::NotImplemented));
    assert_eq!(changed(5, 2), NoQuery::Wrong(Code::FormatError));
    assert_eq!(changed(5, 0), NoQuery::Wrong(Code::FormatError));
    assert_eq!(changed(12, 0xc0), NoQuery::Wrong(Code::FormatError), "a pointer");
    assert_eq!(changed(12, 64), NoQuery::Wrong(Code::FormatError));
    assert_eq!(
        changed(11, 2),
        NoQuery::Wrong(Code::FormatError),
        "a record is missing"
    );
    let version = good.len() - 5;
    assert_eq!(changed(version, 1), NoQuery::Wrong(Code::BadVersion));
    for length in 0..good.len() {
        let error = Query::read(&good[..length]).unwrap_err();
        let expected = if length < 12 {
            NoQuery::Silence
        } else {
            NoQuery::Wrong(Code::FormatError)
        };
        assert_eq!(error, expected, "{length} bytes");
    }
    let long = vec!["x".repeat(63); 4].join(".");
    assert!(
        Query::read(&question(&long, A, None)).is_err(),
        "257 bytes of name"
    );
    let most = format!(
        "{}.{}",
        ["x".repeat(63), "x".repeat(63), "x".repeat(63)].join("."),
        "x".repeat(61)
    );
    assert!(
        Query::read(&question(&most, A, None)).is_ok(),
        "255 bytes of name"
    );
    assert_eq!(
        wrong(&good, Code::FormatError).unwrap(),
        [0x12, 0x34, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let version = wrong(&good, Code::BadVersion).unwrap();
    assert_eq!(version[3] & 15, 0);
    assert_eq!(&version[12..], [0, 0, 41, 0x10, 0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn addresses_are_written_as_resolvers_read_them() {
    let bytes = question("a.b", A, None);
    let query = Query::read(&bytes).unwrap();
    let answer = query.addresses(None, &["10.0.0.1".parse().unwrap()], 512);
    let mut expected = bytes.clone();
    expected[2..8].copy_from_slice(&[0x85, 0x80, 0, 1, 0, 1]);
    expected.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 0, 0, 1]);
    assert_eq!(answer, expected);

    let bytes = question("a.b.c", AAAA, Some(1232));
    let query = Query::read(&bytes).unwrap();
    let answer = query.addresses(Some("a.b"), &["fd00::1".parse().unwrap()], 1232);
    let start = bytes.len() - 11;
    let mut expected = vec![0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 30, 0, 5, 1, b'a', 1, b'b', 0];
    let target = u8::try_from(start + 12).unwrap();
    expected.extend([0xc0, target, 0, 28, 0, 1, 0, 0, 0, 30, 0, 16]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&answer[start..], expected);
    assert_eq!(&answer[6..12], [0, 2, 0, 0, 0, 1]);

    let empty = query.addresses(None, &[], 512);
    assert_eq!(&empty[2..8], [0x85, 0x80, 0, 1, 0, 0], "no error and no records");
}

#[test]
fn an_answer_that_is_too_long_is_cut_and_says_so() {
    let addresses: Vec<IpAddr> = (0..100).map(|n| IpAddr::from([10, 0, 0, n])).collect();
    for (size, limit) in [(None, 512), (Some(1232), 1232), (Some(4096), 4096)] {
        let bytes = question("a.b", A, size);
        let query = Query::read(&bytes).unwrap();
        let answer = query.addresses(None, &addresses, query.datagram());
        assert!(
            answer.len() <= limit && answer.len() > limit.min(1632) - 30,
            "{}",
            answer.len()
        );
        assert_eq!(is_truncated(&answer), limit < 1700);
        let whole = query.addresses(None, &addresses, super::LARGEST);
        assert!(!is_truncated(&whole) && whole[7] == 100);
    }
    let long = format!("{}.{}.{}", "x".repeat(63), "y".repeat(63), "z".repeat(63));
    let bytes = question(&format!("{long}.search"), A, None);
    let query = Query::read(&bytes).unwrap();
    let answer = query.addresses(Some(&long), &addresses, 400);
    assert!(answer.len() <= 400 && is_truncated(&answer));
    assert_eq!(answer[7], 11, "addresses of the name itself, as many as fit");
}

#[test]
fn only_the_answer_to_the_question_counts() {
    let bytes = question("Cart.example", A, Some(65_535));
    let query = Query::read(&bytes).unwrap();
    let sent = query.forwarded(0x5678);
    assert_eq!(&sent[..2], [0x56, 0x78]);
    assert_eq!(Query::read(&sent).unwrap().datagram(), 4096);
    assert_eq!(
        sent[sent.len() - 8..sent.len() - 6],
        [0x10, 0],
        "not more than there is room for"
    );
    let good = Query::read(&sent)
        .unwrap()
        .addresses(None, &["10.0.0.1".parse().unwrap()], 512);
    assert!(query.is_answered_by(0x5678, &good));
    assert!(!query.is_answered_by(0x5679, &good));
    assert!(!query.is_answered_by(0x5678, &sent), "a question is no answer");
    let other = question("cart.example", AAAA, None);
    let other = Query::read(&other).unwrap().code(Code::NoError);
    assert!(!query.is_answered_by(0x1234, &other), "another type");
    let small = question("cart.example", A, None);
    assert!(query.is_answered_by(0x1234, &Query::read(&small).unwrap().code(Code::NoSuchName)));
    let another = question("cart.exampla", A, None);
    assert!(!query.is_answered_by(0x1234, &Query::read(&another).unwrap().code(Code::NoError)));
    assert!(query.is_answered_by(0x1234, &wrong(&bytes, Code::FormatError).unwrap()));
    assert!(!query.is_answered_by(0x1234, &wrong(&bytes, Code::NoError).unwrap()));
    let mut answer = good;
    query.renumber(&mut answer);
    assert_eq!(&answer[..2], [0x12, 0x34]);
}

#[test]
fn a_name_that_exists_has_no_records_rather_than_no_existence() {
    let bytes = question("a.b", 16, None);
    let query = Query::read(&bytes).unwrap();
    let mut missing = query.code(Code::NoSuchName);
    name_exists(&mut missing);
    assert_eq!(missing, query.code(Code::NoError));
    let mut failed = query.code(Code::ServerFailure);
    assert!(is_failure(&failed) && !is_failure(&missing));
    name_exists(&mut failed);
    assert!(is_failure(&failed));
}
