//! Pulls from a real registry (Debian's docker-registry) and from one that misbehaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/fake.rs"]
mod fake;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::images::{Item, gzip, layer, layout};
use fake::{Asked, Fake, Reply};
use remora_engine::image::{Digest, PullPolicy};
use remora_engine::registry::{Client, Credentials, Event, Progress, PullError, Settings, ensure};
use remora_engine::store::Store;
use remora_testkit::has_programs;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// An image as a registry has it: blobs by digest, and the manifest.
struct Sample {
    blobs: BTreeMap<String, Vec<u8>>,
    manifest: Vec<u8>,
    layers: Vec<Digest>,
}

fn sample() -> Sample {
    let big: Vec<u8> = (0..600_000u32)
        .flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 7).to_le_bytes())
        .take(600_000)
        .collect();
    let plain = vec![
        layer(&[Item::File("small", b"small", 0o644)]),
        layer(&[Item::File("big", &big, 0o644)]),
    ];
    let compressed: Vec<Vec<u8>> = plain.iter().map(|l| gzip(l)).collect();
    let files = layout("x", &plain, &compressed, &json!({"Cmd": ["run"]}));
    let mut blobs = BTreeMap::new();
    let mut manifest = Vec::new();
    for (path, data) in files {
        if let Some(hex) = path.strip_prefix("blobs/sha256/") {
            if data.starts_with(br#"{"config":{"digest"#)
                || data.windows(15).any(|w| w == b"\"schemaVersion\"")
            {
                manifest = data;
            } else {
                blobs.insert(format!("sha256:{hex}"), data);
            }
        }
    }
    Sample {
        blobs,
        manifest,
        layers: compressed.iter().map(|l| Digest::of(l)).collect(),
    }
}

impl Sample {
    fn answer(&self, asked: &Asked) -> Reply {
        let last = asked.path.rsplit('/').next().unwrap();
        if asked.path.contains("/manifests/") {
            return Reply::ok(self.manifest.clone());
        }
        let Some(blob) = self.blobs.get(last) else {
            return Reply::status(404);
        };
        match asked
            .header("range")
            .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok())
        {
            Some(from) => Reply {
                status: 206,
                body: blob[from..].to_vec(),
                ..Reply::default()
            }
            .with(
                "content-range",
                format!("bytes {from}-{}/{}", blob.len() - 1, blob.len()),
            ),
            None => Reply::ok(blob.clone()),
        }
    }
}

struct Puller {
    dir: TempDir,
    store: Arc<Store>,
    client: Client,
    credentials: Credentials,
}

impl Puller {
    fn new(settings: Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path().join("store")).unwrap());
        Self {
            dir,
            store,
            client: Client::new(settings).unwrap(),
            credentials: Credentials::default(),
        }
    }

    fn login(&mut self, registry: &str, user: &str, password: &str) {
        let auth = STANDARD.encode(format!("{user}:{password}"));
        self.credentials =
            Credentials::from_json(&json!({"auths": {registry: {"auth": auth}}}).to_string()).unwrap();
    }

    async fn pull(&self, image: &str) -> Result<Vec<Event>, PullError> {
        self.pull_by(image, None).await
    }

    async fn pull_by(&self, image: &str, policy: Option<PullPolicy>) -> Result<Vec<Event>, PullError> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let progress: Progress = Arc::new(move |event| seen.lock().unwrap().push(event));
        let image = ensure(
            &self.store,
            &self.client,
            image,
            policy,
            &self.credentials,
            &progress,
        )
        .await?;
        assert_eq!(std::fs::read(image.layers[1].join("small")).unwrap(), b"small");
        assert_eq!(
            std::fs::metadata(image.layers[0].join("big")).unwrap().len(),
            600_000
        );
        assert_eq!(image.config.cmd, ["run"]);
        Ok(std::mem::take(&mut *events.lock().unwrap()))
    }

    /// Nothing but what can be taken up again is left.
    fn assert_clean(&self, what: &str) {
        let store = self.dir.path().join("store");
        let tmp = std::fs::read_dir(store.join("tmp")).unwrap().flatten();
        let left: Vec<String> = tmp.map(|e| e.file_name().display().to_string()).collect();
        assert!(left.iter().all(|n| n.starts_with("partial-")), "{what}: {left:?}");
        assert_eq!(
            std::fs::read_dir(store.join("images")).unwrap().count(),
            0,
            "{what}"
        );
    }
}

