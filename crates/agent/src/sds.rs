//! Certificates and roots for Envoy and for applications, over a unix socket.
//!
//! | name | what |
//! |---|---|
//! | `default` | the workload's certificate with its key |
//! | `ROOTCA` | the trusted roots of the mesh |
//! | `file-cert:CERT~KEY` | a pair of files |
//! | `file-root:BUNDLE` | a file of roots; `file-root:system` for the system's |
//!
//! Promises: a secret is sent as soon as it exists, and again when it changes. A pair of files is sent only when key and
//! certificate match, so a partial update is never sent. A secret that was sent stays in force when its files become
//! invalid. A name that can never exist ends the stream with the reason, so that Envoy logs it and retries.
// istio: state of the world only. differs from istio: delta streams are answered as well, because Envoy uses them if it
// is configured to.

mod secret;

pub use secret::NameError;

use remora_mtls::Pem;
use remora_xds::delta::{self, Audience, Snapshot, Versioned};
use remora_xds::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use remora_xds::proto::secret::secret_discovery_service_server::{
    SecretDiscoveryService, SecretDiscoveryServiceServer,
};
use remora_xds::types::SECRET;
use secret::{Held, Name};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Interval between two checks of the files that a client subscribes to. A check is a few system calls; files are read
/// only when they change.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Events of the secret service, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A secret was sent to a client, for the first time or after a change.
    Sent {
        /// Name of the secret.
        name: String,
    },
    /// A client refused a secret (NACK).
    Refused {
        /// The client's error message.
        why: String,
    },
    /// A changed file cannot be used; what was sent before stays.
    Kept {
        /// Name of the secret.
        name: String,
        /// Why the files cannot be used.
        why: String,
    },
}

/// Callback for events.
pub type OnNotice = Arc<dyn Fn(&Notice) + Send + Sync>;

/// The workload's current certificate and roots, for all streams.
#[derive(Debug, Clone)]
pub struct Secrets {
    shown: watch::Sender<Option<Arc<Pem>>>,
    parts: Arc<Mutex<Parts>>,
}

/// The parts that the secrets are assembled from.
#[derive(Debug, Default)]
struct Parts {
    certificate: Option<Pem>,
    /// Trusted roots in addition to those of the authority.
    more: String,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            shown: watch::channel(None).0,
            parts: Arc::default(),
        }
    }
}

impl Secrets {
    /// Replaces the certificate. All subscribed clients receive it.
    pub fn install(&self, pem: Pem) {
        self.change(|parts| parts.certificate = Some(pem));
    }

    /// Replaces the additional trusted roots.
    pub fn believe(&self, roots: String) {
        self.change(|parts| parts.more = roots);
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut parts);
        let shown = parts.certificate.as_ref().map(|pem| {
            Arc::new(Pem {
                roots: join_bundles(&pem.roots, &parts.more),
                ..pem.clone()
            })
        });
        self.shown.send_replace(shown);
    }
}

/// Joins two bundles.
fn join_bundles(roots: &str, more: &str) -> String {
    if more.is_empty() {
        return roots.to_owned();
    }
    format!("{}\n{more}", roots.trim_end())
}

/// Serves on a socket until `stop`.
pub async fn serve(
    listener: UnixListener,
    secrets: Secrets,
    tell: OnNotice,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    tonic::transport::Server::builder()
        .add_service(SecretDiscoveryServiceServer::new(Service { secrets, tell }))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
        .await
}

struct Service {
    secrets: Secrets,
    tell: OnNotice,
}

type Outgoing<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Service {
    type StreamSecretsStream = Outgoing<DiscoveryResponse>;
    type DeltaSecretsStream = Outgoing<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, Status> {
        Ok(Response::new(self.session(request.into_inner(), Sotw::default())))
    }

    async fn delta_secrets(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Ok(Response::new(
            self.session(request.into_inner(), Delta::default()),
        ))
    }
}

impl Service {
    fn session<P: Protocol>(&self, requests: Streaming<P::Request>, protocol: P) -> Outgoing<P::Response> {
        let (responses, outgoing) = mpsc::channel(1);
        let session = Session {
            protocol,
            certificate: self.secrets.shown.subscribe(),
            tell: Arc::clone(&self.tell),
            wanted: BTreeMap::new(),
        };
        tokio::spawn(session.run(requests, responses));
        ReceiverStream::new(outgoing)
    }
}

/// Subscribed secrets, with the version that was last sent.
type Wanted = BTreeMap<String, (Name, Option<Held>)>;

/// The differences between SotW and delta xDS.
trait Protocol: Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Updates the subscriptions. Returns the error message of a NACK.
    fn receive(&mut self, request: Self::Request, wanted: &mut Wanted) -> Result<Option<String>, Status>;

    /// The next response, once every subscribed secret exists.
    fn next(&mut self, wanted: &Wanted) -> Option<Self::Response>;
}

struct Session<P> {
    protocol: P,
    certificate: watch::Receiver<Option<Arc<Pem>>>,
    tell: OnNotice,
    wanted: Wanted,
}

