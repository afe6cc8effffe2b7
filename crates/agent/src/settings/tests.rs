use super::{Inputs, RootSource, Server, Settings, SettingsError};
use crate::flags::Flags;
use remora_proxy::UnknownDestinations;
use serde_json::json;
use std::time::Duration;

const POD: &[(&str, &str)] = &[
    ("POD_NAME", "web-0"),
    ("POD_NAMESPACE", "shop"),
    ("SERVICE_ACCOUNT", "web"),
    ("INSTANCE_IP", "10.1.0.2"),
];

fn inputs(line: &str, env: &[(&str, &str)]) -> Inputs {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Inputs {
        flags: Flags::parse(&words).unwrap(),
        env: POD.iter().chain(env).map(text).collect(),
        cpus: 8,
        ..Inputs::default()
    }
}

fn resolve(line: &str, env: &[(&str, &str)]) -> Settings {
    Settings::resolve(&inputs(line, env)).unwrap().0
}

fn error(line: &str, env: &[(&str, &str)]) -> String {
    Settings::resolve(&inputs(line, env)).unwrap_err().to_string()
}

#[test]
fn a_pod_of_todays_template_needs_nothing_else() {
    let (settings, warnings) = Settings::resolve(&inputs("sidecar", &[])).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(settings.id.as_str(), "spiffe://cluster.local/ns/shop/sa/web");
    assert_eq!(
        settings.node.id,
        "sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local"
    );
    assert_eq!(settings.node.cluster, "istio-proxy.shop");
    assert_eq!(
        settings.discovery.server,
        Server {
            host: "istiod.istio-system.svc".to_owned(),
            port: 15012
        }
    );
    assert_eq!(settings.authority, settings.discovery);
    let root = RootSource::File("./var/run/secrets/istio/root-cert.pem".into());
    assert_eq!(settings.discovery.roots, Some(root));
    assert_eq!(settings.certificate_life, Duration::from_hours(24));
    assert_eq!(settings.stop.termination_drain, None);
    assert_eq!(settings.stop.drain, Duration::from_secs(45));
    assert_eq!(settings.unknown, UnknownDestinations::Pass);
}

#[test]
fn the_root_namespace_is_configured_or_that_of_the_control_plane() {
    let at = |address: &str, mesh: Option<&str>| {
        let config = format!("discoveryAddress: {address}");
        let mut inputs = inputs("sidecar", &[("PROXY_CONFIG", &config)]);
        inputs.mesh = mesh.map(str::to_owned);
        Settings::resolve(&inputs).unwrap().0.root_namespace
    };
    assert_eq!(resolve("sidecar", &[]).root_namespace, "istio-system");
    assert_eq!(at("istiod.mesh.svc:15012", None), "mesh");
    assert_eq!(at("istiod-canary.mesh.svc.example.com:15012", None), "mesh");
    for elsewhere in ["istiod.example.com:15012", "10.0.0.1:15012", "istiod:15012"] {
        assert_eq!(at(elsewhere, None), "istio-system", "{elsewhere}");
    }
    let configured = Some("rootNamespace: policies");
    assert_eq!(at("istiod.mesh.svc:15012", configured), "policies");
}

#[test]
fn later_layers_of_the_proxy_config_win() {
    let mut inputs = inputs(
        "--discoveryAddress flag:1",
        &[("PROXY_CONFIG", "{discoveryAddress: 'env:1', concurrency: 3}")],
    );
    inputs.mesh = Some(
        "defaultConfig: {discoveryAddress: 'mesh:1', concurrency: 4, terminationDrainDuration: 7s}"
            .to_owned(),
    );
    inputs.annotations = Some("proxy.istio.io/config=\"concurrency: 5\\n\"\n".to_owned());
    let (settings, _) = Settings::resolve(&inputs).unwrap();
    assert_eq!(settings.discovery.server.host, "flag");
    assert_eq!(settings.workers, 5);
    assert_eq!(settings.stop.termination_drain, Some(Duration::from_secs(7)));
}

