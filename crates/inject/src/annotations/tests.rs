use super::{check, unknown};
use crate::names::annotation as name;
use serde_json::{Value, json};

fn pod(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn accepts(key: &str, value: &str) -> bool {
    check(&pod(key, value)).is_empty()
}

#[test]
fn values_are_judged() {
    let cases = [
        (
            name::PROXY_CPU,
            vec!["100m", "2", "1Gi"],
            vec!["", "abc", "100m\n", "1\u{0}"],
        ),
        (
            name::STATUS_PORT,
            vec!["0", "15020"],
            vec!["", "65536", "-1", "15020;reboot"],
        ),
        (
            name::INCLUDE_OUT_RANGES,
            vec!["*", "", "10.0.0.0/8,fd00::/8"],
            vec!["10.0.0.0", "*,10.0.0.0/8", "10.0.0.0/33"],
        ),
        (
            name::EXCLUDE_OUT_RANGES,
            vec!["", "10.0.0.0/8"],
            vec!["*", "10.0.0.0/8;"],
        ),
        (
            name::EXCLUDE_IN_PORTS,
            vec!["", "80, 443", "0"],
            vec!["*", "http", "80,,81", "65536"],
        ),
        (
            name::INCLUDE_OUT_PORTS,
            vec!["*", "80"],
            vec!["80\n--force", "$(x)"],
        ),
        (
            name::EXCLUDE_INTERFACES,
            vec!["eth0", "net1,net2.100"],
            vec!["", "0eth", "averyverylongname", "a;b"],
        ),
        (
            name::INTERCEPTION_MODE,
            vec!["REDIRECT", "TPROXY", "NONE"],
            vec!["redirect", ""],
        ),
        (
            name::LOG_LEVEL,
            vec!["warning", "misc:error,http:debug"],
            vec!["a b", "x\ny", "\"; rm"],
        ),
        (
            name::PROXY_IMAGE,
            vec!["docker.io/a/b:1", "proxy"],
            vec!["a b", "x\n- image: y"],
        ),
        (
            name::USER_VOLUME,
            vec!["{\"a\":{\"emptyDir\":{}}}", "[{\"name\":\"a\"}]"],
            vec!["{", "{\"a\":1}", "3"],
        ),
        (name::OVERRIDES, vec!["{}"], vec!["[]", "{"]),
        (
            name::READINESS_PERIOD,
            vec!["0", "15"],
            vec!["-1", "1.5", "4294967296"],
        ),
        (
            "remora.dev/network.migrate",
            vec!["direct", "mesh", "none"],
            vec!["", "Mesh"],
        ),
        ("remora.dev/start-after.app", vec!["db", "a, b"], vec!["", "A b"]),
    ];
    for (key, good, bad) in cases {
        for value in good {
            assert!(accepts(key, value), "{key}: {value:?} is right");
        }
        for value in bad {
            assert!(!accepts(key, value), "{key}: {value:?} is wrong");
        }
    }
}

#[test]
fn a_megabyte_is_refused_and_the_message_stays_short() {
    let errors = check(&pod(name::PROXY_CONFIG, &"x".repeat(1 << 20)));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().len() < 300, "{}", errors[0]);
}

#[test]
fn values_that_are_no_text_are_refused() {
    let pod = json!({"metadata": {"annotations": {name::STATUS_PORT: 15020}}});
    assert!(check(&pod)[0].to_string().contains("put the value in quotes"));
}

#[test]
fn typing_errors_get_a_suggestion() {
    let said = |key: &str| {
        let mut warnings = Vec::new();
        unknown(&pod(key, "x"), &mut warnings);
        warnings
            .into_iter()
            .map(|w| w.text)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(
        said("traffic.sidecar.istio.io/excludeOutboundPort")
            .contains("did you mean traffic.sidecar.istio.io/excludeOutboundPorts?")
    );
    assert!(said("sidecar.istio.io/somethingElseEntirely").contains("does nothing"));
    assert_eq!(said("sidecar.istio.io/inject"), "");
    assert_eq!(said("example.com/sidecar.istio.io"), "");
    assert!(said("remora.dev/netwrk.app").contains("not known"));
}
