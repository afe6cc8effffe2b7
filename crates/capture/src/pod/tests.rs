use super::*;
use crate::options::{HostFacts, Settings};
use serde_json::json;

fn value_of<'a>(given: &'a [Given], option: &str) -> &'a str {
    given
        .iter()
        .rev()
        .find(|given| given.option == option)
        .map_or("", |given| &given.value)
}

#[test]
fn an_init_container_says_it_by_its_arguments() {
    let pod = json!({"spec": {"containers": [], "initContainers": [
        {"name": "first", "args": ["something", "-p", "1"]},
        {"name": "istio-init", "args": ["istio-iptables", "-p", "15001", "-b", "*", "-x", "", "--log_output_level=all:debug"]},
    ]}});
    let (how, given) = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::InitContainer("istio-init".into()));
    assert_eq!(value_of(&given, "istio-inbound-ports"), "*");
    let classic = json!({"spec": {"template": {"spec": {"containers": [], "initContainers": [
        {"name": "istio-init", "command": ["/usr/local/bin/istio-iptables", "-p", "15009"]},
    ]}}}});
    assert_eq!(value_of(&options(&classic).unwrap().1, "envoy-port"), "15009");
    let broken = json!({"spec": {"containers": [], "initContainers": [{"name": "i", "args": ["istio-iptables", "--what"]}]}});
    assert!(matches!(options(&broken), Err(PodError::Arguments { container, .. }) if container == "i"));
}

/// What stands behind `--` is the sidecar's.
#[test]
fn a_sidecar_that_captures_says_it_by_its_arguments() {
    let pod = json!({"spec": {"containers": [], "initContainers": [{"name": "istio-proxy", "restartPolicy": "Always",
        "args": ["istio-iptables", "-p", "15009", "--", "proxy", "sidecar", "--domain", "x"]}]}});
    let (how, given) = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::InitContainer("istio-proxy".into()));
    assert_eq!((value_of(&given, "envoy-port"), given.len()), ("15009", 1));
}

#[test]
fn annotations_say_it_otherwise() {
    let pod = json!({
        "metadata": {"annotations": {
            "traffic.sidecar.istio.io/excludeInboundPorts": "9090,15021",
            "traffic.sidecar.istio.io/kubevirtInterfaces": "tap0",
            "sidecar.istio.io/interceptionMode": "TPROXY",
        }},
        "spec": {"containers": [{
            "name": "istio-proxy",
            "securityContext": {"runAsUser": 5, "runAsGroup": 0},
            "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}, {"name": "INVALID_DROP", "valueFrom": {}}],
        }]},
    });
    let (how, given) = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::Annotations);
    assert_eq!(
        value_of(&given, "istio-local-exclude-ports"),
        "9090,15021,15020,15090"
    );
    assert_eq!(value_of(&given, "istio-service-cidr"), "*");
    assert_eq!(value_of(&given, "kube-virt-interfaces"), "tap0");
    assert_eq!(
        (value_of(&given, "proxy-uid"), value_of(&given, "proxy-gid")),
        ("5", "1337")
    );
    assert_eq!(value_of(&given, "capture-all-dns"), "true");
    assert_eq!(value_of(&given, "drop-invalid"), "");
    let settings = Settings::read(&given, &std::collections::BTreeMap::new()).unwrap();
    assert_eq!(
        settings.intent(&HostFacts::default()).0.mode,
        crate::intent::Mode::Tproxy
    );
}

#[test]
fn a_bad_annotation_is_named() {
    let pod = json!({
        "metadata": {"annotations": {"traffic.sidecar.istio.io/includeOutboundIPRanges": "everything"}},
        "spec": {"containers": []},
    });
    let (_, given) = options(&pod).unwrap();
    let error = Settings::read(&given, &std::collections::BTreeMap::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("annotation traffic.sidecar.istio.io/includeOutboundIPRanges: \"everything\""),
        "{error}"
    );
}

#[test]
fn other_objects_are_no_pods() {
    assert_eq!(options(&json!({"kind": "Service"})), Err(PodError::NotAPod));
    assert_eq!(options(&json!(null)), Err(PodError::NotAPod));
}
