//! Accepts connections and sees a proxy through its end.

use crate::access::{Direction, Failure, Reason};
use crate::budget::{FULL, Permit};
use crate::connections::{Carriage, Ends, Watch};
use crate::context::Context;
use crate::crowd::Place;
use crate::drain::Phase;
use crate::route::HBONE_PORT;
use crate::socket::{self, Speaker};
use crate::{admin, dns, hbone, inbound, outbound};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Waits after an error of accept, so that a proxy without descriptors does not spin.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a proxy that ends looks whether it may.
const LOOK: Duration = Duration::from_millis(10);
/// How often unused tunnels are looked for.
const SWEEP: Duration = Duration::from_secs(15);

/// The sockets of a proxy, made in the pod's namespace by whoever starts it.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Captured connections of the pod (15001).
    pub outbound: Vec<TcpListener>,
    /// Captured connections to the pod (15006).
    pub inbound: Vec<TcpListener>,
    /// Tunnels from other proxies (15008).
    pub hbone: Vec<TcpListener>,
    /// Names (15053), if [`Settings::dns`](crate::Settings) says how.
    pub dns: dns::Sockets,
    /// Questions about the proxy (15000), on loopback addresses.
    pub admin: Vec<TcpListener>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Outbound,
    Inbound,
    Hbone,
}

/// Where connections come in.
#[derive(Debug, Clone, Copy)]
struct Door {
    kind: Kind,
    port: u16,
    /// Connections arrive under the address they were going to, and go on under the one they come from.
    transparent: bool,
}

impl Door {
    fn of(kind: Kind, listener: &TcpListener) -> Self {
        let local = listener.local_addr().ok();
        let transparent = |local: SocketAddr| remora_net::socket::is_transparent(listener, local.is_ipv6());
        Self {
            kind,
            port: local.map_or(0, |local| local.port()),
            transparent: local.is_some_and(|local| transparent(local).unwrap_or(false)),
        }
    }

    /// Where a captured connection was going. Not captured: it was going to us, which nobody should.
    fn destination(self, stream: &TcpStream) -> Option<SocketAddr> {
        let local = stream.local_addr().ok()?;
        let redirected = remora_net::socket::original_destination(stream).ok();
        redirected
            .filter(|destination| *destination != local)
            .or((self.transparent && local.port() != self.port).then_some(local))
    }
}

/// Serves until `stop` is ready and the drain after it is over: no more work is taken from outside, the application
/// may still call others, open connections may finish until the deadline, then they are cut.
///
/// A drain can also be started through [`Context::drain`].
pub async fn serve(ctx: Arc<Context>, listeners: Listeners, stop: impl Future<Output = ()>) {
    let accepting = |kind, sockets: Vec<TcpListener>| {
        for listener in &sockets {
            // Every connection takes it over. A kernel without it has the idle timeout.
            let _ = remora_net::socket::set_keepalive(listener, socket::KEEPALIVE);
        }
        let accept = |listener| tokio::spawn(accept(Door::of(kind, &listener), listener, Arc::clone(&ctx)));
        sockets.into_iter().map(accept).collect::<Vec<_>>()
    };
    let outbound = accepting(Kind::Outbound, listeners.outbound);
    let inbound = accepting(Kind::Inbound, listeners.inbound);
    let hbone = accepting(Kind::Hbone, listeners.hbone);
    // Both until the very end: the application still needs names, and people may want to see.
    let mut beside = JoinSet::new();
    beside.spawn(keep_house(Arc::clone(&ctx)));
    beside.spawn(admin::serve(listeners.admin, Arc::clone(&ctx)));
    if let Some(dns) = &ctx.dns {
        beside.spawn(Arc::clone(dns).serve(listeners.dns));
    }
    tokio::select! {
        () = stop => ctx.drain.advance(Phase::Draining),
        () = ctx.drain.reached(Phase::Draining) => {}
    }
    // They end now, each with those that waited; only then can be said that nothing is open.
    for task in inbound.into_iter().chain(hbone) {
        let _ = task.await;
    }
    tokio::select! {
        () = nothing_open(&ctx) => {}
        () = tokio::time::sleep(ctx.limits.drain) => {}
        () = ctx.drain.reached(Phase::Cut) => {}
    }
    ctx.drain.advance(Phase::Cut);
    for task in outbound {
        let _ = task.await;
    }
    // Everybody has been told; what is left needs one turn each to say goodbye.
    let _ = tokio::time::timeout(Duration::from_secs(1), nothing_open(&ctx)).await;
    beside.shutdown().await;
}

