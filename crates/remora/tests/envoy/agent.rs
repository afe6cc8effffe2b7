//! What the agent asks the control plane for itself, and what it tells it, on Envoy's stream.

use crate::plane::Plane;
use crate::process::PATIENCE;
use crate::scene::{Scene, here};
use prost::Message;
use remora_mtls::Authority;
use remora_xds::raw::Protocol;
use remora_xds::types::{HEALTH, LISTENER, NAME_TABLE, PROXY_CONFIG};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

#[derive(Clone, PartialEq, Message)]
struct NameTable {
    #[prost(btree_map = "string, message", tag = "1")]
    table: BTreeMap<String, NameInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct NameInfo {
    #[prost(string, repeated, tag = "1")]
    ips: Vec<String>,
    #[prost(string, tag = "2")]
    registry: String,
    #[prost(string, tag = "3")]
    short: String,
    #[prost(string, tag = "4")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct ProxyConfig {
    #[prost(string, repeated, tag = "34")]
    roots: Vec<String>,
}

/// Settings for a stream of the state of the world, and more of them.
fn env(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut env = Scene::env();
    let world = ("ISTIO_DELTA_XDS", "false");
    for (name, value) in more.iter().copied().chain([world]) {
        env.insert(name.to_owned(), value.to_owned());
    }
    env
}

/// Waits until the control plane has heard something.
fn hears(plane: &Plane, wanted: impl Fn(&[(String, Option<String>)]) -> bool) {
    let started = Instant::now();
    loop {
        let heard = plane.heard.lock().unwrap().clone();
        if wanted(&heard) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{heard:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Where a type was asked for first.
fn place(plane: &Plane, type_url: &str) -> usize {
    let heard = plane.heard.lock().unwrap();
    heard.iter().position(|(url, _)| url == type_url).unwrap()
}

#[test]
fn names_come_in_a_table_after_the_listeners_and_are_answered() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let info = NameInfo {
        ips: vec!["10.96.0.7".to_owned()],
        registry: "Kubernetes".to_owned(),
        short: "cart".to_owned(),
        namespace: "shop".to_owned(),
    };
    let table = NameTable {
        table: BTreeMap::from([("cart.shop.svc.cluster.local".to_owned(), info)]),
    };
    let mut sidecar = scene.sidecar(env(&[("ISTIO_META_DNS_CAPTURE", "true")]));
    // Without a table it is not ready, whatever Envoy has.
    let without = scene.plane_that_speaks(Protocol::Sotw, &[8443]);
    hears(&without, |heard| heard.iter().any(|(url, _)| url == NAME_TABLE));
    let (_, body) = scene.readiness(|_, body| !body.contains("\"certificate\""));
    assert!(body.contains("waiting for configuration"), "{body}");
    assert!(place(&without, LISTENER) < place(&without, NAME_TABLE));
    drop(without);
    let more = vec![(NAME_TABLE, table.encode_to_vec())];
    let plane = scene.plane_with(Protocol::Sotw, &[8443], more);
    scene.ready();
    assert!(place(&plane, LISTENER) < place(&plane, NAME_TABLE));
    let answer = scene.inside(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], 15053));
        let question = b"\x07\x07\x01\0\0\x01\0\0\0\0\0\0\x04cart\x04shop\0\0\x01\0\x01";
        socket.send_to(question, to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0; 512];
        let (length, _) = socket.recv_from(&mut answer).unwrap();
        answer[..length].to_vec()
    });
    assert!(answer.ends_with(&[10, 96, 0, 7]), "{answer:?}");
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn roots_of_the_agents_configuration_are_believed() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.application();
    let other = Authority::generate("other", SystemTime::now(), Duration::from_hours(1)).unwrap();
    let stranger = scene.client_of(&other);
    let config = ProxyConfig {
        roots: vec![other.roots()],
    };
    let more = vec![(PROXY_CONFIG, config.encode_to_vec())];
    let _plane = scene.plane_with(Protocol::Sotw, &[8443], more);
    let mut without = scene.sidecar(env(&[]));
    scene.ready();
    scene.call(&scene.client(), 8443).unwrap();
    assert!(scene.call(&stranger, 8443).is_err(), "nobody said so");
    assert_eq!(without.stop(), 0, "{}", without.said());
    let mut with = scene.sidecar(env(&[("PROXY_CONFIG_XDS_AGENT", "true")]));
    scene.ready();
    let started = Instant::now();
    while scene.call(&stranger, 8443).is_err() {
        assert!(started.elapsed() < PATIENCE, "{}", with.said());
    }
    scene.call(&scene.client(), 8443).unwrap();
    assert_eq!(with.stop(), 0, "{}", with.said());
}

#[test]
fn the_control_plane_hears_how_the_application_feels_when_that_changes() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    let plane = scene.plane_that_speaks(Protocol::Sotw, &[8443]);
    let config = "{discoveryAddress: '10.1.0.1:15012', concurrency: 1, terminationDrainDuration: 1s, \
                  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}";
    let mut sidecar = scene.sidecar(env(&[("PROXY_CONFIG", config)]));
    let told = |heard: &[(String, Option<String>)]| {
        let health = heard.iter().filter(|(url, _)| url == HEALTH);
        health.map(|(_, wrong)| wrong.is_some()).collect::<Vec<_>>()
    };
    hears(&plane, |heard| told(heard) == [true]);
    assert!(place(&plane, LISTENER) < place(&plane, HEALTH));
    scene.application();
    hears(&plane, |heard| told(heard) == [true, false]);
    // Another control plane is told once more, without a change.
    drop(plane);
    let plane = scene.plane_that_speaks(Protocol::Sotw, &[8443]);
    hears(&plane, |heard| told(heard) == [false]);
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

