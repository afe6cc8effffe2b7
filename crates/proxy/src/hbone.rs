//! Tunnels from other proxies, on port 15008.
//!
//! 1. Mutual TLS: the caller is of our trust domain, or there is no tunnel.
//! 2. Each stream is a CONNECT to an address of this pod: anything else is 400, a port of proxies 503.
//! 3. The workload must be known to discovery (waiting a little) and policy must allow the caller: 503, 401.
//! 4. The application is connected to: 503 if it cannot be.
//! 5. Only then 200, and bytes.

use crate::access::{self, Direction, Failure};
use crate::admit::{self, Arrival, Entry, Inbound, Refused};
use crate::budget::{FULL, Full, Permit};
use crate::connections::{Carriage, Ends, Watch};
use crate::context::Context;
use crate::copy::{self, Counters};
use crate::drain::Phase;
use crate::guard;
use crate::listen::Visitor;
use crate::mesh::Mesh;
use crate::pool::{CONNECTION_WINDOW, FRAME, STREAM_WINDOW, TLS_BUFFER, keep_alive};
use crate::rarely::rarely;
use crate::socket::{self, Batched, Speaker};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Method, Request, Response, StatusCode};
use remora_mtls::{AlpnProfile, PeerCertificate, PeerRole, SpiffeId};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Streams at once in one tunnel, and requests that may be taken back within a second.
const STREAMS: u32 = 200;
const SECOND: Duration = Duration::from_secs(1);

/// Who called, from where, and where it arrived.
#[derive(Debug)]
struct Caller {
    certificate: PeerCertificate,
    address: SocketAddr,
    local: IpAddr,
    speaker: Speaker,
    manners: Manners,
}

impl Caller {
    fn id(&self) -> &SpiffeId {
        self.certificate.id()
    }
}

/// How a tunnel is used.
#[derive(Debug, Default)]
struct Manners {
    /// Streams that are open.
    open: AtomicUsize,
    /// Requests that were taken back before they were answered, lately.
    given_up: AtomicU32,
}

/// Counts a stream for as long as it lives.
struct Counted(Arc<Caller>);

