//! Chooses one of the workloads behind a service. Pure, given what [`Load`] remembers.
//!
//! 1. Every endpoint has a [`Standing`]: unfit for a reason, fit, or fit but set aside for a moment because it just
//!    failed. How many of the service's preferences it meets is its rank.
//! 2. Fit ones of the best rank are chosen among; if nobody is fit, those set aside: an attempt that may fail beats
//!    a failure that is certain. Strict preferences are never left.
//! 3. Where connections of a caller must stay together, the caller's address decides (rendezvous hashing: endpoints
//!    that come and go move nobody else's connections). Otherwise two are drawn by capacity and the one that costs
//!    less is taken: open connections for its capacity, and the time connecting took lately.
//!
//! Nothing here connects; the caller reports what came of it.
// differs from istio: ztunnel draws one by capacity and stays with it, because it keeps no memory of endpoints.

use crate::mesh::{Place, Workload};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What endpoints can have in common with the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The region.
    Region,
    /// The zone.
    Zone,
    /// The subzone.
    Subzone,
    /// The machine.
    Node,
    /// The cluster.
    Cluster,
    /// The network.
    Network,
}

/// What preferences mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The more are met the better.
    #[default]
    Failover,
    /// All must be met.
    Strict,
    /// There is nothing to choose: connections go to the address that was dialled.
    Passthrough,
}

/// Whether endpoints that are ill may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// They may not.
    #[default]
    OnlyHealthy,
    /// They may.
    AllowAll,
}

/// What keeps connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Affinity {
    /// Nothing.
    #[default]
    None,
    /// The address of the caller.
    // k8s: sessionAffinity. differs from k8s: there is no timeout, because nothing is remembered.
    ClientIp,
}

/// How an endpoint of a service is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balancing {
    /// In this order; the first that is not met ends the count.
    pub preferences: Vec<Scope>,
    /// What they mean.
    pub mode: Mode,
    /// Whether the ill are chosen.
    pub health: Health,
    /// What keeps connections together.
    pub affinity: Affinity,
}

/// Where a service can be reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Who.
    pub workload: Arc<Workload>,
    /// On which of its ports; 0 if nobody said.
    pub port: u16,
    /// What is remembered of it.
    pub load: Arc<Load>,
}

/// Weight of the newest sample: a half after three of them.
const SMOOTHING: u32 = 4;
/// Differences below this are noise.
const GRAIN: Duration = Duration::from_millis(1);
/// First time aside, doubled with every failure in a row.
const SHORTEST_EJECTION: Duration = Duration::from_secs(1);
const LONGEST_EJECTION: Duration = Duration::from_secs(30);

/// What a proxy remembers of an endpoint. Outlives changes of the workload's description.
#[derive(Debug, Default)]
pub struct Load {
    open: AtomicU32,
    /// Microseconds; 0 before the first connection.
    latency: AtomicU32,
    failures: AtomicU32,
    /// Milliseconds of the caller's clock.
    aside_until: AtomicU64,
}

/// A connection that counts for as long as it lives.
#[derive(Debug)]
pub struct Open(Arc<Load>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Load {
    /// A connection to the endpoint begins.
    pub fn begin(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// It answered, after this long.
    pub fn answered(&self, after: Duration) {
        self.failures.store(0, Ordering::Relaxed);
        self.aside_until.store(0, Ordering::Relaxed);
        let sample = u32::try_from(after.as_micros()).unwrap_or(u32::MAX).max(1);
        let next = match self.latency.load(Ordering::Relaxed) {
            0 => sample,
            before => before - before / SMOOTHING + sample / SMOOTHING,
        };
        // Two at once may lose one sample; the next makes up for it.
        self.latency.store(next.max(1), Ordering::Relaxed);
    }

    /// It could not be reached, `now` in milliseconds.
    pub fn failed(&self, now: u64) {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let time = SHORTEST_EJECTION
            .saturating_mul(1 << before.min(5))
            .min(LONGEST_EJECTION);
        let until = now.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.aside_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Connections open now.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// How long connecting took lately; nothing before the first time.
    pub fn latency(&self) -> Option<Duration> {
        match self.latency.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros.into())),
        }
    }

    /// For how many milliseconds more it is set aside.
    pub fn aside(&self, now: u64) -> u64 {
        self.aside_until.load(Ordering::Relaxed).saturating_sub(now)
    }
}

