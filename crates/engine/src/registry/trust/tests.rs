use super::*;

fn origin(text: &str) -> Origin {
    Origin::of(&text.parse().unwrap()).unwrap()
}

fn bearer(realm: &str) -> Challenge {
    Challenge::Bearer {
        realm: realm.to_owned(),
        service: None,
        scope: None,
    }
}

const NOT_NAMED: Plain<'static> = Plain { insecure: &[] };

#[test]
fn origins_differ_in_scheme_host_and_port() {
    assert_eq!(origin("https://A.example/x"), origin("https://a.example:443/y"));
    assert_eq!(origin("http://a.example"), origin("http://a.example:80"));
    for other in [
        "http://a.example",
        "https://a.example:444",
        "https://b.example",
        "https://a.example.b",
    ] {
        assert_ne!(origin("https://a.example"), origin(other), "{other}");
    }
    for (text, shown) in [
        ("https://a.example:443/x", "https://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("http://[::1]:5000/", "http://[::1]:5000"),
    ] {
        assert_eq!(origin(text).to_string(), shown);
    }
    for bad in [
        "ftp://a.example",
        "https://me@a.example",
        "/path",
        "https://a.example:0",
        "https://a.example:70000",
    ] {
        assert_eq!(bad.parse().ok().as_ref().and_then(Origin::of), None, "{bad}");
    }
}

#[test]
fn plain_http_only_where_the_operator_allowed_it() {
    let insecure = ["lab.example:5000".to_owned(), "old.example".to_owned()];
    let plain = Plain { insecure: &insecure };
    for (host, allowed) in [
        ("127.0.0.1:5000", true),
        ("127.9.9.9", true),
        ("[::1]:5000", true),
        ("localhost:5000", true),
        ("lab.example:5000", true),
        ("old.example", true),
        ("lab.example", false),
        ("lab.example:5001", false),
        ("old.example:8080", false),
        ("localhost.example", false),
        ("10.0.0.1", false),
        ("", false),
    ] {
        assert_eq!(plain.allows(host), allowed, "{host}");
    }
}

#[test]
fn redirects_never_take_protection_away() {
    let insecure = ["lab.example:5000".to_owned()];
    let plain = Plain { insecure: &insecure };
    for (from, to, allowed) in [
        ("https://a.example", "https://b.example", true),
        ("https://a.example", "http://a.example", false),
        ("https://a.example", "http://lab.example:5000", false),
        ("https://a.example", "http://127.0.0.1", false),
        ("http://127.0.0.1:5000", "https://b.example", true),
        ("http://127.0.0.1:5000", "http://127.0.0.1:6000", true),
        ("http://127.0.0.1:5000", "http://b.example", false),
        ("http://127.0.0.1:5000", "http://lab.example:5000", true),
        ("http://lab.example:5000", "http://127.0.0.1:6000", false),
        ("http://lab.example:5000", "http://lab.example:5001", false),
        // A mirror that is written with http:// stays usable.
        ("http://mirror.example", "http://mirror.example", true),
    ] {
        let result = plain.leads(&origin(from), &origin(to));
        assert_eq!(result.is_ok(), allowed, "{from} {to} {result:?}");
    }
}

#[test]
fn only_the_registry_itself_is_given_an_answer() {
    let home = origin("https://registry.example");
    let challenge = bearer("https://auth.example/token?x=1");
    let here = Answered::at_home(&home);
    let token = Decision::Token("https://auth.example/token?x=1".parse().unwrap());
    assert_eq!(decide(&home, &here, &challenge, NOT_NAMED), Ok(token));
    assert_eq!(
        decide(&home, &here, &Challenge::Basic, NOT_NAMED),
        Ok(Decision::Basic)
    );
    let mut same = here.clone();
    same.moved(home.clone());
    assert_eq!(
        decide(&home, &same, &Challenge::Basic, NOT_NAMED),
        Ok(Decision::Basic)
    );
    let mut away = here.clone();
    away.moved(origin("https://other.example"));
    let mut back = away.clone();
    back.moved(home.clone());
    let stranger = Answered::at_home(&origin("https://registry.example:8443"));
    for answered in [away, back, stranger] {
        for challenge in [&challenge, &Challenge::Basic] {
            let refused = decide(&home, &answered, challenge, NOT_NAMED).unwrap_err();
            assert!(
                refused.contains("https://registry.example are not sent"),
                "{refused}"
            );
        }
    }
}

#[test]
fn a_realm_is_as_protected_as_the_registry() {
    let secure = origin("https://registry.example");
    let local = origin("http://localhost:5000");
    for (home, realm, allowed) in [
        (&secure, "https://auth.example/token", true),
        (&secure, "http://registry.example/token", false),
        (&secure, "http://localhost/token", false),
        (&secure, "ftp://auth.example/token", false),
        (&secure, "https://me@auth.example/token", false),
        (&secure, "/token", false),
        (&secure, "", false),
        (&local, "http://localhost:5000/token", true),
        (&local, "http://127.0.0.1:5001/token", true),
        (&local, "http://auth.example/token", false),
        (&local, "https://auth.example/token", true),
    ] {
        let result = decide(home, &Answered::at_home(home), &bearer(realm), NOT_NAMED);
        assert_eq!(result.is_ok(), allowed, "{home} {realm} {result:?}");
    }
}
