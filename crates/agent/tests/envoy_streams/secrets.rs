//! Secrets.

use crate::{channel, soon};
use remora_agent::sds::{self, Notice, Secrets};
use remora_mtls::{Authority, Pem, PrivateKey, SpiffeId};
use remora_xds::Message as _;
use remora_xds::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Status,
};
use remora_xds::proto::secret::secret_discovery_service_client::SecretDiscoveryServiceClient;
use remora_xds::proto::tls::data_source::Specifier;
use remora_xds::proto::tls::secret::Type;
use remora_xds::proto::tls::{DataSource, Secret};
use remora_xds::types::SECRET;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

fn authority() -> Authority {
    Authority::generate("t", SystemTime::now(), Duration::from_hours(10)).unwrap()
}

fn pem(authority: &Authority) -> Pem {
    let id = SpiffeId::of_service_account("td", "shop", "web").unwrap();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id).unwrap();
    let issued = authority
        .issue(&request, &id, Duration::from_hours(1), SystemTime::now())
        .unwrap();
    Pem {
        chain: issued.leaf,
        key: key.to_pem(),
        roots: authority.roots(),
    }
}

struct Scene {
    directory: TempDir,
    secrets: Secrets,
    notices: std::sync::mpsc::Receiver<Notice>,
    client: SecretDiscoveryServiceClient<Channel>,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let secrets = Secrets::default();
        let (say, notices) = std::sync::mpsc::channel();
        let tell = Arc::new(move |notice: &Notice| drop(say.send(notice.clone())));
        tokio::spawn(sds::serve(
            listener,
            secrets.clone(),
            tell,
            std::future::pending(),
        ));
        Self {
            client: SecretDiscoveryServiceClient::new(channel(&path)),
            directory,
            secrets,
            notices,
        }
    }

    async fn ask(&mut self, names: &[&str]) -> Stream {
        let (requests, outgoing) = mpsc::channel(4);
        let request = DiscoveryRequest {
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            type_url: SECRET.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.send(request.clone()).await.unwrap();
        let opened = self.client.stream_secrets(ReceiverStream::new(outgoing));
        Stream {
            request,
            requests,
            responses: soon(opened).await.unwrap().into_inner(),
        }
    }
}

/// As Envoy has it.
struct Stream {
    request: DiscoveryRequest,
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

impl Stream {
    /// The next secrets, accepted.
    async fn next(&mut self) -> Vec<Secret> {
        let response = soon(self.responses.message()).await.unwrap().unwrap();
        assert_eq!(response.type_url, SECRET);
        let mut answer = self.request.clone();
        answer.response_nonce = response.nonce;
        answer.version_info = response.version_info;
        self.requests.send(answer).await.unwrap();
        let decode = |any: &prost_types::Any| Secret::decode(&any.value[..]).unwrap();
        response.resources.iter().map(decode).collect()
    }
}

fn text(source: Option<&DataSource>) -> String {
    match source.and_then(|source| source.specifier.as_ref()) {
        Some(Specifier::InlineBytes(bytes)) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?} is not inline"),
    }
}

fn pair(secret: &Secret) -> (String, String) {
    match &secret.r#type {
        Some(Type::TlsCertificate(pair)) => (
            text(pair.certificate_chain.as_ref()),
            text(pair.private_key.as_ref()),
        ),
        other => panic!("{other:?} is no certificate"),
    }
}

fn roots(secret: &Secret) -> String {
    match &secret.r#type {
        Some(Type::ValidationContext(context)) => text(context.trusted_ca.as_ref()),
        other => panic!("{other:?} are no roots"),
    }
}

#[tokio::test]
async fn a_certificate_is_sent_when_there_is_one_and_again_when_it_changes() {
    let mut scene = Scene::new();
    let authority = authority();
    let (first, second) = (pem(&authority), pem(&authority));
    let (mut certificate, mut trusted) = (scene.ask(&["default"]).await, scene.ask(&["ROOTCA"]).await);
    scene.secrets.install(first.clone());
    let sent = certificate.next().await;
    assert_eq!(sent[0].name, "default");
    assert_eq!(pair(&sent[0]), (first.chain, first.key));
    assert_eq!(roots(&trusted.next().await[0]), authority.roots());
    scene.secrets.install(second.clone());
    assert_eq!(
        pair(&certificate.next().await[0]),
        (second.chain.clone(), second.key.clone())
    );
    // The roots did not change, so the next response about roots carries new ones.
    let other = self::authority();
    scene.secrets.install(Pem {
        roots: other.roots(),
        ..second
    });
    assert_eq!(roots(&trusted.next().await[0]), other.roots());
}

#[tokio::test]
async fn several_names_on_a_stream_are_answered_together() {
    let mut scene = Scene::new();
    let pem = pem(&authority());
    let mut stream = scene.ask(&["ROOTCA", "default"]).await;
    scene.secrets.install(pem.clone());
    let sent = stream.next().await;
    let names: Vec<&str> = sent.iter().map(|secret| secret.name.as_str()).collect();
    assert_eq!(names, ["ROOTCA", "default"]);
    assert_eq!(roots(&sent[0]), pem.roots);
    assert_eq!(pair(&sent[1]), (pem.chain, pem.key));
}

