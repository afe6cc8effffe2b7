//! A start while the control plane is away, with the last good configuration.

use super::process::{PATIENCE, Process};
use super::scene::{Pod, Scene};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Settings of a pod that keeps its configuration and its certificate.
fn env(scene: &Scene, pod: Pod) -> BTreeMap<String, String> {
    for name in ["kept", "out"] {
        let path = scene.in_pod(pod, name);
        std::fs::create_dir_all(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1337), Some(1337)).unwrap();
    }
    let mut env = Scene::env(pod);
    env.insert("REMORA_LAST_GOOD_DIR".to_owned(), "./kept".to_owned());
    env.insert("OUTPUT_CERTS".to_owned(), "./out".to_owned());
    env
}

fn start(scene: &Scene, pod: Pod) -> Process {
    scene.start(pod, env(scene, pod)).remora(&["proxy", "sidecar"])
}

fn file(scene: &Scene, pod: Pod) -> PathBuf {
    scene.in_pod(pod, "kept/mesh.snapshot")
}

/// Waits until it is written.
fn written(scene: &Scene, pod: Pod) -> Vec<u8> {
    let started = Instant::now();
    loop {
        if let Ok(bytes) = std::fs::read(file(scene, pod)) {
            return bytes;
        }
        assert!(started.elapsed() < PATIENCE, "nothing is kept");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A pod that ran once and has kept everything; nothing runs.
fn ran_before(scene: &Scene, pods: &[Pod]) {
    let _control = scene.control();
    let mut running: Vec<Process> = pods.iter().map(|pod| start(scene, *pod)).collect();
    for pod in pods {
        scene.ready(*pod);
        written(scene, *pod);
    }
    for sidecar in &mut running {
        assert_eq!(sidecar.stop(), 0, "{}", sidecar.said());
    }
}

fn age_in_metrics(scene: &Scene, pod: Pod) -> u64 {
    let (_, page) = scene.ask(pod, 15020, "/stats/prometheus").unwrap();
    let line = page
        .lines()
        .find(|line| line.starts_with("istio_agent_config_age_seconds "));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn a_pod_starts_without_a_control_plane_and_takes_what_is_live_when_it_is_back() {
    let scene = Scene::new();
    let _application = scene.application(Pod::Cart);
    ran_before(&scene, &[Pod::Web, Pod::Cart]);
    let mode = std::fs::metadata(file(&scene, Pod::Web))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = String::from_utf8_lossy(&written(&scene, Pod::Web)).into_owned();
    assert!(kept.contains("cart.shop.svc.cluster.local") && !kept.contains("PRIVATE"));
    let hour = SystemTime::now() - Duration::from_hours(1);
    let opened = std::fs::File::options().write(true).open(file(&scene, Pod::Web));
    opened.unwrap().set_modified(hour).unwrap();

    let mut web = start(&scene, Pod::Web);
    let mut cart = start(&scene, Pod::Cart);
    scene.ready(Pod::Cart);
    let (_, body) = scene.readiness(Pod::Web, |status, _| status == 200);
    assert!(
        body.contains("\"configuration\":{\"age_seconds\":36") && body.contains("\"from\":\"last good\""),
        "{body}"
    );
    web.says("starts with the last good configuration, 36");
    web.says("the authority is away: starts with the certificate in ./out/cert-chain.pem");
    scene.call().unwrap();
    assert!((3600..3700).contains(&age_in_metrics(&scene, Pod::Web)));

    // It is back, and the service is gone.
    let mesh = std::fs::read_to_string(scene.directory.path().join("mesh.yaml")).unwrap();
    let (rest, _) = mesh.split_once("---\nkind: Service").unwrap();
    scene.write("mesh.yaml", rest);
    let _control = scene.control();
    scene.readiness(Pod::Web, |status, body| {
        status == 200 && !body.contains("last good")
    });
    assert_eq!(age_in_metrics(&scene, Pod::Web), 0);
    assert!(scene.call().is_err(), "what is gone is not kept");
    // And so it is on disk.
    let started = Instant::now();
    while String::from_utf8_lossy(&written(&scene, Pod::Web)).contains("10.96.0.1")
        || written(&scene, Pod::Web).len() >= kept.len()
    {
        assert!(started.elapsed() < PATIENCE, "{}", web.said());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!((web.stop(), cart.stop()), (0, 0));
}

#[test]
fn what_cannot_be_used_is_said_and_waited_without() {
    let scene = Scene::new();
    ran_before(&scene, &[Pod::Web, Pod::Cart]);
    let (whole, foreign) = (written(&scene, Pod::Web), written(&scene, Pod::Cart));
    let path = file(&scene, Pod::Web);
    let refused = |why: &str| {
        let mut web = start(&scene, Pod::Web);
        web.says(why);
        let (_, body) = scene.readiness(Pod::Web, |_, body| body.contains("\"trouble\""));
        assert!(
            body.contains("configuration") && !body.contains("last good"),
            "{body}"
        );
        assert_eq!(web.stop(), 0);
    };
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    refused("the last good configuration in ./kept/mesh.snapshot is not used: it is damaged");
    std::fs::write(&path, foreign).unwrap();
    refused("is not used: it is of \"sidecar~10.1.0.1~cart-0.shop");
    std::fs::write(&path, &whole).unwrap();
    let opened = std::fs::File::options().write(true).open(&path).unwrap();
    opened
        .set_modified(SystemTime::now() - Duration::from_hours(25))
        .unwrap();
    refused("s old, more than 86400 s");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    refused("others may have written it");
    // A certificate that is gone is waited for, whatever else was kept.
    std::fs::write(&path, &whole).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::remove_dir_all(scene.in_pod(Pod::Web, "out")).unwrap();
    let mut web = start(&scene, Pod::Web);
    web.says("the authority is away, and there is no certificate from before");
    scene.readiness(Pod::Web, |_, body| {
        body.contains("last good") && body.contains("certificate")
    });
    // And with the control plane everything is as always.
    let _control = scene.control();
    scene.readiness(Pod::Web, |status, body| {
        status == 200 && !body.contains("last good")
    });
    assert_eq!(web.stop(), 0);
}

#[test]
fn a_disk_that_is_full_is_a_warning() {
    let scene = Scene::new();
    let _control = scene.control();
    let mut start = scene.start(Pod::Web, env(&scene, Pod::Web));
    start.uid = 0;
    start
        .env
        .insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    start.env.remove("OUTPUT_CERTS");
    let script = format!(
        "mount -t tmpfs -o size=4k,uid=1337 none ./kept && head -c 4096 /dev/zero > ./kept/full && \
         exec setpriv --reuid 1337 --regid 1337 --clear-groups {} proxy sidecar",
        super::process::binary().display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let mut web = start.run(command);
    scene.ready(Pod::Web);
    web.says("the configuration is not kept in ./kept/mesh.snapshot: No space left on device");
    let (_, page) = scene.ask(Pod::Web, 15020, "/stats/prometheus").unwrap();
    assert!(
        page.contains("istio_agent_config_snapshot_failures_total 1"),
        "{page}"
    );
    let inside = PathBuf::from(format!("/proc/{}/cwd/kept", web.pid()));
    let left: Vec<_> = std::fs::read_dir(inside)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, ["full"], "no half of a file");
    assert_eq!(web.stop(), 0);
}