impl Counted {
    fn new(caller: Arc<Caller>) -> Self {
        caller.manners.open.fetch_add(1, Ordering::Relaxed);
        Self(caller)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.manners.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one tunnel until it ends.
pub(crate) async fn handle(visitor: Visitor, ctx: Arc<Context>) {
    let Visitor {
        stream,
        source: address,
        destination: local,
        speaker,
        place,
        mut permit,
    } = visitor;
    // Boxed: what the handshake needs is given back before the long part begins.
    let (certificate, connection) = match Box::pin(shake_in_time(stream, &mut permit, &ctx)).await {
        Ok(shaken) => shaken,
        Err(failure) => return log_failure(&ctx, [address, local], failure),
    };
    drop(place);
    let caller = Arc::new(Caller {
        certificate,
        address,
        local: local.ip(),
        speaker,
        manners: Manners::default(),
    });
    streams(connection, &caller, &ctx).await;
}

/// Boxed: it is large, and would be held twice on its way.
type Tunnel = Box<h2::server::Connection<TlsStream<Batched>, Bytes>>;

/// A tunnel of a mesh peer, which has a share of the connections.
async fn shake_in_time(
    stream: TcpStream,
    permit: &mut Permit,
    ctx: &Context,
) -> Result<(PeerCertificate, Tunnel), Failure> {
    let (certificate, connection) = tokio::select! {
        shaken = shake(stream, ctx) => shaken?,
        () = tokio::time::sleep(ctx.limits.handshake) => {
            return Err(Failure::new(access::Reason::Tls, "the handshake took too long"));
        }
        why = guard::evicted(permit) => return Err(why),
    };
    permit
        .authenticated(certificate.id())
        .map_err(|Full| Failure::new(access::Reason::Overload, FULL))?;
    Ok((certificate, connection))
}

async fn shake(stream: TcpStream, ctx: &Context) -> Result<(PeerCertificate, Tunnel), Failure> {
    let failed =
        |reason, what: &str, why: &dyn std::fmt::Display| Failure::new(reason, format_args!("{what}{why}"));
    let roots = ctx.identity.roots();
    let acceptor = TlsAcceptor::from(ctx.identity.server(AlpnProfile::Hbone));
    let mut tls = acceptor
        .accept(Batched::new(stream))
        .await
        .map_err(|e| failed(access::Reason::Tls, "TLS handshake: ", &e))?;
    let certificates = tls.get_ref().1.peer_certificates();
    let certificate = ctx
        .identity
        .peer_certificate(certificates, PeerRole::Client, roots)
        .map_err(|e| failed(access::Reason::Tls, "", &e))?;
    tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    let connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(16 << 10)
        .max_concurrent_streams(STREAMS)
        // Who asks and thinks better of it must not end the connections of others in the same tunnel.
        .max_pending_accept_reset_streams(STREAMS as usize)
        .handshake(tls)
        .await
        .map_err(|e| failed(access::Reason::Tunnel, "HTTP/2 handshake: ", &e))?;
    Ok((certificate, Box::new(connection)))
}

/// Accepts streams. The peer is told to send no more at the start of a drain, when nobody uses the tunnel, and when the
/// peer's certificate expires or its root is removed. Open streams then have a grace to end.
// istio: ztunnel reads the identity once; its tunnels outlive the certificates they rest on.
async fn streams(mut connection: Tunnel, caller: &Arc<Caller>, ctx: &Arc<Context>) {
    let pings = connection.ping_pong();
    let valid = guard::remaining(ctx, &caller.certificate);
    // Every message of every stream wakes this.
    let over = rarely(Box::pin(async {
        tokio::select! {
            () = keep_alive(pings) => {}
            () = ctx.drain.reached(Phase::Cut) => {}
            () = tokio::time::sleep(valid + ctx.limits.certificate_grace) => {}
        }
    }));
    let draining = rarely(Box::pin(async {
        tokio::select! {
            () = ctx.drain.reached(Phase::Draining) => {}
            () = tokio::time::sleep(valid) => {}
        }
    }));
    let pause = |time| rarely(Box::pin(tokio::time::sleep(time)));
    let quiet = pause(ctx.limits.pool_idle);
    tokio::pin!(over, draining, quiet);
    let (mut told, mut distrusted) = (false, false);
    let mut used = Instant::now();
    let mut second = used;
    loop {
        tokio::select! {
            biased;
            () = &mut over => return,
            () = &mut draining, if !told => {
                told = true;
                connection.graceful_shutdown();
            }
            () = &mut quiet, if !told || distrusted => {
                if distrusted {
                    return;
                }
                quiet.set(pause(ctx.limits.pool_idle));
                if ctx.identity.check(&caller.certificate).is_err() {
                    (told, distrusted) = (true, true);
                    quiet.set(pause(ctx.limits.certificate_grace));
                    connection.graceful_shutdown();
                    continue;
                }
                let open = caller.manners.open.load(Ordering::Relaxed);
                if open == 0 && used.elapsed() >= ctx.limits.pool_idle * 2 {
                    told = true;
                    connection.graceful_shutdown();
                }
            }
            stream = connection.accept() => {
                let Some(Ok((request, mut respond))) = stream else { return };
                if ctx.identity.check(&caller.certificate).is_err() {
                    // The peer may ask again in another tunnel, with the certificate it has now.
                    respond.send_reset(Reason::REFUSED_STREAM);
                    if !distrusted {
                        (told, distrusted) = (true, true);
                        quiet.set(pause(ctx.limits.certificate_grace));
                        connection.graceful_shutdown();
                    }
                    continue;
                }
                used = Instant::now();
                // Not the request itself: its headers would be kept as long as the connection.
                let named = authority(&request, &ctx.mesh, caller.local);
                let counted = Counted::new(Arc::clone(caller));
                let receive = request.into_body();
                tokio::spawn(stream_task(named, receive, respond, counted, Arc::clone(ctx)));
                let given_up = &caller.manners.given_up;
                if used - second >= SECOND {
                    second = used;
                    given_up.store(0, Ordering::Relaxed);
                } else if given_up.load(Ordering::Relaxed) > STREAMS {
                    break;
                }
            }
        }
    }
    // Requests are taken back faster than they can be answered: each of them may have cost a connection to the
    // application.
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    let gone = poll_fn(|cx| connection.poll_closed(cx));
    let _ = Box::pin(tokio::time::timeout(SECOND, gone)).await;
}

/// A stream that was accepted: where it goes and whether it may.
struct Accepted {
    destination: SocketAddr,
    upstream: TcpStream,
}

struct Refusal(StatusCode, Failure);

impl Refusal {
    fn unavailable(reason: access::Reason, text: impl std::fmt::Display) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, Failure::new(reason, text))
    }
}

