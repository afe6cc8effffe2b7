use super::{File, Source, Volume, VolumeError, hosts, life, mounts, nested, plan, prepare, renew, resolver};
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

#[test]
fn the_token_of_the_account_is_mounted_unless_the_pod_declines_or_mounts_something_there() {
    let account = |pod: &Value| {
        let volumes = plan(pod, &facts(), &objects()).unwrap();
        let container = &pod["spec"]["containers"][0];
        let mounts = mounts(pod, container, &volumes, Path::new("/base"), &[]).unwrap();
        let there = mounts
            .iter()
            .filter(|m| m.target == Path::new(super::ACCOUNT_PATH));
        let sources = there.map(|m| match &m.kind {
            MountKind::Bind { source, .. } => source.display().to_string(),
            MountKind::Tmpfs { .. } => panic!("a bind"),
        });
        (volumes.len(), sources.collect::<Vec<_>>())
    };
    let mut usual = pod(&json!([]), &json!([]));
    assert_eq!(account(&usual), (1, vec!["/base/kube-api-access".to_owned()]));
    usual["spec"]["automountServiceAccountToken"] = json!(false);
    assert_eq!(account(&usual), (0, vec![]));
    let own = pod(
        &json!([{"name": "own", "emptyDir": {}}]),
        &json!([{"name": "own", "mountPath": super::ACCOUNT_PATH}]),
    );
    assert_eq!(account(&own), (2, vec!["/base/own".to_owned()]));
}

