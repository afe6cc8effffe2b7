//! Certificates that change while the sidecar runs.

use super::process::{PATIENCE, Process};
use super::scene::{Pod, Scene};
use remora_mtls::{Authority, PrivateKey, SpiffeId};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const TOKEN: &str = "var/run/secrets/tokens/istio-token";

/// A sidecar that renews every second and writes what it has.
fn renewing(scene: &Scene) -> (Process, PathBuf) {
    let output = scene.in_pod(Pod::Web, "out");
    std::fs::create_dir(&output).unwrap();
    std::os::unix::fs::chown(&output, Some(1337), Some(1337)).unwrap();
    let mut env = Scene::env(Pod::Web);
    env.insert("OUTPUT_CERTS".to_owned(), "./out".to_owned());
    // Half of a life of two seconds after the two minutes it is back-dated by.
    env.insert("SECRET_TTL".to_owned(), "122s".to_owned());
    let sidecar = scene.start(Pod::Web, env).remora(&["proxy", "sidecar"]);
    (sidecar, output.join("cert-chain.pem"))
}

/// Waits until a file holds something else.
fn changed(path: &Path, before: &str) -> String {
    let started = Instant::now();
    loop {
        let now = std::fs::read_to_string(path).unwrap_or_default();
        if !now.is_empty() && now != before {
            return now;
        }
        assert!(started.elapsed() < PATIENCE, "{} stays the same", path.display());
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn an_authority_that_is_away_changes_nothing_until_it_is_back() {
    let scene = Scene::new();
    let mut control = scene.control();
    let _application = scene.application(Pod::Cart);
    let _cart = scene.sidecar(Pod::Cart);
    let (mut web, chain) = renewing(&scene);
    scene.ready(Pod::Web);
    scene.ready(Pod::Cart);
    let first = changed(&chain, "");
    changed(&chain, &first);
    assert_eq!(control.stop(), 0);
    web.says("ask for a certificate");
    scene.call().unwrap();
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
    let _control = scene.control();
    let kept = std::fs::read_to_string(&chain).unwrap();
    changed(&chain, &kept);
    scene.call().unwrap();
    assert_eq!(web.stop(), 0);
}

#[test]
fn a_token_that_expired_is_read_again_when_it_is_renewed() {
    let scene = Scene::new();
    let _control = scene.control();
    let (web, chain) = renewing(&scene);
    scene.ready(Pod::Web);
    let first = changed(&chain, "");
    scene.write_in(Pod::Web, TOKEN, "expired");
    web.says("the token is not known");
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
    let kept = changed(&chain, &(first + "x"));
    scene.write_in(Pod::Web, TOKEN, "web-secret");
    changed(&chain, &kept);
}

#[test]
fn a_full_disk_is_a_warning_and_the_set_before_stays_whole() {
    let scene = Scene::new();
    let _control = scene.control();
    let output = scene.in_pod(Pod::Web, "out");
    std::fs::create_dir(&output).unwrap();
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    // Root, to mount, in a mount namespace that goes with the process; then the user whose traffic is not captured.
    start.uid = 0;
    start
        .env
        .insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    start.env.insert("OUTPUT_CERTS".to_owned(), "./out".to_owned());
    start.env.insert("SECRET_TTL".to_owned(), "122s".to_owned());
    // One set of three files fits, a second one beside it does not.
    let script = format!(
        "mount -t tmpfs -o size=16k,uid=1337 none ./out && \
         exec setpriv --reuid 1337 --regid 1337 --clear-groups {} proxy sidecar",
        super::process::binary().display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let web = start.run(command);
    scene.ready(Pod::Web);
    web.says("write the certificate to ./out: No space left on device");
    // Seen as the process sees it.
    let inside = PathBuf::from(format!("/proc/{}/cwd/out", web.pid()));
    for name in ["key.pem", "cert-chain.pem", "root-cert.pem"] {
        let text = std::fs::read_to_string(inside.join(name)).unwrap();
        assert!(text.trim_end().ends_with("-----"), "{name} is whole");
    }
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
}

/// A set of files as Kubernetes mounts a Secret; gives the chain.
fn mount(scene: &Scene, authority: &Authority, number: u32) -> String {
    let id = SpiffeId::of_service_account("cluster.local", "shop", "web").unwrap();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id).unwrap();
    let life = Duration::from_hours(1 + u64::from(number));
    let issued = authority.issue(&request, &id, life, SystemTime::now()).unwrap();
    let certs = scene.in_pod(Pod::Web, "etc/certs");
    let set = format!("..2026_{number}");
    std::fs::create_dir_all(certs.join(&set)).unwrap();
    for (name, text) in [
        ("key.pem", &key.to_pem()),
        ("cert-chain.pem", &issued.leaf),
        ("root-cert.pem", &issued.roots),
    ] {
        std::fs::write(certs.join(&set).join(name), text).unwrap();
        let _ = symlink(Path::new("..data").join(name), certs.join(name));
    }
    symlink(&set, certs.join("..data_tmp")).unwrap();
    std::fs::rename(certs.join("..data_tmp"), certs.join("..data")).unwrap();
    issued.leaf
}

#[test]
fn mounted_certificates_are_followed_through_more_than_one_exchange() {
    let scene = Scene::new();
    let _control = scene.control();
    let read = |name: &str| std::fs::read_to_string(scene.directory.path().join("ca").join(name)).unwrap();
    let authority = Authority::from_pem(&read("root-cert.pem"), &read("root-key.pem")).unwrap();
    mount(&scene, &authority, 1);
    let (web, chain) = renewing(&scene);
    scene.ready(Pod::Web);
    let mut before = changed(&chain, "");
    for number in 2..5 {
        // The set before is removed, as the kubelet does.
        let expected = mount(&scene, &authority, number);
        let old = scene.in_pod(Pod::Web, &format!("etc/certs/..2026_{}", number - 1));
        std::fs::remove_dir_all(old).unwrap();
        before = changed(&chain, &before);
        assert_eq!(before.trim(), expected.trim(), "set {number}");
    }
    // Half of a set changes nothing.
    let key = PrivateKey::generate().unwrap().to_pem();
    std::fs::write(scene.in_pod(Pod::Web, "etc/certs/..2026_4/key.pem"), key).unwrap();
    web.says("use the key with the certificate");
    assert_eq!(std::fs::read_to_string(&chain).unwrap(), before);
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
}

#[test]
fn a_root_that_is_exchanged_on_disk_counts_from_the_next_connection_on() {
    let scene = Scene::new();
    let mut control = scene.control();
    let (mut web, chain) = renewing(&scene);
    scene.ready(Pod::Web);
    let mut before = changed(&chain, "");
    // Another authority in its place. The pod still has the old root.
    assert_eq!(control.stop(), 0);
    let root = scene.in_pod(Pod::Web, "var/run/secrets/istio/root-cert.pem");
    let old = std::fs::read_to_string(&root).unwrap();
    std::fs::remove_dir_all(scene.directory.path().join("ca")).unwrap();
    let _control = scene.control();
    let new = std::fs::read_to_string(&root).unwrap();
    assert_ne!(new, old, "another root");
    std::fs::write(&root, &old).unwrap();
    web.says("invalid peer certificate");
    before = changed(&chain, &(before + "x"));
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 200);
    std::fs::write(&root, &new).unwrap();
    changed(&chain, &before);
    let roots = chain.with_file_name("root-cert.pem");
    assert_eq!(std::fs::read_to_string(roots).unwrap().trim(), new.trim());
    assert_eq!(web.stop(), 0, "{}", web.said());
}