async fn stream_task(
    named: Result<SocketAddr, Refused>,
    receive: RecvStream,
    mut respond: SendResponse<Bytes>,
    counted: Counted,
    ctx: Arc<Context>,
) {
    let caller = &*counted.0;
    let destination = *named.as_ref().unwrap_or(&SocketAddr::new(caller.local, 0));
    let ends = [caller.address, destination];
    let watch = Watch::new(&ctx, Direction::Inbound, ends);
    watch.know(Ends::inbound(
        &ctx,
        ends,
        Some(caller.id().clone()),
        Carriage::Hbone,
    ));
    let result = match ctx.budget.peer(caller.id()) {
        Err(Full) => Err(Refusal::unavailable(access::Reason::Overload, FULL)),
        Ok(_permit) => match judged(named, &mut respond, caller, &ctx).await {
            Ok(accepted) => carry(receive, &mut respond, accepted, caller, &ctx, &watch).await,
            Err(refusal) => Err(refusal),
        },
    };
    let failure = result.err().map(|Refusal(status, why)| {
        let response = Response::builder().status(status).body(());
        if let Ok(response) = response {
            // The peer may be gone, and then needs no answer.
            let _ = respond.send_response(response, true);
        }
        why
    });
    watch.end(failure);
}

/// Admits a stream, for as long as the caller waits.
async fn judged(
    named: Result<SocketAddr, Refused>,
    respond: &mut SendResponse<Bytes>,
    caller: &Caller,
    ctx: &Context,
) -> Result<Accepted, Refusal> {
    let Some(_place) = ctx.crowd.enter(caller.address.ip()) else {
        let why = "too many of its requests wait to be answered";
        return Err(Refusal::unavailable(access::Reason::Overload, why));
    };
    tokio::select! {
        admitted = Box::pin(admit(named, caller, ctx)) => admitted,
        // Nothing is kept for a caller that no longer waits.
        _ = poll_fn(|cx| respond.poll_reset(cx)) => {
            caller.manners.given_up.fetch_add(1, Ordering::Relaxed);
            Err(Refusal::unavailable(access::Reason::Reset, "the caller gave up"))
        }
    }
}

/// Where the caller wants to go.
pub(crate) fn authority<B>(request: &Request<B>, mesh: &Mesh, local: IpAddr) -> Result<SocketAddr, Refused> {
    if request.method() != Method::CONNECT {
        return Err(Refused::BadRequest(format!(
            "{} is not CONNECT",
            request.method()
        )));
    }
    let text = request.uri().authority().map(http::uri::Authority::as_str);
    admit::requested(mesh, text.unwrap_or_default(), local)
}

fn decide(ctx: &Context, caller: &Caller, destination: SocketAddr) -> Inbound {
    let arrival = Arrival {
        source: caller.address.ip(),
        id: Some(caller.id().clone()),
        destination,
        entry: Entry::Tunnel,
    };
    admit::inbound(&ctx.mesh, arrival)
}

async fn admit(
    named: Result<SocketAddr, Refused>,
    caller: &Caller,
    ctx: &Context,
) -> Result<Accepted, Refusal> {
    let destination = named?;
    known(ctx, destination.ip()).await;
    if let Some(refused) = decide(ctx, caller, destination).refused {
        return Err(refused.into());
    }
    let upstream = socket::connect_application(destination, caller.speaker, ctx.limits.connect)
        .await
        .map_err(|error| {
            let why = format_args!("connect to the application: {error}").to_string();
            Refusal::unavailable(access::Reason::Connect, why)
        })?;
    Ok(Accepted {
        destination,
        upstream,
    })
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self(refused.status(), refused.into())
    }
}