/// What an endpoint is to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// May be chosen.
    Fit {
        /// Preferences met.
        rank: usize,
    },
    /// Failed lately: chosen only if nobody is fit.
    Aside {
        /// Preferences met.
        rank: usize,
        /// For how many milliseconds more.
        millis: u64,
    },
    /// Was tried for this connection.
    Tried,
    /// May not be chosen.
    Unfit(Unfit),
}

/// Why an endpoint may not be chosen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// Discovery says so.
    Unhealthy,
    /// It takes no share.
    NoCapacity,
    /// Not where the service has to stay.
    Elsewhere,
    /// It has no address, or only a name.
    NoAddress,
    /// Nobody said on which of its ports.
    NoPort,
    /// On a network that can be reached through its gateway only.
    OtherNetwork,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unhealthy => "not healthy",
            Self::NoCapacity => "without capacity",
            Self::Elsewhere => "not where the service has to stay",
            Self::NoAddress => "without an address",
            Self::NoPort => "without a port for it",
            Self::OtherNetwork => "on another network, and gateways between networks are not spoken to",
        })
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fit { rank } => write!(f, "fit, meets {rank} preferences"),
            Self::Aside { rank, millis } => {
                write!(f, "set aside for {millis} ms more, meets {rank} preferences")
            }
            Self::Tried => f.write_str("tried already"),
            Self::Unfit(why) => write!(f, "{why}"),
        }
    }
}

/// Who asks, and when.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// How to choose.
    pub balancing: &'a Balancing,
    /// Where the caller is, as far as that is known.
    pub from: Option<&'a Place>,
    /// The caller.
    pub source: IpAddr,
    /// Another number for every connection.
    pub seed: u64,
    /// Milliseconds, from any beginning.
    pub now: u64,
    /// Endpoints not to choose again.
    pub tried: &'a [usize],
}

/// Chooses. `note` is told the standing of every endpoint.
pub fn choose(
    endpoints: &[Endpoint],
    terms: &Terms<'_>,
    mut note: impl FnMut(usize, &Standing),
) -> Option<usize> {
    let mut best = (false, 0);
    let mut among: Vec<usize> = Vec::with_capacity(endpoints.len());
    for (index, endpoint) in endpoints.iter().enumerate() {
        let standing = if terms.tried.contains(&index) {
            Standing::Tried
        } else {
            standing(endpoint, terms)
        };
        note(index, &standing);
        let tier = match standing {
            Standing::Fit { rank } => (true, rank),
            Standing::Aside { rank, .. } => (false, rank),
            Standing::Tried | Standing::Unfit(_) => continue,
        };
        if tier > best {
            among.clear();
            best = tier;
        }
        if tier == best {
            among.push(index);
        }
    }
    match terms.balancing.affinity {
        Affinity::None => draw(endpoints, &among, terms.seed),
        Affinity::ClientIp => keep(endpoints, &among, terms.source),
    }
}

fn standing(endpoint: &Endpoint, terms: &Terms<'_>) -> Standing {
    let workload = &endpoint.workload;
    if !workload.healthy && terms.balancing.health == Health::OnlyHealthy {
        return Standing::Unfit(Unfit::Unhealthy);
    }
    if workload.capacity == 0 {
        return Standing::Unfit(Unfit::NoCapacity);
    }
    if terms
        .from
        .is_some_and(|own| own.network != workload.place.network)
    {
        return Standing::Unfit(Unfit::OtherNetwork);
    }
    if workload.addresses.is_empty() {
        return Standing::Unfit(Unfit::NoAddress);
    }
    if endpoint.port == 0 {
        return Standing::Unfit(Unfit::NoPort);
    }
    let preferences = &terms.balancing.preferences;
    let rank = rank(preferences, terms.from, &workload.place);
    if terms.balancing.mode == Mode::Strict && rank < preferences.len() {
        return Standing::Unfit(Unfit::Elsewhere);
    }
    match endpoint.load.aside(terms.now) {
        0 => Standing::Fit { rank },
        millis => Standing::Aside { rank, millis },
    }
}

