use super::{Source, VolumeError, hosts, life, mounts, nested, plan, prepare, renew, resolver};
use crate::container::MountKind;
use crate::environment::Facts;
use crate::objects::Objects;
use crate::token::Mint;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn facts() -> Facts {
    Facts {
        pod_ip: "10.244.0.7".parse().unwrap(),
        host_ip: "10.244.0.1".parse().unwrap(),
        node: "remora".to_owned(),
        uid: "u-1".to_owned(),
        cpu_millis: 2000,
        memory: 1 << 30,
        now: std::time::SystemTime::UNIX_EPOCH,
    }
}

fn objects() -> Objects {
    let mut objects = Objects::default();
    let config = [
        ("a.conf".to_owned(), b"A".to_vec()),
        ("b.conf".to_owned(), b"B".to_vec()),
    ];
    objects.put_config_map("shop", "conf", config.into());
    objects.put_mint(Mint::new(b"secret"));
    objects
}

fn pod(volumes: &Value, mount: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "shop", "labels": {"app": "cart"}},
        "spec": {"serviceAccountName": "sa", "volumes": volumes,
            "containers": [{"name": "c", "volumeMounts": mount}]}})
}

#[test]
fn volumes_hold_what_they_should() {
    let base = tempfile::tempdir().unwrap();
    let pod = pod(
        &json!([
            {"name": "conf", "configMap": {"name": "conf", "items": [{"key": "a.conf", "path": "x/a", "mode": 256}]}},
            {"name": "tokens", "projected": {"sources": [
                {"serviceAccountToken": {"audience": "istio-ca", "path": "istio-token"}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "none", "secret": {"secretName": "nobody", "optional": true}}
        ]),
        &json!([{"name": "scratch", "mountPath": "/s", "subPath": "deep"}, {"name": "conf", "mountPath": "/c"}]),
    );
    let volumes = plan(&pod, &facts(), &objects()).unwrap();
    prepare(&volumes, &nested(&pod), base.path(), false).unwrap();
    let read = |path: &str| std::fs::read_to_string(base.path().join(path)).unwrap();
    assert_eq!(read("conf/x/a"), "A");
    let mode = std::fs::metadata(base.path().join("conf/x/a"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o400);
    assert!(!base.path().join("conf/b.conf").exists());
    let first = read("tokens/istio-token");
    let who = Mint::new(b"secret").read(&first, SystemTime::UNIX_EPOCH);
    assert_eq!(who, Ok(("shop".to_owned(), "sa".to_owned())));
    // The shortest of an hour and an hour and seven seconds.
    assert_eq!(life(&volumes), Some(Duration::from_mins(48)));
    let later = SystemTime::UNIX_EPOCH + Duration::from_mins(48);
    renew(&pod, &volumes, &objects(), base.path(), later).unwrap();
    let second = read("tokens/istio-token");
    assert_ne!(first, second);
    let end = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
    assert!(Mint::new(b"secret").read(&first, end).is_err());
    assert!(Mint::new(b"secret").read(&second, end).is_ok());
    assert_eq!(read("tokens/labels"), "app=\"cart\"");
    assert_eq!(read("kube-api-access/namespace"), "shop");
    let container = &pod["spec"]["containers"][0];
    let mounts = mounts(&pod, container, &volumes, base.path(), &[]).unwrap();
    assert_eq!(mounts.len(), 3);
    let MountKind::Bind { source, within } = &mounts[0].kind else {
        panic!("a bind");
    };
    assert!(source.ends_with("scratch") && !mounts[0].readonly);
    assert_eq!(within.as_deref(), Some(Path::new("deep")));
    assert!(mounts[1].readonly);
}

/// A volume below another that cannot be written needs its place there beforehand.
#[test]
fn a_volume_below_another_finds_its_place() {
    let base = tempfile::tempdir().unwrap();
    let pod = pod(
        &json!([{"name": "outer", "configMap": {"name": "conf"}}, {"name": "inner", "emptyDir": {}}]),
        &json!([{"name": "outer", "mountPath": "/o"}, {"name": "inner", "mountPath": "/o/deep/er"}]),
    );
    let volumes = plan(&pod, &facts(), &objects()).unwrap();
    prepare(&volumes, &nested(&pod), base.path(), false).unwrap();
    assert!(base.path().join("outer/deep/er").is_dir());
}

#[test]
fn what_cannot_be_had_is_named() {
    let error = |volumes: Value| plan(&pod(&volumes, &json!([])), &facts(), &objects()).unwrap_err();
    let text = |e: super::VolumeError| {
        let source = std::error::Error::source(&e).map(ToString::to_string);
        format!("{e}: {}", source.unwrap_or_default())
    };
    assert_eq!(
        text(error(json!([{"name": "v", "configMap": {"name": "nobody"}}]))),
        "volume \"v\": ConfigMap \"nobody\" not found"
    );
    assert!(text(error(json!([{"name": "v", "nfs": {}}]))).contains("kind nfs"));
}

#[test]
fn a_path_does_not_lead_out_of_its_volume() {
    let base = tempfile::tempdir().unwrap();
    for sub in ["../other", "/etc", "a/../../b"] {
        let pod = pod(
            &json!([{"name": "scratch", "emptyDir": {}}]),
            &json!([{"name": "scratch", "mountPath": "/s", "subPath": sub}]),
        );
        let volumes = plan(&pod, &facts(), &objects()).unwrap();
        assert_eq!(volumes[0].source, Source::Empty);
        let container = &pod["spec"]["containers"][0];
        assert!(
            mounts(&pod, container, &volumes, base.path(), &[]).is_err(),
            "{sub}"
        );
    }
}

#[test]
fn hosts_and_resolver() {
    let pod = json!({"metadata": {"name": "db-0", "namespace": "shop"},
        "spec": {"hostname": "db-0", "subdomain": "db", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}], "searches": ["example.org"]}}});
    let hosts = hosts(&pod, &facts());
    assert!(
        hosts.contains("10.244.0.7\tdb-0.db.shop.svc.cluster.local\tdb-0\n"),
        "{hosts}"
    );
    assert!(hosts.ends_with("1.2.3.4\ta\tb\n"));
    assert_eq!(
        resolver(&pod, ""),
        "search shop.svc.cluster.local svc.cluster.local cluster.local example.org\nnameserver 10.96.0.10\noptions ndots:2\n"
    );
    assert_eq!(
        resolver(&json!({"spec": {"dnsPolicy": "Default"}}), "host"),
        "host"
    );
}

#[test]
fn memory_has_a_size() {
    let of = |volume: Value| {
        let pod = pod(&json!([{"name": "m", "emptyDir": volume}]), &json!([]));
        plan(&pod, &facts(), &objects()).map(|volumes| volumes[0].source.clone())
    };
    let sized = of(json!({"medium": "Memory", "sizeLimit": "2Mi"})).unwrap();
    assert_eq!(sized, Source::Memory(Some(2 << 20)));
    assert_eq!(of(json!({"medium": "Memory"})).unwrap(), Source::Memory(None));
    let wrong = of(json!({"medium": "Memory", "sizeLimit": "much"})).unwrap_err();
    assert!(matches!(wrong, VolumeError::Size { .. }), "{wrong}");
}
