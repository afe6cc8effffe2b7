use super::*;

fn description() -> Description {
    Description {
        node: Node {
            id: "sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local".to_owned(),
            cluster: "web.shop".to_owned(),
            metadata: Map::new(),
        },
        addresses: vec!["10.1.0.2".parse().unwrap()],
        proxy_config: fields(json!({"discoveryAddress": "istiod.istio-system.svc:15012"})),
        ports: Ports::default(),
        xds_socket: "./etc/istio/proxy/XDS".to_owned(),
        sds_socket: "./var/run/secrets/workload-spiffe-uds/socket".to_owned(),
        delta: true,
        outlier_log_path: String::new(),
        exit_on_zero_active_connections: false,
        log_as_json: false,
    }
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object"),
    }
}

/// Values at JSON pointers.
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

#[test]
fn the_place_comes_from_the_label() {
    for (label, expected) in [
        (
            "eu.west.2",
            json!({"region": "eu", "zone": "west", "sub_zone": "2"}),
        ),
        ("eu/west-1.a", json!({"region": "eu", "zone": "west-1.a"})),
        ("eu", json!({"region": "eu"})),
    ] {
        let mut wanted = description();
        wanted
            .node
            .metadata
            .insert("LABELS".to_owned(), json!({"istio-locality": label}));
        assert_eq!(render(&wanted).unwrap()["node"]["locality"], expected);
    }
}

#[test]
fn runtime_values_change_and_remove_defaults() {
    let mut wanted = description();
    wanted.proxy_config.insert(
        "runtimeValues".to_owned(),
        json!({
            "re2.max_program_size.error_level": "",
            "envoy.reloadable_features.fixed_heap_use_allocated": "false",
            "mine": "text",
            "overload.global_downstream_max_connections": "500",
        }),
    );
    let bootstrap = render(&wanted).unwrap();
    let layer = at(&bootstrap, "/layered_runtime/layers/0/static_layer");
    assert!(layer.get("re2.max_program_size.error_level").is_none());
    assert_eq!(layer["envoy.reloadable_features.fixed_heap_use_allocated"], false);
    assert_eq!(layer["mine"], "text");
    let limit = "/overload_manager/resource_monitors/0/typed_config/max_active_downstream_connections";
    assert_eq!(at(&bootstrap, limit), "500");
    let metadata = &mut wanted.node.metadata;
    metadata.insert("GLOBAL_DOWNSTREAM_MAX_CONNECTIONS".to_owned(), json!("7"));
    assert_eq!(at(&render(&wanted).unwrap(), limit), "7");
}

#[test]
fn addresses_of_the_pod_decide_where_is_listened() {
    let mut wanted = description();
    let shape = |wanted: &Description| {
        let bootstrap = render(wanted).unwrap();
        let listener = at(&bootstrap, "/static_resources/listeners/1");
        (
            at(listener, "/address/socket_address/address").clone(),
            at(listener, "/additional_addresses/0/address/socket_address/address").clone(),
            at(&bootstrap, "/admin/address/socket_address/address").clone(),
        )
    };
    assert_eq!(
        shape(&wanted),
        (json!("0.0.0.0"), Value::Null, json!("127.0.0.1"))
    );
    wanted.addresses.push("fd00::1".parse().unwrap());
    assert_eq!(
        shape(&wanted),
        (json!("0.0.0.0"), json!("::"), json!("127.0.0.1"))
    );
    wanted.addresses.remove(0);
    assert_eq!(shape(&wanted), (json!("::"), Value::Null, json!("::1")));
}

#[test]
fn statistics_follow_annotations_and_configuration() {
    let mut wanted = description();
    let annotations = json!({
        "sidecar.istio.io/statsInclusionPrefixes": "cluster.outbound, http",
        "sidecar.istio.io/extraStatTags": "request_path,bad(tag",
    });
    wanted.node.metadata.insert("ANNOTATIONS".to_owned(), annotations);
    wanted.proxy_config.insert(
        "proxyStatsMatcher".to_owned(),
        json!({"inclusionSuffixes": ["ssl.handshake"]}),
    );
    wanted.exit_on_zero_active_connections = true;
    let stats = render(&wanted).unwrap()["stats_config"].clone();
    let patterns = at(&stats, "/stats_matcher/inclusion_list/patterns")
        .as_array()
        .unwrap();
    for wanted in [
        json!({"prefix": "cluster.outbound"}),
        json!({"prefix": "http"}),
        json!({"suffix": "ssl.handshake"}),
        json!({"suffix": "downstream_cx_active"}),
        json!({"prefix": "listener_manager"}),
    ] {
        assert!(patterns.contains(&wanted), "{wanted}");
    }
    let tags: Vec<&str> = stats["stats_tags"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tag| tag["tag_name"].as_str())
        .collect();
    assert!(
        tags.contains(&"request_path") && !tags.iter().any(|tag| tag.contains('(')),
        "{tags:?}"
    );
}

#[test]
fn the_node_is_the_one_discovery_knows_with_what_only_an_envoy_has() {
    let mut wanted = description();
    wanted.node.metadata = fields(json!({"NAME": "web-0", "LABELS": {"app": "web"}}));
    wanted.outlier_log_path = "/dev/stdout".to_owned();
    let node = render(&wanted).unwrap()["node"].clone();
    assert_eq!(node["id"], "sidecar~10.1.0.2~web-0.shop~shop.svc.cluster.local");
    assert_eq!(node["cluster"], "web.shop");
    let expected = json!({
        "NAME": "web-0", "LABELS": {"app": "web"}, "STATIC_LABELS": {"app": "web"},
        "PILOT_SAN": ["istiod.istio-system.svc"], "ENVOY_STATUS_PORT": "15021", "ENVOY_PROMETHEUS_PORT": "15090",
        "OUTLIER_LOG_PATH": "/dev/stdout",
    });
    assert_eq!(node["metadata"], expected);
    wanted
        .proxy_config
        .insert("controlPlaneAuthPolicy".to_owned(), json!("NONE"));
    let node = render(&wanted).unwrap()["node"].clone();
    assert!(node["metadata"].get("PILOT_SAN").is_none());
}

#[test]
fn mistakes_name_the_field() {
    let mut wanted = description();
    for text in ["zipkin", "zipkin:", ":9411", "zipkin:99999"] {
        let tracing = json!({"zipkin": {"address": text}});
        wanted.proxy_config.insert("tracing".to_owned(), tracing);
        let error = render(&wanted).unwrap_err();
        assert!(error.to_string().contains("tracing.zipkin.address"), "{error}");
    }
}
