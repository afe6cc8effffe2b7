use super::*;
use crate::dialect;
use crate::options::{HostFacts, Settings};
use serde_json::{Value, json};

fn options(document: &Value) -> Result<PodOptions, PodError> {
    super::options(&PodView::read(document), &dialect::ISTIO)
}

fn value_of(given: &[Given], option: Name) -> &str {
    given
        .iter()
        .rev()
        .find(|given| given.option == option)
        .map_or("", |given| &given.value)
}

#[test]
fn options_are_read_from_the_arguments_of_an_init_container() {
    let pod = json!({"spec": {"containers": [], "initContainers": [
        {"name": "first", "args": ["something", "-p", "1"]},
        {"name": "istio-init", "args": ["istio-iptables", "-p", "15001", "-b", "*", "-x", "", "--log_output_level=all:debug"]},
    ]}});
    let PodOptions { by: how, given, .. } = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::InitContainer("istio-init".into()));
    assert_eq!(value_of(&given, Name::IstioInboundPorts), "*");
    let classic = json!({"spec": {"template": {"spec": {"containers": [], "initContainers": [
        {"name": "istio-init", "command": ["/usr/local/bin/istio-iptables", "-p", "15009"]},
    ]}}}});
    assert_eq!(
        value_of(&options(&classic).unwrap().given, Name::EnvoyPort),
        "15009"
    );
    let broken = json!({"spec": {"containers": [], "initContainers": [{"name": "i", "args": ["istio-iptables", "--what"]}]}});
    assert!(matches!(options(&broken), Err(PodError::Arguments { container, .. }) if container == "i"));
}

/// The words after `--` belong to the sidecar.
#[test]
fn options_are_read_from_the_arguments_of_a_capturing_sidecar() {
    let pod = json!({"spec": {"containers": [], "initContainers": [{"name": "istio-proxy", "restartPolicy": "Always",
        "args": ["istio-iptables", "-p", "15009", "--", "proxy", "sidecar", "--domain", "x"]}]}});
    let PodOptions { by: how, given, .. } = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::InitContainer("istio-proxy".into()));
    assert_eq!((value_of(&given, Name::EnvoyPort), given.len()), ("15009", 1));
}

#[test]
fn options_are_read_from_annotations_without_an_init_container() {
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
    let PodOptions { by: how, given, .. } = options(&pod).unwrap();
    assert_eq!(how, CapturedBy::Node);
    assert_eq!(
        value_of(&given, Name::IstioLocalExcludePorts),
        "9090,15021,15020,15090"
    );
    assert_eq!(value_of(&given, Name::IstioServiceCidr), "*");
    assert_eq!(value_of(&given, Name::KubeVirtInterfaces), "tap0");
    assert_eq!(
        (value_of(&given, Name::ProxyUid), value_of(&given, Name::ProxyGid)),
        ("5", "1337")
    );
    assert_eq!(value_of(&given, Name::CaptureAllDns), "true");
    assert_eq!(value_of(&given, Name::DropInvalid), "");
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
    let given = options(&pod).unwrap().given;
    let error = Settings::read(&given, &std::collections::BTreeMap::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("annotation traffic.sidecar.istio.io/includeOutboundIPRanges: \"everything\""),
        "{error}"
    );
}

/// The environment of an init container counts as it does for the program itself.
#[test]
fn the_environment_of_the_init_container_is_read() {
    let pod = json!({"spec": {"containers": [{"name": "app"}], "initContainers": [{
        "name": "istio-init", "args": ["istio-iptables", "-i", "*"],
        "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}, {"name": "ISTIO_OUTBOUND_PORTS", "value": "9"}],
    }]}});
    let found = options(&pod).unwrap();
    let settings = Settings::read(&found.given, &found.environment).unwrap();
    assert!(settings.required_facts().dns_servers);
    let (intent, _) = settings.intent(&HostFacts::default());
    assert_eq!(intent.outbound_ports, ["9".parse().unwrap()]);
}

/// With CNI the node installs the rules. The arguments of the container that validates them say nothing about them.
#[test]
fn the_validating_container_does_not_decide() {
    let pod = json!({
        "metadata": {"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "7"}},
        "spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "istio-validation",
            "args": ["istio-iptables", "-o", "8", "--run-validation", "--skip-rule-apply"]}]},
    });
    let found = options(&pod).unwrap();
    assert_eq!(found.by, CapturedBy::Node);
    assert_eq!(value_of(&found.given, Name::IstioLocalOutboundPortsExclude), "7");
}

#[test]
fn options_of_other_meshes_are_translated() {
    let pod = json!({"spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "linkerd-init",
        "args": ["--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140", "--proxy-uid", "2102",
            "--outbound-ports-to-ignore", "5432,6000-6002"]}]}});
    let found = super::options(&PodView::read(&pod), &dialect::LINKERD).unwrap();
    let settings = Settings::read(&found.given, &found.environment).unwrap();
    let (intent, _) = settings.intent(&HostFacts::default());
    assert_eq!((intent.outbound_port, intent.inbound_port), (4140, 4143));
    assert_eq!(
        intent.excluded_outbound_ports,
        ["5432".parse().unwrap(), "6000:6002".parse().unwrap()]
    );
    assert_eq!(intent.destinations, crate::intent::Destinations::All);
}