/// A bootstrap in the names of Istio's own template.
const TEMPLATE: &str = r#"{
  "node": {"id": "{{ .nodeID }}", "cluster": "{{ .cluster }}", "metadata": {{ .meta_json_str }}
    {{- if .region }}, "locality": {"region": "{{ .region }}"}{{ end }}},
  "admin": {"address": {"socket_address": {"address": "{{ .localhost }}", "port_value": {{ .config.ProxyAdminPort }}}}},
  "layered_runtime": {"layers": [{"name": "template", "static_layer": {{ .runtime_flags }}}, {"name": "admin", "admin_layer": {}}]},
  "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": [
    {{- range $i, $s := .inclusionPrefix }}{"prefix": "{{ $s }}"},{{ end }}{"prefix": "istio"}]}}},
  "dynamic_resources": {
    "lds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "cds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "ads_config": {"api_type": "{{ .xds_type }}", "transport_api_version": "V3", "set_node_on_first_message_only": true,
      "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}},
  "static_resources": {"clusters": [
    {{- $places := "xds-grpc" }}
    {"name": "{{ $places }}", "type": "STATIC", "connect_timeout": "1s",
     "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
       "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
       "explicit_http_config": {"http2_protocol_options": {}}}},
     "load_assignment": {"cluster_name": "{{ $places }}", "endpoints": [{"lb_endpoints": [
       {"endpoint": {"address": {"pipe": {"path": "{{ .config.ConfigPath }}/XDS"}}}}]}]}},
    {"name": "sds-grpc", "type": "STATIC", "connect_timeout": "1s",
     "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
       "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
       "explicit_http_config": {"http2_protocol_options": {}}}},
     "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [
       {"endpoint": {"address": {"pipe": {"path": "./var/run/secrets/workload-spiffe-uds/{{ .workload_identity_socket_file }}"}}}}]}]}}
  ],
  "listeners": [{"address": {"socket_address": {"address": "{{ .wildcard }}", "port_value": {{ .envoy_status_port }}}},
    "filter_chains": [{"filters": [{"name": "envoy.filters.network.direct_response", "typed_config": {
      "@type": "type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config",
      "response": {"inline_string": "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nby template\n"}}}]}]}]}
}"#;

#[test]
fn a_template_of_the_users_makes_the_bootstrap_and_an_override_changes_it() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    scene.application();
    let _plane = scene.plane_that_speaks(Protocol::Sotw, &[8443]);
    scene.write("bootstrap.json", TEMPLATE);
    scene.write(
        "override.json",
        r#"{"node": {"locality": {"region": "overridden"}}}"#,
    );
    let mut sidecar = scene.sidecar(env(&[
        ("ISTIO_BOOTSTRAP", "./bootstrap.json"),
        ("ISTIO_BOOTSTRAP_OVERRIDE", "./override.json"),
        ("OUTPUT_CERTS", "./certs"),
    ]));
    scene.readiness(|status, body| status == 200 && body.contains("by template"));
    scene.call(&scene.client(), 8443).unwrap();
    let (_, info) = scene.ask(15000, "/server_info").unwrap();
    for part in ["sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local", "overridden"] {
        assert!(info.contains(part), "{part} in {info}");
    }
    // Programs that speak discovery themselves find everything, too.
    let grpc = std::fs::read_to_string(scene.path("etc/istio/proxy/grpc-bootstrap.json")).unwrap();
    let grpc: serde_json::Value = serde_json::from_str(&grpc).unwrap();
    let uri = grpc["xds_servers"][0]["server_uri"].as_str().unwrap();
    let socket = uri.strip_prefix("unix://").unwrap();
    assert!(std::fs::metadata(socket).is_ok(), "{socket}");
    assert_eq!(grpc["node"]["metadata"]["GENERATOR"], "grpc");
    let files = &grpc["certificate_providers"]["default"]["config"];
    for name in ["certificate_file", "private_key_file", "ca_certificate_file"] {
        let path = files[name].as_str().unwrap();
        assert!(std::fs::metadata(path).is_ok(), "{path}");
    }
    assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
}

#[test]
fn a_template_that_gives_no_bootstrap_says_why() {
    if !here() {
        return;
    }
    let scene = Scene::new();
    for (text, why) in [
        ("{{ .nodeID", "render the bootstrap template"),
        ("[1]", "what came out is no object"),
    ] {
        scene.write("bootstrap.json", text);
        let mut sidecar = scene.sidecar(env(&[("ISTIO_BOOTSTRAP", "./bootstrap.json")]));
        assert_eq!(sidecar.end(), 255);
        sidecar.says(why);
        sidecar.says("ISTIO_BOOTSTRAP_OVERRIDE changes single fields");
    }
    let mut sidecar = scene.sidecar(env(&[("ISTIO_BOOTSTRAP", "./nowhere.json")]));
    assert_eq!(sidecar.end(), 255);
    sidecar.says("read the bootstrap template ./nowhere.json");
}