/// How many preferences are met before the first that is not. A caller whose place is not known meets none.
fn rank(preferences: &[Scope], from: Option<&Place>, to: &Place) -> usize {
    let Some(from) = from else { return 0 };
    let met = |scope: &&Scope| match scope {
        Scope::Region => from.region == to.region,
        Scope::Zone => from.zone == to.zone,
        Scope::Subzone => from.subzone == to.subzone,
        Scope::Node => from.node == to.node,
        Scope::Cluster => from.cluster == to.cluster,
        Scope::Network => from.network == to.network,
    };
    preferences.iter().take_while(met).count()
}

/// Two by capacity, and of them the one that costs less.
fn draw(endpoints: &[Endpoint], among: &[usize], seed: u64) -> Option<usize> {
    if among.len() < 2 {
        return among.first().copied();
    }
    let weight = |index: &usize| u64::from(endpoints.get(*index).map_or(0, |e| e.workload.capacity));
    let total: u64 = among.iter().map(weight).sum();
    let pick = |without: Option<usize>, random: u64| {
        let left = total - without.as_ref().map_or(0, weight);
        // The bias of a remainder of 64 bits is far below anything one could measure.
        let mut at = random.checked_rem(left)?;
        among
            .iter()
            .copied()
            .filter(|index| Some(*index) != without)
            .find(|index| {
                let here = weight(index);
                let found = at < here;
                at = at.saturating_sub(here);
                found
            })
    };
    let first = pick(None, mixed(seed))?;
    let Some(second) = pick(Some(first), mixed(seed ^ 0x9e37_79b9_7f4a_7c15)) else {
        return Some(first);
    };
    let cost = |index: usize| endpoints.get(index).map_or(u64::MAX, cost);
    // A quarter less or more is no reason to leave the order of the draw: shares stay those of the capacities.
    let (here, there) = (cost(first), cost(second));
    Some(if there.saturating_mul(4) < here.saturating_mul(3) {
        second
    } else {
        first
    })
}

/// Latency times what is open for the capacity.
fn cost(endpoint: &Endpoint) -> u64 {
    let grain = u64::try_from(GRAIN.as_micros()).unwrap_or(1);
    let latency = endpoint
        .load
        .latency()
        .map_or(0, |l| u64::try_from(l.as_micros()).unwrap_or(u64::MAX));
    let capacity = u64::from(endpoint.workload.capacity.max(1));
    let units = 1000 + u64::from(endpoint.load.open()).saturating_mul(1000) / capacity;
    latency.saturating_add(grain).saturating_mul(units)
}

/// The same caller finds the same endpoint for as long as it is among them.
fn keep(endpoints: &[Endpoint], among: &[usize], source: IpAddr) -> Option<usize> {
    let score = |index: usize| {
        let workload = &endpoints.get(index)?.workload;
        let hash = hash(source, &workload.uid);
        // Of 53 bits, strictly between 0 and 1. Logarithms make the chance of the largest follow the weights.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let unit = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        Some(-f64::from(workload.capacity) / unit.ln())
    };
    among
        .iter()
        .filter_map(|index| Some((score(*index)?, *index)))
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, index)| index)
}

/// FNV-1a and a finish: the same in every process and release, which `std`'s hashes do not promise.
fn hash(source: IpAddr, uid: &str) -> u64 {
    let octets = match source {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let bytes = octets.iter().chain(uid.as_bytes());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed(sum)
}

/// Every bit of the result depends on every bit of the number (the finish of `SplitMix64`).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
