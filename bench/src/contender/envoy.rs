//! Envoy with a static configuration of the least it needs for the same work: no filters of Istio, no access log.

use super::Way;
use crate::certificates;
use crate::place;
use crate::process::{Process, Start};
use crate::world::{self, World};
use std::fmt::Write as _;
use std::path::Path;

fn tls(world: &World, account: &str, server: bool) -> String {
    let files = certificates::files(world);
    let at = |name: String| files.join(name).display().to_string();
    let kind = if server { "Downstream" } else { "Upstream" };
    let required = if server {
        r#""require_client_certificate":true,"#
    } else {
        ""
    };
    format!(
        r#"{{"name":"tls","typed_config":{{
 "@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{kind}TlsContext",{required}
 "common_tls_context":{{"tls_params":{{"tls_minimum_protocol_version":"TLSv1_3","tls_maximum_protocol_version":"TLSv1_3"}},
  "tls_certificates":[{{"certificate_chain":{{"filename":"{}"}},"private_key":{{"filename":"{}"}}}}],
  "validation_context":{{"trusted_ca":{{"filename":"{}"}}}}}}}}}}"#,
        at(format!("{account}.pem")),
        at(format!("{account}.key")),
        at("roots.pem".to_owned())
    )
}

/// A cluster to where a connection was going.
fn original(name: &str, more: &str) -> String {
    format!(
        r#"{{"name":"{name}","type":"ORIGINAL_DST","lb_policy":"CLUSTER_PROVIDED","connect_timeout":"5s"{more}}}"#
    )
}

fn listener(port: u16, cluster: &str, more: &str, inspect: bool) -> String {
    let inspector = if inspect {
        r#",{"name":"tls","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"}}"#
    } else {
        ""
    };
    format!(
        r#"{{"name":"l{port}","address":{{"socket_address":{{"address":"0.0.0.0","port_value":{port}}}}},
 "listener_filters":[{{"name":"dst","typed_config":{{"@type":"type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst"}}}}{inspector}],
 "filter_chains":[{{"filters":[{{"name":"tcp","typed_config":{{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy","stat_prefix":"s","cluster":"{cluster}"}}}}]{more}}}]}}"#
    )
}

/// Services that are only known: a cluster with three endpoints and a TLS context each.
fn services(count: usize, tls: &str) -> String {
    let mut text = String::new();
    for number in 0..count {
        let endpoint = |replica: usize| {
            format!(
                r#"{{"endpoint":{{"address":{{"socket_address":{{"address":"10.{}.{}.{}","port_value":8080}}}}}}}}"#,
                150 + replica * 20,
                number / 250,
                number % 250 + 1
            )
        };
        let _ = write!(
            text,
            r#",{{"name":"outbound|80||s{number}.other.svc.cluster.local","type":"STATIC","connect_timeout":"5s","transport_socket":{tls},
 "load_assignment":{{"cluster_name":"s{number}","endpoints":[{{"lb_endpoints":[{},{},{}]}}]}}}}"#,
            endpoint(0),
            endpoint(1),
            endpoint(2)
        );
    }
    text
}

/// Starts one.
pub fn start(envoy: &Path, world: &World, way: Way, known: usize, client: bool) -> Process {
    let (account, namespace) = if client {
        ("web", &world.lab.pod)
    } else {
        ("cart", &world.lab.peer)
    };
    let context = tls(world, account, !client);
    let transport = format!(r#","transport_socket":{context}"#);
    let wire = if way == Way::Mtls { transport.as_str() } else { "" };
    let (listener, cluster) = if client {
        (listener(15001, "there", "", false), original("there", wire))
    } else {
        let from = r#","upstream_bind_config":{"source_address":{"address":"127.0.0.6","port_value":0}}"#;
        (
            listener(15006, "here", wire, way == Way::Mtls),
            original("here", from),
        )
    };
    let more = services(known, &tls(world, account, false));
    let config = format!(
        r#"{{"node":{{"id":"{account}","cluster":"bench"}},"static_resources":{{"listeners":[{listener}],"clusters":[{cluster}{more}]}}}}"#
    );
    let path = world.write(&format!("envoy-{account}.json"), &config);
    let words = [
        envoy.display().to_string(),
        "-c".to_owned(),
        path.display().to_string(),
        "--concurrency".to_owned(),
        "1".to_owned(),
        "--disable-hot-restart".to_owned(),
        "-l".to_owned(),
        "error".to_owned(),
    ];
    Start {
        words: words.into(),
        env: Vec::new(),
        directory: world.directory.path().to_owned(),
        uid: world::PROXY,
        cpu: place::PROXIES,
        log: world.path(&format!("envoy-{account}.log")),
    }
    .run(namespace, world.realtime)
}