#[test]
fn how_many_workers_there_are() {
    for (line, env, expected) in [
        ("", &[][..], 8),
        ("", &[("ISTIO_CPU_LIMIT", "2")][..], 2),
        (
            "",
            &[("ISTIO_CPU_LIMIT", "2"), ("PROXY_CONFIG", "concurrency: 1")],
            1,
        ),
        ("--concurrency 4", &[("PROXY_CONFIG", "concurrency: 1")], 4),
        ("--concurrency 0", &[("PROXY_CONFIG", "concurrency: 0")], 8),
    ] {
        assert_eq!(resolve(line, env).workers, expected, "{line} {env:?}");
    }
}

#[test]
fn tls_is_left_out_only_when_told() {
    assert_eq!(
        resolve("--discoveryAddress istiod:15010", &[]).discovery.roots,
        None
    );
    assert_eq!(
        resolve("--controlPlaneAuthPolicy NONE", &[]).discovery.roots,
        None
    );
    assert!(
        resolve("--controlPlaneAuthPolicy NONE", &[])
            .authority
            .roots
            .is_some()
    );
    let system = resolve("", &[("XDS_ROOT_CA", "SYSTEM"), ("CA_ROOT_CA", "/ca.pem")]);
    assert_eq!(system.discovery.roots, Some(RootSource::System));
    assert_eq!(system.authority.roots, Some(RootSource::File("/ca.pem".into())));
    let other = resolve(
        "",
        &[("CA_ADDR", "[fd00::1]:15012"), ("ISTIOD_SAN", "istiod.x.svc")],
    );
    assert_eq!(other.authority.server.host, "fd00::1");
    assert_eq!(other.authority.name, "fd00::1");
    assert_eq!(other.discovery.name, "istiod.x.svc");
}

#[test]
fn metadata_comes_from_the_environment_and_the_files_of_the_pod() {
    let mut inputs = inputs(
        "",
        &[
            ("ISTIO_META_CLUSTER_ID", "Kubernetes"),
            ("ISTIO_META_WORKLOAD_NAME", "web"),
            ("ISTIO_METAJSON_ANYTHING", r#"{"a":1}"#),
            (
                "PROXY_CONFIG",
                "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true', ISTIO_META_CLUSTER_ID: x, OTHER: y}",
            ),
        ],
    );
    inputs.labels = Some("app=\"cart \\\"x\\\"\\u00e9\"\npod-template-hash=\"123\"\nbroken\n".to_owned());
    let node = Settings::resolve(&inputs).unwrap().0.node;
    assert_eq!(node.cluster, "cart \"x\"é.shop");
    let expected = json!({"CLUSTER_ID": "Kubernetes", "WORKLOAD_NAME": "web", "a": 1, "DNS_CAPTURE": "true",
        "LABELS": {"app": "cart \"x\"é"}, "NAME": "web-0", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "web",
        "INSTANCE_IPS": "10.1.0.2"});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(node.metadata.get(key), Some(value), "{key}");
    }
    assert!(!node.metadata.contains_key("OTHER"));
}

#[test]
fn mistakes_name_the_setting() {
    assert_eq!(error("router", &[]), "the role router is not known");
    assert_eq!(
        error("--discoveryAddress istiod", &[]),
        "discoveryAddress is istiod, which is not a server as HOST:PORT"
    );
    assert_eq!(
        error("", &[("INSTANCE_IP", "x")]),
        "INSTANCE_IP is x, which is not an IP address"
    );
    assert_eq!(error("", &[("SECRET_TTL", "1x")]), "read SECRET_TTL");
    assert_eq!(
        error("", &[("PROXY_CONFIG", "[1]")]),
        "PROXY_CONFIG is [1], which is not an object"
    );
    assert_eq!(error("", &[("POD_NAMESPACE", "")]), "POD_NAMESPACE is not set");
    let bare = Settings::resolve(&Inputs::default()).unwrap_err();
    assert!(matches!(bare, SettingsError::Missing("POD_NAMESPACE")));
}