impl<P: Protocol> Session<P> {
    async fn run(
        mut self,
        mut requests: Streaming<P::Request>,
        responses: mpsc::Sender<Result<P::Response, Status>>,
    ) {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let files = self.wanted.values().any(|(name, _)| name.is_file());
            tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => if let Err(status) = self.receive(request) {
                        let _ = responses.send(Err(status)).await;
                        return;
                    },
                    Ok(None) | Err(_) => return,
                },
                changed = self.certificate.changed() => if changed.is_err() {
                    return;
                },
                _ = poll.tick(), if files => {}
                () = responses.closed() => return,
            }
            if let Err(status) = self.update() {
                let _ = responses.send(Err(status)).await;
                return;
            }
            if let Some(response) = self.protocol.next(&self.wanted)
                && responses.send(Ok(response)).await.is_err()
            {
                return;
            }
        }
    }

    fn receive(&mut self, request: P::Request) -> Result<(), Status> {
        let refused = self.protocol.receive(request, &mut self.wanted)?;
        if let Some(why) = refused {
            (self.tell)(&Notice::Refused { why });
        }
        Ok(())
    }

    /// Updates the subscribed secrets from their sources.
    fn update(&mut self) -> Result<(), Status> {
        let certificate = self.certificate.borrow_and_update().clone();
        for (text, (name, held)) in &mut self.wanted {
            let name_of = || text.clone();
            match name.current(text, certificate.as_deref(), held.as_ref()) {
                Ok(None) => {}
                Ok(Some(new)) => {
                    *held = Some(new);
                    (self.tell)(&Notice::Sent { name: name_of() });
                }
                Err(error) => match held {
                    // Reported once for each state of the files.
                    Some(held) => {
                        if held.mark_unusable(error.stamp) {
                            (self.tell)(&Notice::Kept {
                                name: name_of(),
                                why: error.why,
                            });
                        }
                    }
                    None => return Err(Status::not_found(error.why)),
                },
            }
        }
        Ok(())
    }
}

/// State of the world: every response holds all subscribed secrets.
#[derive(Default)]
struct Sotw {
    sent: Option<BTreeMap<String, String>>,
    nonces: u64,
}

impl Protocol for Sotw {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn receive(&mut self, request: DiscoveryRequest, wanted: &mut Wanted) -> Result<Option<String>, Status> {
        wanted.retain(|name, _| request.resource_names.contains(name));
        want(wanted, request.resource_names)?;
        Ok(request.error_detail.map(|status| status.message))
    }

    fn next(&mut self, wanted: &Wanted) -> Option<DiscoveryResponse> {
        let held = complete(wanted)?;
        let now: BTreeMap<String, String> = held
            .iter()
            .map(|(name, held)| ((*name).clone(), held.version.clone()))
            .collect();
        if now.is_empty() || self.sent.as_ref() == Some(&now) {
            return None;
        }
        self.nonces += 1;
        let resources = held.iter().map(|(_, held)| prost_types::Any {
            type_url: SECRET.to_owned(),
            value: held.bytes.clone(),
        });
        let response = DiscoveryResponse {
            version_info: now.values().map(String::as_str).collect::<Vec<_>>().join("."),
            resources: resources.collect(),
            type_url: SECRET.to_owned(),
            nonce: self.nonces.to_string(),
        };
        self.sent = Some(now);
        Some(response)
    }
}

/// Delta: a response holds the changed secrets.
#[derive(Default)]
struct Delta(delta::Server);

impl Protocol for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn receive(
        &mut self,
        request: DeltaDiscoveryRequest,
        wanted: &mut Wanted,
    ) -> Result<Option<String>, Status> {
        for name in &request.resource_names_unsubscribe {
            wanted.remove(name);
        }
        want(wanted, request.resource_names_subscribe.iter().cloned())?;
        self.0
            .receive(request)
            .map_err(|error| Status::resource_exhausted(error.to_string()))
    }

    fn next(&mut self, wanted: &Wanted) -> Option<DeltaDiscoveryResponse> {
        let resource = |(name, held): (&String, &Held)| {
            let versioned = Versioned {
                version: held.version.clone(),
                bytes: held.bytes.clone(),
                aliases: Vec::new(),
                audience: Audience::Everyone,
            };
            (name.clone(), versioned)
        };
        let snapshot = Snapshot::new(complete(wanted)?.into_iter().map(resource));
        // Encoded by this process, so decoding cannot fail.
        self.0.next(SECRET, &snapshot)?.message().ok()
    }
}

fn want(wanted: &mut Wanted, names: impl IntoIterator<Item = String>) -> Result<(), Status> {
    for text in names {
        let name = Name::parse(&text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        wanted.entry(text).or_insert((name, None));
    }
    Ok(())
}

/// All subscribed secrets; `None` while one is missing.
fn complete(wanted: &Wanted) -> Option<Vec<(&String, &Held)>> {
    let held = wanted
        .iter()
        .map(|(name, (_, held))| Some((name, held.as_ref()?)));
    held.collect()
}