#[test]
fn a_mount_is_the_place_of_its_volume_and_the_part_that_variables_say() {
    let pod = pod(
        &json!([{"name": "host", "hostPath": {"path": "/srv/data"}}, {"name": "scratch", "emptyDir": {}}]),
        &json!([{"name": "host", "mountPath": "/h", "readOnly": true},
            {"name": "scratch", "mountPath": "/s", "subPath": "unused", "subPathExpr": "$(POD)/logs"},
            {"name": "scratch", "mountPath": "/t", "subPath": "plain", "subPathExpr": ""}]),
    );
    let volumes = plan(&pod, &facts(), &objects()).unwrap();
    let variables = [("POD", "first"), ("OTHER", "x"), ("POD", "p-0")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let container = &pod["spec"]["containers"][0];
    let mounts = mounts(&pod, container, &volumes, Path::new("/base"), &variables).unwrap();
    let found: Vec<_> = mounts[..3]
        .iter()
        .map(|mount| match &mount.kind {
            MountKind::Bind { source, within } => (source.as_path(), within.as_deref(), mount.readonly),
            MountKind::Tmpfs { .. } => panic!("a bind"),
        })
        .collect();
    let (host, scratch) = (Path::new("/srv/data"), Path::new("/base/scratch"));
    assert_eq!(
        found,
        [
            (host, None, true),
            (scratch, Some(Path::new("p-0/logs")), false),
            (scratch, Some(Path::new("plain")), false)
        ]
    );
}

#[test]
fn names_of_hosts_and_resolvers_follow_the_pod() {
    let named = |spec: Value| super::host_name(&json!({"metadata": {"name": "web-0"}, "spec": spec}));
    assert_eq!(named(json!({})), "web-0");
    assert_eq!(named(json!({"hostname": ""})), "web-0");
    assert_eq!(named(json!({"hostname": "other"})), "other");
    let own = json!({"metadata": {"namespace": "shop"}, "spec": {"dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["1.2.3.4"]}}});
    assert_eq!(resolver(&own, "host"), "nameserver 1.2.3.4\n");
}

#[test]
fn a_key_that_is_missing_is_an_error_unless_it_is_optional() {
    let of = |optional: bool| {
        let config = json!({"name": "conf", "optional": optional, "items": [
            {"key": "a.conf", "path": "a"}, {"key": "none", "path": "n"}]});
        plan(
            &pod(&json!([{"name": "v", "configMap": config}]), &json!([])),
            &facts(),
            &objects(),
        )
    };
    let Source::Files(files) = of(true).unwrap()[0].source.clone() else {
        panic!("files");
    };
    assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(matches!(of(false), Err(VolumeError::Missing { .. })));
    let none = json!({"name": "nobody", "optional": false});
    let pod = pod(&json!([{"name": "v", "configMap": none}]), &json!([]));
    assert!(plan(&pod, &facts(), &objects()).is_err());
}

#[test]
fn a_size_of_nothing_is_no_limit() {
    let volume = json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": 0}}]);
    let volumes = plan(&pod(&volume, &json!([])), &facts(), &objects()).unwrap();
    assert_eq!(volumes[0].source, Source::Memory(None));
}

fn volume(name: &str, source: Source, group: Option<u32>) -> Volume {
    Volume {
        name: name.to_owned(),
        source,
        group,
    }
}

fn file(path: &str, mode: u32) -> File {
    File {
        path: path.to_owned(),
        content: b"x".to_vec(),
        mode,
        token: None,
    }
}

#[test]
fn files_and_places_stay_below_their_volume() {
    for path in ["", ".", "..", "/etc/passwd", "a/../b", "../other"] {
        let base = tempfile::tempdir().unwrap();
        let files = volume("v", Source::Files(vec![file(path, 0o644)]), None);
        let outcome = prepare(&[files], &[], base.path(), false);
        assert!(
            matches!(outcome, Err(VolumeError::Escape { .. })),
            "{path}: {outcome:?}"
        );
        let nested = [("v".to_owned(), path.into())];
        let outcome = prepare(&[volume("v", Source::Empty, None)], &nested, base.path(), false);
        assert!(
            matches!(outcome, Err(VolumeError::Escape { .. })),
            "{path}: {outcome:?}"
        );
    }
}

/// k8s: with `fsGroup` the group owns what is in a volume, and may do what the owner may.
#[test]
fn the_group_of_a_pod_gets_what_the_owner_has() {
    use std::os::unix::fs::MetadataExt as _;
    let base = tempfile::tempdir().unwrap();
    // The only group that every user may give files to.
    let group = std::fs::metadata(base.path()).unwrap().gid();
    let files = ["a", "deep/b", "deep/c"].into_iter().zip([0o640, 0o400, 0o711]);
    let files = files.map(|(path, mode)| file(path, mode)).collect();
    prepare(
        &[volume("v", Source::Files(files), Some(group))],
        &[],
        base.path(),
        false,
    )
    .unwrap();
    let mode = |path: &str| std::fs::symlink_metadata(base.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(
        [mode("v/a"), mode("v/deep/b"), mode("v/deep/c")],
        [0o660, 0o440, 0o771]
    );
    for directory in ["v", "v/deep"] {
        assert_eq!(mode(directory) & 0o2770, 0o2770, "{directory}");
        assert_eq!(mode(directory) & 0o002, 0, "{directory}");
    }
}

#[test]
fn the_mode_of_a_volume_is_open_where_it_is_empty() {
    let base = tempfile::tempdir().unwrap();
    let volumes = [
        volume("empty", Source::Empty, None),
        volume("memory", Source::Memory(None), None),
    ];
    prepare(&volumes, &[], base.path(), false).unwrap();
    for name in ["empty", "memory"] {
        let mode = std::fs::metadata(base.path().join(name)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o7777, 0o777, "{name}");
    }
}

#[test]
fn a_path_of_the_host_is_what_the_pod_expects() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("file"), "kept").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let check = |path: &Path, wanted: &str| {
        let host = volume("v", Source::Host(path.to_owned(), wanted.to_owned()), None);
        prepare(&[host], &[], &at("base"), false)
    };
    let null = Path::new("/dev/null");
    let kinds = ["Directory", "File", "Socket", "CharDevice", "BlockDevice"];
    for (path, fits) in [
        (at("directory").as_path(), "Directory"),
        (&at("file"), "File"),
        (&at("socket"), "Socket"),
        (null, "CharDevice"),
    ] {
        assert!(check(path, "").is_ok(), "{path:?}");
        for kind in kinds {
            let outcome = check(path, kind);
            assert_eq!(outcome.is_ok(), kind == fits, "{path:?} as {kind}: {outcome:?}");
        }
    }
    for kind in ["", "File", "Directory"] {
        assert!(check(&at("none"), kind).is_err(), "{kind}");
    }
    check(&at("file"), "FileOrCreate").unwrap();
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "kept");
    check(&at("made"), "FileOrCreate").unwrap();
    assert!(at("made").is_file());
    let wrong = check(&at("directory"), "FileOrCreate").unwrap_err();
    assert!(matches!(wrong, VolumeError::HostPath { .. }), "{wrong:?}");
    assert!(check(&at("none/file"), "FileOrCreate").is_err());
    check(&at("deep/made"), "DirectoryOrCreate").unwrap();
    assert!(at("deep/made").is_dir());
    assert!(check(&at("file"), "DirectoryOrCreate").is_err());
}