/// Waits a little for discovery to name the workload.
pub(crate) async fn known(ctx: &Context, address: IpAddr) {
    let mut changes = ctx.mesh.changes();
    let named = async {
        while ctx.mesh.workload(address).is_none() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // The caller looks again: what discovery says may change at any time.
    let _ = tokio::time::timeout(ctx.limits.discovery, named).await;
}

async fn carry(
    mut receive: RecvStream,
    respond: &mut SendResponse<Bytes>,
    mut accepted: Accepted,
    caller: &Caller,
    ctx: &Context,
    watch: &Watch,
) -> Result<(), Refusal> {
    let failed = |why: Failure| Refusal(StatusCode::OK, why);
    let traffic = watch.traffic();
    let mut send = respond
        .send_response(Response::new(()), false)
        .map_err(|error| failed(Failure::reset(error)))?;
    watch.established();
    let counters = Counters {
        from_socket: traffic.backward(),
        to_socket: traffic.forward(),
    };
    let destination = accepted.destination;
    let ended = tokio::select! {
        biased;
        why = guard::cut(ctx, traffic, std::future::pending(), || decide(ctx, caller, destination).refused) => Err(why),
        copied = copy::tunnel(&mut accepted.upstream, &mut send, &mut receive, &counters) => {
            copied.map_err(Failure::reset)
        }
    };
    ended.map_err(|why| {
        // RFC 9113 §8.5: an error of the connection is a reset of the stream.
        send.send_reset(Reason::CONNECT_ERROR);
        let _ = accepted.upstream.set_zero_linger();
        failed(why)
    })
}

fn log_failure(ctx: &Arc<Context>, ends: [SocketAddr; 2], failure: Failure) {
    let watch = Watch::new(ctx, Direction::Inbound, ends);
    watch.know(Ends::inbound(ctx, ends, None, Carriage::Hbone));
    watch.end(Some(failure));
}

#[cfg(test)]
mod tests {
    use super::{Caller, Counted, Manners, authority, known};
    use crate::admit::Refused;
    use crate::listen::tests::context;
    use crate::mesh::Mesh;
    use crate::socket::Speaker;
    use http::{Method, Request};
    use remora_mtls::PeerRole;
    use remora_xds::Message as _;
    use remora_xds::delta::{Change, Received};
    use remora_xds::proto::workload::address::Type;
    use remora_xds::proto::workload::{Address, Workload};
    use remora_xds::types::ADDRESS;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use tokio::time::Instant;

    /// On a clock that moves when everything waits.
    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_a_little_for_discovery_to_name_the_workload() {
        let (ctx, _) = context();
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let begin = Instant::now();
        known(&ctx, address.into()).await;
        assert!(begin.elapsed() >= ctx.limits.discovery, "nothing was named");
        let workload = Workload {
            uid: "cart-0".to_owned(),
            name: "cart-0".to_owned(),
            namespace: "shop".to_owned(),
            addresses: vec![address.octets().to_vec()],
            ..Workload::default()
        };
        let kind = Some(Type::Workload(workload));
        let bytes = Address { r#type: kind }.encode_to_vec();
        let begin = Instant::now();
        let soon = Duration::from_millis(10);
        let tell = async {
            tokio::time::sleep(soon).await;
            let name = "cart-0".to_owned();
            let change = Change::Update { name, bytes };
            assert!(ctx.mesh.apply(&Received::of(ADDRESS, vec![change])).is_empty());
        };
        tokio::join!(known(&ctx, address.into()), tell);
        assert!(begin.elapsed() >= soon && begin.elapsed() < ctx.limits.discovery);
        let begin = Instant::now();
        known(&ctx, address.into()).await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "what is known is not waited for");
    }

    /// A tunnel is closed for lack of use when no stream is counted.
    #[tokio::test]
    async fn a_stream_is_counted_for_as_long_as_it_lives() {
        let (ctx, leaf) = context();
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(leaf.as_bytes()).collect();
        let certificates = certificates.unwrap();
        let certificate =
            ctx.identity
                .peer_certificate(Some(&certificates), PeerRole::Client, ctx.identity.roots());
        let address = SocketAddr::from(([10, 0, 0, 1], 1));
        let caller = Arc::new(Caller {
            certificate: certificate.unwrap(),
            address,
            local: address.ip(),
            speaker: Speaker::Proxy,
            manners: Manners::default(),
        });
        let open = || caller.manners.open.load(Ordering::Relaxed);
        let first = Counted::new(Arc::clone(&caller));
        let second = Counted::new(Arc::clone(&caller));
        assert_eq!(open(), 2);
        drop(first);
        assert_eq!(open(), 1);
        drop(second);
        assert_eq!(open(), 0);
    }

    #[test]
    fn only_connect_to_an_address_of_this_pod_opens_a_stream() {
        let (mesh, local) = (Mesh::default(), Ipv4Addr::new(10, 0, 0, 1));
        let request = |method: Method, target: &str| {
            let request = Request::builder().method(method).uri(target).body(()).unwrap();
            authority(&request, &mesh, local.into())
        };
        assert_eq!(request(Method::CONNECT, "10.0.0.1:80"), Ok((local, 80).into()));
        for method in [Method::GET, Method::POST, Method::OPTIONS] {
            let refused = request(method, "http://10.0.0.1:80/");
            assert!(matches!(refused, Err(Refused::BadRequest(_))), "{refused:?}");
        }
        let nowhere = request(Method::CONNECT, "/path");
        assert!(matches!(nowhere, Err(Refused::BadRequest(_))), "{nowhere:?}");
        let other = request(Method::CONNECT, "10.0.0.2:80");
        assert!(matches!(other, Err(Refused::NotOurs(_))), "{other:?}");
    }

    /// What a function's future takes.
    fn future<A, B, C, D, E, F>(_: impl FnOnce(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection in a tunnel is one of these, for as long as it lives.
    #[test]
    fn a_stream_costs_little_more_than_its_state() {
        let stream = future(super::stream_task);
        assert!(stream <= 1650, "{stream} bytes");
    }
}