#[test]
fn certificates_in_files_come_before_the_authority() {
    let mut inputs = inputs("", &[]);
    let files = |inputs: &Inputs| {
        let found = Settings::resolve(inputs).unwrap().0.certificate_files;
        found.map(|files| files.key.display().to_string())
    };
    assert_eq!(files(&inputs), None);
    inputs.present.insert("./etc/certs");
    assert_eq!(files(&inputs).as_deref(), Some("./etc/certs/key.pem"));
    inputs
        .env
        .insert("OUTPUT_CERTS".to_owned(), "/etc/certs/".to_owned());
    assert_eq!(files(&inputs), None, "what we write ourselves is no source");
    let env = [
        ("FILE_MOUNTED_CERTS", "true"),
        ("ISTIO_META_TLS_CLIENT_CERT_CHAIN", "/c"),
        ("ISTIO_META_TLS_CLIENT_KEY", "/k"),
        ("ISTIO_META_TLS_CLIENT_ROOT_CERT", "/r"),
    ];
    assert_eq!(
        resolve("", &env).certificate_files.unwrap().chain.to_str(),
        Some("/c")
    );
}

#[test]
fn discovery_and_authority_are_told_what_variables_say() {
    let settings = resolve(
        "",
        &[
            ("ISTIO_META_CLUSTER_ID", "east"),
            ("ISTIO_META_CERT_SIGNER", "clusterissuers.cert-manager.io/mesh"),
            ("XDS_HEADER_Tenant", "a"),
            ("CA_HEADER_X-Zone", "b"),
            ("PROV_CERT", "/provisioned"),
        ],
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        settings.discovery.headers,
        [pair("clusterid", "east"), pair("tenant", "a")]
    );
    assert_eq!(
        settings.authority.headers,
        [pair("clusterid", "east"), pair("x-zone", "b")]
    );
    assert_eq!(settings.discovery.signer, "");
    assert_eq!(settings.authority.signer, "clusterissuers.cert-manager.io/mesh");
    let shown = Some((
        "/provisioned/cert-chain.pem".into(),
        "/provisioned/key.pem".into(),
    ));
    assert_eq!(settings.discovery.certificate, shown);
    assert_eq!(settings.authority.certificate, shown);
    assert_eq!(resolve("", &[]).discovery.certificate, None);
}

#[test]
fn the_largest_message_of_discovery_is_a_choice() {
    let name = "REMORA_XDS_MAX_MESSAGE_BYTES";
    let largest = |env: &[(&str, &str)]| resolve("", env).discovery.largest_message;
    assert_eq!(largest(&[]), remora_xds::client::LARGEST_MESSAGE);
    assert_eq!(largest(&[(name, "1000")]), 1000);
    for wrong in ["0", "-1", "1M", "many"] {
        let text = error("", &[(name, wrong)]);
        assert!(
            text.contains(name) && text.contains("a number of bytes"),
            "{text}"
        );
    }
}

#[test]
fn collectors_of_1_5_are_flags() {
    let settings = resolve(
        "sidecar --zipkinAddress zipkin:9411 --envoyMetricsService {\"address\":\"metrics:15000\"} \
         --envoyAccessLogService={}",
        &[],
    );
    let fields = &settings.proxy_config.fields;
    assert_eq!(fields["tracing"], json!({"zipkin": {"address": "zipkin:9411"}}));
    assert_eq!(fields["envoyMetricsService"], json!({"address": "metrics:15000"}));
    assert_eq!(fields.get("envoyAccessLogService"), None);
    let wrong = error("--envoyMetricsService [1]", &[]);
    assert!(wrong.contains("an object"), "{wrong}");
}