/// The real thing on loopback; ends with the value.
struct Registry {
    child: Child,
    _dir: TempDir,
    host: String,
    login: Option<String>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Registry {
    fn start(password: Option<&str>) -> Option<Self> {
        if !has_programs(&[("docker-registry", "apt-get install docker-registry")]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            dir.path().join("data").display()
        );
        if let Some(password) = password {
            // The form the registry wants, by the C library.
            let script = "print crypt($ARGV[0], q($2y$05$abcdefghijklmnopqrstuu))";
            let hash = Command::new("perl")
                .args(["-e", script, password])
                .output()
                .unwrap()
                .stdout;
            let file = dir.path().join("htpasswd");
            std::fs::write(&file, [b"me:", &hash[..], b"\n"].concat()).unwrap();
            let auth = format!("auth:\n  htpasswd:\n    realm: r\n    path: {}\n", file.display());
            config.push_str(&auth);
        }
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let host = format!("127.0.0.1:{port}");
        let login =
            password.map(|p| format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("me:{p}"))));
        let registry = Self {
            child,
            _dir: dir,
            host,
            login,
        };
        for _ in 0..500 {
            if TcpStream::connect(&registry.host).is_ok() {
                return Some(registry);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("the registry does not come up");
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\n{}Content-Length: {}\r\n\r\n",
            self.host,
            self.login.as_deref().unwrap_or_default(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let location = text
            .lines()
            .find_map(|l| l.strip_prefix("Location: "))
            .unwrap_or_default();
        (status, location.to_owned())
    }

    fn push(&self, sample: &Sample, name: &str, tag: &str) {
        for (digest, blob) in &sample.blobs {
            let (status, location) = self.request("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"");
            assert_eq!(status, 202);
            let path = location
                .split_once(&self.host)
                .map_or(location.as_str(), |(_, path)| path);
            let path = format!("{path}&digest={digest}");
            assert_eq!(
                self.request("PUT", &path, "application/octet-stream", blob).0,
                201
            );
        }
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let mut manifest: serde_json::Value = serde_json::from_slice(&sample.manifest).unwrap();
        manifest["mediaType"] = kind.into();
        let path = format!("/v2/{name}/manifests/{tag}");
        assert_eq!(
            self.request("PUT", &path, kind, manifest.to_string().as_bytes())
                .0,
            201
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry() {
    let Some(registry) = Registry::start(None) else {
        return;
    };
    let sample = sample();
    registry.push(&sample, "team/app", "v1");
    let image = format!("{}/team/app:v1", registry.host);
    let puller = Puller::new(Settings::default());
    let events = puller.pull(&image).await.unwrap();
    let sizes = sample
        .layers
        .iter()
        .map(|l| sample.blobs[l.as_str()].len() as u64)
        .enumerate();
    let missing = sizes.map(|(i, size)| (i + 1, size)).collect();
    assert_eq!(events[..2], [Event::Asking, Event::Missing(missing)]);
    assert!(events.contains(&Event::Unpacking { layer: 2 }));
    // Present: nobody is asked. Always: asked, and nothing fetched.
    assert_eq!(puller.pull(&image).await.unwrap(), []);
    assert_eq!(
        puller.pull_by(&image, Some(PullPolicy::Always)).await.unwrap(),
        [Event::Asking]
    );
    assert_eq!(puller.store.names().unwrap(), std::slice::from_ref(&image));
    let missing = puller
        .pull(&format!("{}/team/app:v2", registry.host))
        .await
        .unwrap_err();
    assert!(
        matches!(&missing, PullError::Status { status: 404, message, .. } if message == "manifest unknown"),
        "{missing}"
    );
    assert_eq!(missing.reason(), "ErrImagePull");
    drop(registry);
    // The registry is gone: what is here still works, what is not does not.
    assert_eq!(puller.pull(&image).await.unwrap(), []);
    assert!(puller.pull_by(&image, Some(PullPolicy::Always)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry_with_a_password() {
    let Some(registry) = Registry::start(Some("secret")) else {
        return;
    };
    registry.push(&sample(), "private", "v1");
    let image = format!("{}/private:v1", registry.host);
    let mut puller = Puller::new(Settings::default());
    let refused = puller.pull(&image).await.unwrap_err();
    assert!(
        matches!(refused, PullError::Status { status: 401, .. }),
        "{refused}"
    );
    assert!(refused.hint().unwrap().contains("docker login"));
    puller.login(&registry.host, "me", "wrong");
    assert!(puller.pull(&image).await.is_err());
    puller.login(&registry.host, "me", "secret");
    puller.pull(&image).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_fetch_once() {
    let sample = sample();
    let fake = Fake::new(move |asked| sample.answer(asked));
    let puller = Arc::new(Puller::new(Settings::default()));
    let image = format!("{}/a:1", fake.address);
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (puller, image) = (Arc::clone(&puller), image.clone());
            tokio::spawn(async move { puller.pull(&image).await.unwrap() })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(fake.asked("/blobs/").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_download_is_taken_up() {
    let sample = Arc::new(sample());
    for ranges in [true, false] {
        let (sample, tries) = (Arc::clone(&sample), AtomicUsize::new(0));
        let big = sample.layers[1].to_string();
        let watched = big.clone();
        let fake = Fake::new(move |asked| {
            if !asked.path.ends_with(&watched) {
                return sample.answer(asked);
            }
            let mut reply = if ranges {
                sample.answer(asked)
            } else {
                Reply::ok(sample.blobs[&watched].clone())
            };
            if tries.fetch_add(1, Ordering::Relaxed) < 2 {
                reply.cut = Some(reply.body.len() / 3);
            }
            reply
        });
        let puller = Puller::new(Settings::default());
        puller.pull(&format!("{}/a:1", fake.address)).await.unwrap();
        let asked = fake.asked(&big);
        assert_eq!(asked.len(), 3);
        assert_eq!(asked[0].header("range"), None);
        assert!(asked[1].header("range").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_was_interrupted_goes_on_where_it_was() {
    let sample = Arc::new(sample());
    let big = sample.layers[1].clone();
    let puller = Puller::new(Settings::default());
    // What another process had fetched when it was killed; the second time it is damaged.
    for damage in [false, true] {
        let mut part = sample.blobs[big.as_str()][..200_000].to_vec();
        if damage {
            part[100_000] ^= 1;
        }
        let path = puller
            .dir
            .path()
            .join("store/tmp")
            .join(format!("partial-{}", big.hex()));
        std::fs::write(&path, part).unwrap();
        let answers = Arc::clone(&sample);
        let fake = Fake::new(move |asked| answers.answer(asked));
        puller.pull(&format!("{}/a:1", fake.address)).await.unwrap();
        let asked = fake.asked(big.as_str());
        assert_eq!(asked[0].header("range"), Some("bytes=200000-"));
        assert_eq!(asked.len(), if damage { 2 } else { 1 });
        assert!(!path.exists());
        for layer in std::fs::read_dir(puller.dir.path().join("store/layers"))
            .unwrap()
            .flatten()
        {
            std::fs::remove_dir_all(layer.path()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_who_gets_credentials() {
    let sample = Arc::new(sample());
    // Blobs come from elsewhere, where no credentials may arrive.
    let answers = Arc::clone(&sample);
    let elsewhere = Fake::new(move |asked| answers.answer(asked));
    let away = format!("http://{}", elsewhere.address);
    let own = Arc::new(Mutex::new(String::new()));
    let here = Arc::clone(&own);
    let fake = Fake::new(move |asked| {
        let host = here.lock().unwrap().clone();
        if asked.path.starts_with("/token?") {
            let basic = format!("Basic {}", STANDARD.encode("me:secret"));
            if asked.header("authorization") != Some(&basic) {
                return Reply::status(401);
            }
            return Reply::ok(r#"{"token": "", "access_token": "ticket"}"#);
        }
        if asked.header("authorization") != Some("Bearer ticket") {
            let challenge =
                format!(r#"Bearer realm="http://{host}/token",service="s",scope="repository:a:pull""#);
            return Reply::status(401).with("www-authenticate", challenge);
        }
        if asked.path.contains("/blobs/") {
            return Reply::status(307).with("location", format!("{away}{}", asked.path));
        }
        sample.answer(asked)
    });
    *own.lock().unwrap() = fake.address.to_string();
    let mut puller = Puller::new(Settings::default());
    let image = format!("{}/a:1", fake.address);
    assert!(puller.pull(&image).await.is_err());
    puller.login(&fake.address.to_string(), "me", "secret");
    puller.pull(&image).await.unwrap();
    let token = fake.asked("/token");
    assert_eq!(
        token.last().unwrap().path,
        "/token?scope=repository%3Aa%3Apull&service=s"
    );
    let blobs = elsewhere.asked("/blobs/");
    assert!(!blobs.is_empty() && blobs.iter().all(|b| b.header("authorization").is_none()));
}

/// How a registry misbehaves, and what is said about it.
type Misdeed = (
    &'static str,
    &'static str,
    Box<dyn Fn(&Sample, &Asked) -> Reply + Send + Sync>,
);

fn misdeeds() -> Vec<Misdeed> {
    let blob = |asked: &Asked| asked.path.contains("/blobs/");
    vec![
        (
            "other content",
            "has the content of",
            Box::new(move |s, a| {
                let mut reply = s.answer(a);
                if blob(a) {
                    reply.body[10] ^= 1;
                }
                reply
            }),
        ),
        (
            "more than promised",
            "has not the size",
            Box::new(move |s, a| {
                let mut reply = s.answer(a);
                if blob(a) {
                    reply.body.push(0);
                }
                reply
            }),
        ),
        (
            "endless manifest",
            "sends more than",
            Box::new(|_, _| Reply::ok(vec![b' '; 5 << 20])),
        ),
        (
            "manifest is noise",
            "manifest of",
            Box::new(|_, _| Reply::ok("<html>")),
        ),
        (
            "redirects in circles",
            "redirects again",
            Box::new(|_, a| Reply::status(302).with("location", a.path.clone())),
        ),
        (
            "redirects to nowhere",
            "redirects to nowhere",
            Box::new(|_, _| Reply::status(302)),
        ),
        (
            "strange challenge",
            "answered 401",
            Box::new(|_, _| Reply::status(401).with("www-authenticate", "Negotiate")),
        ),
        (
            "always another token",
            "answered 401",
            Box::new(|_, a| {
                if a.path.starts_with("/t") {
                    return Reply::ok(r#"{"token":"x"}"#);
                }
                let realm = format!("http://{}/t", a.header("host").unwrap());
                Reply::status(401).with("www-authenticate", format!("Bearer realm=\"{realm}\""))
            }),
        ),
        (
            "other machine",
            "is for windows/amd64",
            Box::new(|_, _| {
                let digest = Digest::of(b"x");
                let entry = json!({"digest": digest.as_str(), "size": 1, "platform": {"os": "windows", "architecture": "amd64"}});
                Reply::ok(json!({"manifests": [entry]}).to_string())
            }),
        ),
        (
            "index in index in index",
            "neither a manifest nor an index",
            Box::new(|_, _| Reply::ok("{}")),
        ),
        (
            "secrets in the message",
            "answered 418",
            Box::new(|_, _| {
                let mut reply = Reply::status(418);
                reply.body = json!({"errors": [{"message": "\u{1b}[31mred\nline"}]})
                    .to_string()
                    .into();
                reply
            }),
        ),
        (
            "manifest promises too much",
            "has not the size",
            Box::new(move |s, a| {
                if blob(a) {
                    return s.answer(a);
                }
                let text = String::from_utf8(s.manifest.clone()).unwrap();
                let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
                value["config"]["size"] = json!(1u64 << 40);
                Reply::ok(value.to_string())
            }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_misbehaves() {
    let sample = Arc::new(sample());
    for (what, said, deed) in misdeeds() {
        let sample = Arc::clone(&sample);
        let fake = Fake::new(move |asked| deed(&sample, asked));
        let puller = Puller::new(Settings::default());
        let error = puller.pull(&format!("{}/a:1", fake.address)).await.unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text = format!("{text}: {inner}");
            source = inner.source();
        }
        assert!(text.contains(said), "{what}: {text}");
        assert!(!text.contains(['\u{1b}', '\n']), "{what}: {text:?}");
        puller.assert_clean(what);
    }
}

/// A digest in the name of an image says which manifest it is; a registry cannot give another one.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_named_by_its_digest_is_that_image_or_none() {
    let sample = Arc::new(sample());
    let answers = Arc::clone(&sample);
    let fake = Fake::new(move |asked| answers.answer(asked));
    let image = |digest: &Digest| format!("{}/a@{}", fake.address, digest.as_str());
    let puller = Puller::new(Settings::default());
    let error = puller.pull(&image(&Digest::of(b"another"))).await.unwrap_err();
    assert!(error.to_string().contains("content"), "{error}");
    puller.assert_clean("another manifest");
    puller.pull(&image(&Digest::of(&sample.manifest))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_passes_and_mirrors() {
    let sample = Arc::new(sample());
    let (answers, tries) = (Arc::clone(&sample), AtomicUsize::new(0));
    let mirror = Fake::new(move |asked| {
        if tries.fetch_add(1, Ordering::Relaxed) == 0 {
            return Reply::status(503);
        }
        answers.answer(asked)
    });
    // The first mirror does not have it, nobody listens at the registry itself.
    let empty = Fake::new(|_| Reply::status(404));
    let mirrors = vec![
        format!("http://{}", empty.address),
        format!("http://{}/", mirror.address),
    ];
    let settings = Settings {
        mirrors: BTreeMap::from([("127.0.0.1:1".to_owned(), mirrors)]),
        ..Settings::default()
    };
    let puller = Puller::new(settings);
    puller.pull("127.0.0.1:1/a:1").await.unwrap();
    assert_eq!(empty.asked("").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_a_certificate_that_is_trusted_or_not() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let pem = key.cert.pem();
    let certificates = vec![key.cert.der().clone()];
    let secret = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let server = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, secret)
        .unwrap();
    let server = Arc::new(server);
    let sample = sample();
    let fake = Fake::wrapped(
        move |asked| {
            if asked.path.contains("/manifests/down") {
                return Reply::status(302).with("location", "http://localhost:1/");
            }
            sample.answer(asked)
        },
        move |stream| {
            let connection = rustls::ServerConnection::new(Arc::clone(&server)).ok()?;
            Some(rustls::StreamOwned::new(connection, stream))
        },
    );
    let mirror = format!("https://localhost:{}", fake.address.port());
    let mut settings = Settings {
        mirrors: BTreeMap::from([("127.0.0.1:1".to_owned(), vec![mirror])]),
        ..Settings::default()
    };
    let puller = Puller::new(settings.clone());
    assert!(puller.pull("127.0.0.1:1/a:1").await.is_err());
    settings.extra_roots = Some(pem);
    let puller = Puller::new(settings);
    puller.pull("127.0.0.1:1/a:1").await.unwrap();
    // Nothing is asked for without TLS because somebody with TLS says so.
    assert!(puller.pull("127.0.0.1:1/a:down").await.is_err());
}

#[tokio::test]
async fn policies() {
    let puller = Puller::new(Settings::default());
    let never = puller
        .pull_by("127.0.0.1:1/a:1", Some(PullPolicy::Never))
        .await
        .unwrap_err();
    assert_eq!(never.reason(), "ErrImageNeverPull");
    let name = puller.pull("Not A Name").await.unwrap_err();
    assert_eq!(name.reason(), "InvalidImageName");
}