/// Looked at only while a proxy ends, so connections need not report.
async fn nothing_open(ctx: &Context) {
    while ctx.budget.used() > 0 {
        tokio::time::sleep(LOOK).await;
    }
}

/// A descriptor that is given up when there is no other, so that somebody can be turned away instead of left waiting.
struct Reserve(Option<File>);

impl Reserve {
    fn fill(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    /// Whether somebody was.
    fn turn_away(
        &mut self,
        door: Door,
        listener: &TcpListener,
        cx: &mut task::Context<'_>,
        ctx: &Arc<Context>,
    ) -> bool {
        if self.0.take().is_none() {
            return false;
        }
        let turned_away = match listener.poll_accept(cx) {
            Poll::Ready(Ok((stream, address))) => {
                refuse(door, &stream, address, ctx, "no descriptors left");
                true
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        };
        self.fill();
        turned_away
    }
}

async fn accept(door: Door, listener: TcpListener, ctx: Arc<Context>) {
    // The application may still have to call others to finish what it was asked for.
    let last = match door.kind {
        Kind::Outbound => Phase::Cut,
        Kind::Inbound | Kind::Hbone => Phase::Draining,
    };
    let mut pause = SHORTEST_PAUSE;
    let mut reserve = Reserve(None);
    loop {
        reserve.fill();
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ctx.drain.reached(last) => return last_ones(door, listener, &ctx),
        };
        let error = match accepted {
            Ok((stream, address)) => {
                pause = SHORTEST_PAUSE;
                start(door, stream, address, &ctx);
                continue;
            }
            Err(error) => error,
        };
        let exhausted = remora_net::socket::is_out_of_descriptors(&error);
        let turn_away = poll_fn(|cx| Poll::Ready(reserve.turn_away(door, &listener, cx, &ctx)));
        if exhausted && turn_away.await {
            continue;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connections the kernel had opened before we stopped would be reset with the listener.
fn last_ones(door: Door, listener: TcpListener, ctx: &Arc<Context>) {
    // Asked directly: the runtime may not know of the newest yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, address)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            start(door, stream, address, ctx);
        }
    }
}

/// One task a connection. Above the budget a connection is reset at once rather than left waiting.
fn start(door: Door, stream: TcpStream, address: SocketAddr, ctx: &Arc<Context>) {
    // Before any handshake: small messages must not wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let permit = match door.kind {
        Kind::Outbound => ctx.budget.local(),
        Kind::Inbound | Kind::Hbone => ctx.budget.source(address.ip()),
    };
    let Ok(permit) = permit else {
        return refuse(door, &stream, address, ctx, FULL);
    };
    let place = match door.kind {
        // The pod's own connections are judged at once.
        Kind::Outbound => None,
        Kind::Inbound | Kind::Hbone => match ctx.crowd.enter(address.ip()) {
            Some(place) => Some(place),
            None => {
                return refuse(
                    door,
                    &stream,
                    address,
                    ctx,
                    "too many of its connections wait to be judged",
                );
            }
        },
    };
    let destination = match door.kind {
        Kind::Hbone => stream.local_addr().ok(),
        Kind::Inbound | Kind::Outbound => door.destination(&stream),
    };
    let Some(destination) = destination else {
        return outbound::reset(&stream);
    };
    let visitor = Visitor {
        stream,
        source: address,
        destination,
        speaker: speaker(door, [address, destination], ctx),
        place,
        permit,
    };
    send_on(door, visitor, Arc::clone(ctx));
}

/// On its way. A task each, so that none is as large as the largest.
fn send_on(door: Door, visitor: Visitor, ctx: Arc<Context>) {
    // istio: rules of interception mode TPROXY take connections to the tunnel port too, and its proxies hand them on
    // to where they were going.
    let tunnel = door.transparent && visitor.destination.port() == HBONE_PORT;
    match door.kind {
        Kind::Outbound => drop(tokio::spawn(async move {
            let _permit = visitor.permit;
            outbound::handle(visitor.stream, [visitor.source, visitor.destination], ctx).await;
        })),
        Kind::Inbound if !tunnel => drop(tokio::spawn(inbound::handle(visitor, ctx))),
        Kind::Inbound | Kind::Hbone => drop(tokio::spawn(hbone::handle(visitor, ctx))),
    }
}

/// Serves a connection that was not captured but handed over, as if it had been going to `destination`.
pub async fn hand_over(ctx: Arc<Context>, stream: TcpStream, destination: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let Ok(source) = stream.peer_addr() else { return };
    let Ok(_permit) = ctx.budget.local() else {
        return outbound::reset(&stream);
    };
    outbound::handle(stream, [source, destination], ctx).await;
}

/// Resets a connection for which there is no room, and says so.
fn refuse(door: Door, stream: &TcpStream, source: SocketAddr, ctx: &Arc<Context>, why: &str) {
    outbound::reset(stream);
    let destination = door.destination(stream).or(stream.local_addr().ok());
    let destination = destination.unwrap_or(SocketAddr::from(([0, 0, 0, 0], door.port)));
    let ends = [source, destination];
    let watch = match door.kind {
        Kind::Outbound => Watch::new(ctx, Direction::Outbound, ends),
        Kind::Inbound | Kind::Hbone => {
            let watch = Watch::new(ctx, Direction::Inbound, ends);
            watch.know(Ends::inbound(ctx, ends, None, Carriage::Plain));
            watch
        }
    };
    watch.end(Some(Failure::new(Reason::Overload, why)));
}

/// Somebody who came from outside and is still to be judged.
pub(crate) struct Visitor {
    pub(crate) stream: TcpStream,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// As whom the application is spoken to for it.
    pub(crate) speaker: Speaker,
    /// Given back when it was judged.
    pub(crate) place: Option<Place>,
    /// Kept for as long as the connection is open.
    pub(crate) permit: Permit,
}

/// As whom the application is spoken to. A pod that calls itself is not: its answers would never leave it.
fn speaker(door: Door, [source, destination]: [SocketAddr; 2], ctx: &Context) -> Speaker {
    if door.transparent && source.ip() != destination.ip() {
        return Speaker::Caller(source.ip(), ctx.mark);
    }
    Speaker::Proxy
}

/// Keeps the pool in step with the mesh.
async fn keep_house(ctx: Arc<Context>) {
    let mut mesh = ctx.mesh.changes();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            changed = mesh.changed() => {
                if changed.is_err() {
                    return;
                }
                ctx.pool.follow(&ctx.mesh);
            }
            _ = sweep.tick() => ctx.pool.sweep(ctx.limits.pool_idle),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::context::{Context, Settings};
    use crate::mesh::Mesh;
    use remora_mtls::{Authority, Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};
    use tokio::net::{TcpListener, TcpStream};

    /// A proxy that knows nothing yet, and the certificate it has.
    pub(crate) fn context() -> (Arc<Context>, String) {
        let now = SystemTime::now();
        let hour = Duration::from_hours(1);
        let id: SpiffeId = "spiffe://td/ns/shop/sa/web".parse().unwrap();
        let key = PrivateKey::generate().unwrap();
        let authority = Authority::generate("test", now, hour).unwrap();
        let issued = authority
            .issue(&key.request(&id).unwrap(), &id, hour, now)
            .unwrap();
        let chain = Chain::from_pem(&issued.leaf).unwrap();
        let roots = Roots::from_pem(&issued.roots).unwrap();
        let credentials = Credentials::new(&key, chain, roots, &id, now).unwrap();
        let domains = TrustDomains::new::<&str>("td", &[]).unwrap();
        let identity = Arc::new(Identity::new(domains, credentials).unwrap());
        let (mesh, settings) = (Arc::new(Mesh::default()), Settings::default());
        let context = Arc::new(Context::new(identity, mesh, settings, |_| ()));
        (context, issued.leaf)
    }

    /// Every connection holds one of these for as long as it is open: growth here is growth per connection.
    #[tokio::test]
    async fn a_connection_costs_little_more_than_its_state() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (context, _) = context();
        let pair = async || {
            let client = TcpStream::connect(to).await.unwrap();
            (client, listener.accept().await.unwrap())
        };
        let (_client, (stream, address)) = pair().await;
        let outbound = size_of_val(&crate::outbound::handle(
            stream,
            [address; 2],
            Arc::clone(&context),
        ));
        let (_client, (stream, address)) = pair().await;
        let visitor = |stream, address| super::Visitor {
            stream,
            source: address,
            destination: address,
            speaker: crate::socket::Speaker::Proxy,
            place: context.crowd.enter(address.ip()),
            permit: context.budget.source(address.ip()).unwrap(),
        };
        let shared = Arc::clone(&context);
        let inbound = size_of_val(&crate::inbound::handle(visitor(stream, address), shared));
        let (_client, (stream, address)) = pair().await;
        let shared = Arc::clone(&context);
        let tunnel = size_of_val(&crate::hbone::handle(visitor(stream, address), shared));
        assert!(
            outbound <= 1500 && inbound <= 2400 && tunnel <= 900,
            "outbound {outbound}, inbound {inbound}, tunnel {tunnel} bytes"
        );
    }
}