#[tokio::test]
async fn a_refusal_is_told() {
    let mut scene = Scene::new();
    scene.secrets.install(pem(&authority()));
    let mut stream = scene.ask(&["default"]).await;
    stream.next().await;
    let mut refusal = stream.request.clone();
    refusal.error_detail = Some(Status {
        code: 13,
        message: "no such curve".to_owned(),
    });
    stream.requests.send(refusal).await.unwrap();
    let told = tokio::task::spawn_blocking(move || {
        let patience = crate::TEST_TIMEOUT;
        std::iter::from_fn(|| scene.notices.recv_timeout(patience).ok())
            .find(|notice| matches!(notice, Notice::Refused { .. }))
    });
    let why = "no such curve".to_owned();
    assert_eq!(told.await.unwrap(), Some(Notice::Refused { why }));
}

/// Replaces the directory behind the links, as the kubelet does.
fn publish(directory: &Path, number: u32, pem: &Pem) {
    let version = format!("..version-{number}");
    std::fs::create_dir(directory.join(&version)).unwrap();
    std::fs::write(directory.join(&version).join("cert.pem"), &pem.chain).unwrap();
    std::fs::write(directory.join(&version).join("key.pem"), &pem.key).unwrap();
    std::os::unix::fs::symlink(&version, directory.join("..data_tmp")).unwrap();
    std::fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for name in ["cert.pem", "key.pem"] {
        let _ = std::os::unix::fs::symlink(Path::new("..data").join(name), directory.join(name));
    }
}

#[tokio::test]
async fn mounted_certificates_are_followed_through_kubernetes_links() {
    let mut scene = Scene::new();
    let authority = authority();
    let directory = scene.directory.path().to_owned();
    let versions = [pem(&authority), pem(&authority), pem(&authority)];
    publish(&directory, 0, &versions[0]);
    let name = format!(
        "file-cert:{}~{}",
        directory.join("cert.pem").display(),
        directory.join("key.pem").display()
    );
    let mut stream = scene.ask(&[&name]).await;
    for (number, pem) in (0..).zip(&versions) {
        if number > 0 {
            publish(&directory, number, pem);
        }
        assert_eq!(
            pair(&stream.next().await[0]),
            (pem.chain.clone(), pem.key.clone()),
            "version {number}"
        );
    }
}

#[tokio::test]
async fn half_of_an_exchange_is_not_sent() {
    let mut scene = Scene::new();
    let authority = authority();
    let (first, second) = (pem(&authority), pem(&authority));
    let (cert, key) = (scene.directory.path().join("c"), scene.directory.path().join("k"));
    std::fs::write(&cert, &first.chain).unwrap();
    std::fs::write(&key, &first.key).unwrap();
    let name = format!("file-cert:{}~{}", cert.display(), key.display());
    let mut stream = scene.ask(&[&name]).await;
    stream.next().await;
    std::fs::write(&cert, &second.chain).unwrap();
    let notices = scene.notices;
    let kept = tokio::task::spawn_blocking(move || {
        std::iter::from_fn(|| notices.recv_timeout(crate::TEST_TIMEOUT).ok())
            .any(|notice| matches!(notice, Notice::Kept { .. }))
    });
    assert!(kept.await.unwrap(), "the halfway state was seen");
    std::fs::write(&key, &second.key).unwrap();
    assert_eq!(pair(&stream.next().await[0]), (second.chain, second.key));
}

#[tokio::test]
async fn what_can_never_be_answered_ends_the_stream_with_the_reason() {
    let mut scene = Scene::new();
    for (name, why) in [
        ("kubernetes://gateway", "is no secret"),
        ("file-root:/does/not/exist", "/does/not/exist"),
    ] {
        let mut stream = scene.ask(&[name]).await;
        let status = soon(stream.responses.message()).await.unwrap_err();
        assert!(status.message().contains(why), "{status}");
    }
}

#[tokio::test]
async fn incremental_streams_are_answered_as_well() {
    let mut scene = Scene::new();
    let authority = authority();
    let (requests, outgoing) = mpsc::channel(4);
    let wish = DeltaDiscoveryRequest {
        type_url: SECRET.to_owned(),
        resource_names_subscribe: vec!["default".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(wish).await.unwrap();
    let opened = scene.client.delta_secrets(ReceiverStream::new(outgoing));
    let mut responses: Streaming<DeltaDiscoveryResponse> = soon(opened).await.unwrap().into_inner();
    for _ in 0..2 {
        let pem = pem(&authority);
        scene.secrets.install(pem.clone());
        let response = soon(responses.message()).await.unwrap().unwrap();
        let any = response.resources[0].resource.clone().unwrap();
        assert_eq!(
            pair(&Secret::decode(&any.value[..]).unwrap()),
            (pem.chain, pem.key)
        );
        let answer = DeltaDiscoveryRequest {
            type_url: SECRET.to_owned(),
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(answer).await.unwrap();
    }
}
