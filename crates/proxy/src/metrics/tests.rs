use super::{Labels, MOST_SERIES, Metrics};
use crate::access::{Direction, Reason};
use crate::mesh::{Service, Workload};
use remora_mtls::SpiffeId;
use remora_xds::proto::workload as proto;

fn workload(name: &str) -> Workload {
    Workload::new(proto::Workload {
        name: format!("{name}-0"),
        namespace: "shop".to_owned(),
        workload_name: name.to_owned(),
        canonical_name: name.to_owned(),
        canonical_revision: "v1".to_owned(),
        ..proto::Workload::default()
    })
    .unwrap()
}

fn service(name: &str) -> Service {
    Service::new(proto::Service {
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        hostname: format!("{name}.example"),
        ..proto::Service::default()
    })
    .unwrap()
}

/// Lines of a kind.
fn lines<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let starts = format!("{name}{{");
    text.lines().filter(|line| line.starts_with(&starts)).collect()
}

#[test]
fn connections_and_bytes_are_counted_as_istio_counts() {
    let metrics = Metrics::default();
    let (web, cart, dialled) = (workload("web"), workload("cart"), service("cart"));
    let id: SpiffeId = "spiffe://td/ns/shop/sa/web".parse().unwrap();
    let labels = Labels {
        direction: Direction::Outbound,
        source: Some(&web),
        source_id: Some(&id),
        destination: Some(&cart),
        destination_id: None,
        service: Some(&dialled),
        mutual: true,
        flags: "-",
    };
    let series = metrics.series(&labels);
    series.opened();
    series.bytes(10, 200);
    metrics.series(&labels).closed(false);
    let failed = Labels {
        flags: Reason::NoEndpoint.flag(),
        destination: None,
        ..labels
    };
    metrics.series(&failed).closed(true);
    let text = metrics.render();
    let expected = "{source_workload=\"web\",source_canonical_service=\"web\",source_canonical_revision=\"v1\",\
                    source_workload_namespace=\"shop\",source_principal=\"spiffe://td/ns/shop/sa/web\",\
                    source_app=\"web\",source_version=\"v1\",source_cluster=\"unknown\",\
                    destination_workload=\"cart\",destination_canonical_service=\"cart\",\
                    destination_canonical_revision=\"v1\",destination_workload_namespace=\"shop\",\
                    destination_principal=\"unknown\",destination_app=\"cart\",destination_version=\"v1\",\
                    destination_cluster=\"unknown\",destination_service=\"cart.example\",\
                    destination_service_name=\"cart\",destination_service_namespace=\"shop\",\
                    reporter=\"source\",request_protocol=\"tcp\",response_flags=\"-\",\
                    connection_security_policy=\"mutual_tls\"}";
    for (name, value) in [
        ("connections_opened", 1),
        ("connections_closed", 1),
        ("connections_failed", 0),
        ("received_bytes", 10),
        ("sent_bytes", 200),
    ] {
        let line = format!("istio_tcp_{name}_total{expected} {value}\n");
        assert!(text.contains(&line), "{line}\nnot in\n{text}");
    }
    let failures = lines(&text, "istio_tcp_connections_failed_total");
    let with = |part: &str| failures.iter().find(|line| line.contains(part)).unwrap();
    assert!(with("response_flags=\"UH\"").ends_with(" 1"));
}

#[test]
fn series_are_bounded_and_labels_cannot_break_lines() {
    let metrics = Metrics::default();
    let count = |name: &str| {
        let dialled = service(name);
        let labels = Labels {
            direction: Direction::Inbound,
            source: None,
            source_id: None,
            destination: None,
            destination_id: None,
            service: Some(&dialled),
            mutual: false,
            flags: "-",
        };
        metrics.series(&labels).closed(false);
    };
    count("a\"b\nc\\");
    assert!(
        metrics
            .render()
            .contains(r#"destination_service_name="a\"b\nc\\","#)
    );
    for number in 1..MOST_SERIES + 500 {
        count(&format!("service-{number}"));
    }
    count("service-1");
    let text = metrics.render();
    let closed = lines(&text, "istio_tcp_connections_closed_total");
    assert_eq!(closed.len(), MOST_SERIES + 1);
    let named = |name: &str| {
        let label = format!("destination_service_name=\"{name}\"");
        closed.iter().find(|line| line.contains(&label)).unwrap()
    };
    assert!(named("other").ends_with(" 500"));
    assert!(named("service-1").ends_with(" 2"), "known ones go on");
}
