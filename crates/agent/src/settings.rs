//! Everything the agent is told, as one value.
//!
//! [`Settings::resolve`] is pure: flags, environment, the texts of a few files and the pod's addresses in; settings
//! and warnings, or one clear error, out. [`Inputs::read`] collects them from the working directory (the root of the
//! image, in a pod).

mod node;
mod proxy_config;
mod read;

pub use node::Node;
pub use proxy_config::ProxyConfig;
pub use read::Inputs;

use crate::envoy::{self, EnvoySettings};
use crate::probes::{Probes, ProbesError};
use crate::scrape::{self, Target, TargetsError};
use crate::stop::Knobs;
pub(crate) use read::Environment;
use remora_mtls::{InvalidSpiffeId, SpiffeId, TrustDomains};
use remora_pod::duration::ParseDurationError;
use remora_pod::yaml::ReadError;
use remora_proxy::UnknownDestinations;
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Told something that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A flag without its value.
    #[error("read the command line")]
    Flags(#[from] crate::flags::MissingValue),
    /// A role that is no sidecar's.
    #[error("the role {0} is not known")]
    Role(String),
    /// Something the agent cannot do without.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// Not a number, or out of range.
    #[error("{name} is {value}, which is not {expected}")]
    Value {
        /// Of what.
        name: String,
        /// As given.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Not a duration.
    #[error("read {name}")]
    Duration {
        /// Of what.
        name: String,
        /// Why not.
        #[source]
        source: ParseDurationError,
    },
    /// Not YAML.
    #[error("read {name} as YAML")]
    Yaml {
        /// Which text.
        name: &'static str,
        /// Where and why.
        #[source]
        source: ReadError,
    },
    /// Names that make no identity.
    #[error("make the identity of {namespace}/{account}")]
    Identity {
        /// As given.
        namespace: String,
        /// As given.
        account: String,
        /// Why not.
        #[source]
        source: InvalidSpiffeId,
    },
    /// Probes that cannot be followed.
    #[error(transparent)]
    Probes(#[from] ProbesError),
    /// Metrics that cannot be scraped.
    #[error(transparent)]
    Metrics(#[from] TargetsError),
    /// A file that is there cannot be read.
    #[error("read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The addresses of the pod cannot be found.
    #[error("look for the addresses of the pod")]
    Addresses(#[source] std::io::Error),
}

impl SettingsError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Role(_) => Some("remora runs sidecars: `proxy sidecar`"),
            Self::Missing("POD_NAMESPACE" | "POD_NAME") => {
                Some("the injected container sets it from the pod's own fields (downward API)")
            }
            Self::Duration { source, .. } => source.hint(),
            _ => None,
        }
    }
}

/// A server by name or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Whom to believe when connecting to the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// What the operating system believes.
    System,
    /// A PEM bundle, read anew for every connection.
    File(PathBuf),
}

/// How a server of the control plane is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Where.
    pub server: Server,
    /// Whom to believe; `None` for a connection without TLS.
    pub roots: Option<RootSource>,
    /// The name its certificate must carry.
    pub name: String,
}

/// The ports of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Captured connections of the pod.
    pub outbound: u16,
    /// Captured connections to the pod.
    pub inbound: u16,
    /// Tunnels from other proxies.
    pub hbone: u16,
    /// Readiness.
    pub readiness: u16,
    /// The agent: readiness, probes, all metrics; 0 for none.
    pub agent: u16,
    /// Metrics of the proxy.
    pub metrics: u16,
    /// Questions about the proxy; 0 for none.
    pub admin: u16,
    /// Names, if they are captured.
    pub dns: Option<u16>,
}

impl Ports {
    /// All that belong to the sidecar, also those nobody listens on today.
    // istio: 15000 and 15004 are Envoy's, 15053 is DNS.
    pub fn all(&self) -> Vec<u16> {
        let own = [
            self.outbound,
            self.inbound,
            self.hbone,
            self.readiness,
            self.agent,
            self.metrics,
        ];
        own.into_iter().chain([15000, 15004, 15053]).collect()
    }
}

/// A certificate that somebody else puts there and exchanges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Leaf first.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whom to believe.
    pub roots: PathBuf,
}

impl CertificateFiles {
    // istio: the names in a directory of certificates.
    fn below(directory: &str) -> Self {
        let path = |name: &str| PathBuf::from(format!("{directory}/{name}"));
        Self {
            chain: path("cert-chain.pem"),
            key: path("key.pem"),
            roots: path("root-cert.pem"),
        }
    }
}

/// What the agent does.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Who the pod is.
    pub id: SpiffeId,
    /// Its trust domain and aliases.
    pub domains: TrustDomains,
    /// The pod's addresses, the main one first.
    pub addresses: Vec<IpAddr>,
    /// How discovery knows us.
    pub node: Node,
    /// The effective `ProxyConfig`.
    pub proxy_config: ProxyConfig,
    /// Where discovery is.
    pub discovery: Upstream,
    /// Where certificates come from.
    pub authority: Upstream,
    /// Certificates in files, instead of an authority.
    pub certificate_files: Option<CertificateFiles>,
    /// Where the certificate is written for other programs.
    pub output: Option<PathBuf>,
    /// The file of the token to show; read anew each time.
    pub token: PathBuf,
    /// For how long certificates are asked for.
    pub certificate_life: Duration,
    /// Where to listen.
    pub ports: Ports,
    /// Threads that move bytes.
    pub workers: usize,
    /// Destinations that are not of the mesh.
    pub unknown: UnknownDestinations,
    /// Whether every connection is worth a line.
    pub access_log: bool,
    /// When to go after the stop was asked for.
    pub stop: Knobs,
    /// The pod's namespace.
    pub namespace: String,
    /// The domain of the cluster.
    pub cluster_domain: String,
    /// A process whose end is ours too.
    pub watched: Option<String>,
    /// The application's probes.
    pub probes: Probes,
    /// Where the application is asked.
    pub application: IpAddr,
    /// Where it has its metrics.
    pub metrics: Vec<Target>,
    /// Metrics are for the pod itself only.
    pub private_metrics: bool,
    /// The Envoy that is the proxy; `None` for the built-in one.
    pub envoy: Option<EnvoySettings>,
}

impl Settings {
    /// Judges the inputs. The warnings are about things that were accepted all the same.
    pub fn resolve(inputs: &Inputs) -> Result<(Self, Vec<String>), SettingsError> {
        let env = Environment(&inputs.env);
        let mut warnings = Vec::new();
        for flag in &inputs.flags.unknown {
            warnings.push(format!("{flag} is not known and has no effect"));
        }
        match inputs.flags.role.as_deref() {
            None | Some("sidecar") => {}
            Some(other) => return Err(SettingsError::Role(other.to_owned())),
        }
        let config = ProxyConfig::effective(inputs)?;
        let (id, domains) = identity(inputs, &config, &mut warnings)?;
        let addresses = addresses(inputs)?;
        let node = Node::new(inputs, &config, &addresses)?;
        let envoy = envoy::resolve(inputs, &config, &node, &addresses, &mut warnings)?;
        let settings = Self {
            envoy,
            discovery: discovery(inputs, &config)?,
            authority: authority(inputs, &config)?,
            certificate_files: certificate_files(inputs, &node),
            output: env.text("OUTPUT_CERTS").map(PathBuf::from),
            token: token(env).into(),
            certificate_life: env.duration("SECRET_TTL", Duration::from_hours(24))?,
            ports: Ports {
                outbound: config.mesh_port("proxyListenPort", 15001)?,
                inbound: config.mesh_port("proxyInboundListenPort", 15006)?,
                hbone: 15008,
                readiness: env.port("ENVOY_STATUS_PORT", 15021)?,
                agent: config.port("statusPort")?,
                metrics: env.port("ENVOY_PROMETHEUS_PORT", 15090)?,
                admin: config.port("proxyAdminPort")?,
                dns: dns(env, &node)?,
            },
            workers: workers(inputs, &config)?,
            unknown: match config.mesh_text("/outboundTrafficPolicy/mode") {
                Some("REGISTRY_ONLY") => UnknownDestinations::Refuse,
                _ => UnknownDestinations::Pass,
            },
            access_log: config.mesh_text("/accessLogFile").is_some(),
            stop: stop(env, &config)?,
            namespace: env.required("POD_NAMESPACE")?.to_owned(),
            cluster_domain: cluster_domain(inputs),
            watched: env.text("REMORA_EXIT_WITH_PROCESS").map(str::to_owned),
            probes: env
                .text("ISTIO_KUBE_APP_PROBERS")
                .map(Probes::parse)
                .transpose()?
                .unwrap_or_default(),
            application: application(env, &addresses),
            metrics: env
                .text("ISTIO_PROMETHEUS_ANNOTATIONS")
                .map(scrape::targets)
                .transpose()?
                .unwrap_or_default(),
            private_metrics: env.flag("METRICS_LOCALHOST_ACCESS_ONLY")?,
            proxy_config: config,
            node,
            addresses,
            id,
            domains,
        };
        Ok((settings, warnings))
    }
}

fn stop(env: Environment<'_>, config: &ProxyConfig) -> Result<Knobs, SettingsError> {
    // istio: in 1.5 the time was a variable.
    let old = env.seconds("TERMINATION_DRAIN_DURATION_SECONDS")?;
    Ok(Knobs {
        grace: env.seconds("TERMINATION_GRACE_PERIOD_SECONDS")?,
        termination_drain: config.duration("terminationDrainDuration")?.or(old),
        drain: config.duration("drainDuration")?.unwrap_or_default(),
        exit_on_zero: env.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS")?,
        minimum_drain: env.duration("MINIMUM_DRAIN_DURATION", Duration::from_secs(5))?,
    })
}

// istio: the pod's address, as the kubelet would, unless the old way is asked for.
fn application(env: Environment<'_>, addresses: &[IpAddr]) -> IpAddr {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    match env.text("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION") {
        Some("true") => loopback,
        _ => addresses.first().copied().unwrap_or(loopback),
    }
}

// istio: the address is `localhost` and a port.
fn dns(env: Environment<'_>, node: &Node) -> Result<Option<u16>, SettingsError> {
    let captured = node.metadata.get("DNS_CAPTURE").and_then(Value::as_str) == Some("true");
    let address = env.text("DNS_PROXY_ADDR").unwrap_or("localhost:15053");
    Ok(if captured {
        Some(server("DNS_PROXY_ADDR", address)?.port)
    } else {
        None
    })
}

/// `--domain` is the namespace's: `shop.svc.cluster.local`.
fn cluster_domain(inputs: &Inputs) -> String {
    let domain = inputs.flags.get("domain").unwrap_or_default();
    match domain.split_once(".svc.") {
        Some((_, cluster)) if !cluster.is_empty() => cluster.to_owned(),
        _ => "cluster.local".to_owned(),
    }
}

fn identity(
    inputs: &Inputs,
    config: &ProxyConfig,
    warnings: &mut Vec<String>,
) -> Result<(SpiffeId, TrustDomains), SettingsError> {
    let env = Environment(&inputs.env);
    let namespace = env.required("POD_NAMESPACE")?;
    let account = env.text("SERVICE_ACCOUNT").unwrap_or_else(|| {
        warnings.push("SERVICE_ACCOUNT is not set: taken for `default`".to_owned());
        "default"
    });
    let domain = env
        .text("TRUST_DOMAIN")
        .or_else(|| inputs.flags.get("trust-domain"))
        .or_else(|| config.mesh_text("/trustDomain"))
        .unwrap_or("cluster.local");
    let wrong = |source| SettingsError::Identity {
        namespace: namespace.to_owned(),
        account: account.to_owned(),
        source,
    };
    let id = SpiffeId::of_service_account(domain, namespace, account).map_err(wrong)?;
    let domains = TrustDomains::new(domain, &config.mesh_list("/trustDomainAliases")).map_err(wrong)?;
    Ok((id, domains))
}

// istio: the pod's own address first, then those of its interfaces; a pod without any is known by loopback.
fn addresses(inputs: &Inputs) -> Result<Vec<IpAddr>, SettingsError> {
    let env = Environment(&inputs.env);
    let mut addresses = Vec::new();
    let given = inputs.flags.get("ip").into_iter();
    let given = given.chain(env.text("INSTANCE_IP"));
    for text in given.chain(
        env.text("INSTANCE_IPS")
            .into_iter()
            .flat_map(|list| list.split(',')),
    ) {
        let address = text.trim().parse().map_err(|_| SettingsError::Value {
            name: "INSTANCE_IP".to_owned(),
            value: text.to_owned(),
            expected: "an IP address",
        })?;
        addresses.push(address);
    }
    addresses.extend(&inputs.interfaces);
    let mut seen = Vec::new();
    addresses.retain(|address| {
        let new = !seen.contains(address);
        seen.push(*address);
        new
    });
    if addresses.is_empty() {
        addresses.push(IpAddr::from([127, 0, 0, 1]));
    }
    Ok(addresses)
}

fn server(name: &str, text: &str) -> Result<Server, SettingsError> {
    let wrong = || SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: "a server as HOST:PORT",
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(wrong());
    }
    Ok(Server {
        host: host.to_owned(),
        port,
    })
}

fn discovery(inputs: &Inputs, config: &ProxyConfig) -> Result<Upstream, SettingsError> {
    let env = Environment(&inputs.env);
    let server = server("discoveryAddress", config.required_text("discoveryAddress")?)?;
    // istio: 15010 is the port without TLS.
    let plain = config.text("controlPlaneAuthPolicy") == Some("NONE") || server.port == 15010;
    let roots = if plain {
        None
    } else {
        Some(roots(inputs, "XDS_ROOT_CA", true)?)
    };
    Ok(Upstream {
        name: env.text("ISTIOD_SAN").unwrap_or(&server.host).to_owned(),
        server,
        roots,
    })
}

fn authority(inputs: &Inputs, config: &ProxyConfig) -> Result<Upstream, SettingsError> {
    let env = Environment(&inputs.env);
    let given = env.text("CA_ADDR");
    let text = match given {
        Some(text) => text,
        None => config.required_text("discoveryAddress")?,
    };
    let server = server("CA_ADDR", text)?;
    let custom = env.text("PILOT_CERT_PROVIDER") == Some("custom");
    let roots = match server.port {
        15010 => None,
        _ => Some(roots(inputs, "CA_ROOT_CA", custom)?),
    };
    // The name of discovery is the name of the authority when they are the same server.
    let name = match (given, env.text("ISTIOD_SAN")) {
        (None, Some(name)) => name,
        _ => &server.host,
    };
    Ok(Upstream {
        name: name.to_owned(),
        server,
        roots,
    })
}

// istio: the variable, a provisioned directory, the mounted ConfigMap. A root beside certificates in files is looked at
// where those are.
fn roots(inputs: &Inputs, variable: &str, mounted: bool) -> Result<RootSource, SettingsError> {
    let env = Environment(&inputs.env);
    let file = |path: &str| Ok(RootSource::File(path.into()));
    match env.text(variable) {
        Some("SYSTEM") => return Ok(RootSource::System),
        Some(path) => return file(path),
        None => {}
    }
    if mounted && inputs.has(read::MOUNTED_ROOT) {
        return file(read::MOUNTED_ROOT);
    }
    if let Some(directory) = env.text("PROV_CERT") {
        return file(&format!("{directory}/root-cert.pem"));
    }
    if env.text("PILOT_CERT_PROVIDER") == Some("none") {
        return Err(SettingsError::Missing("XDS_ROOT_CA or CA_ROOT_CA"));
    }
    file("./var/run/secrets/istio/root-cert.pem")
}

// istio: named in the metadata, or in one of two directories that hold the whole set; not where we write ourselves.
fn certificate_files(inputs: &Inputs, node: &Node) -> Option<CertificateFiles> {
    let env = Environment(&inputs.env);
    let named = |key: &str| Some(PathBuf::from(node.metadata.get(key)?.as_str()?));
    if env.text("FILE_MOUNTED_CERTS") == Some("true") {
        return Some(CertificateFiles {
            chain: named("TLS_CLIENT_CERT_CHAIN")?,
            key: named("TLS_CLIENT_KEY")?,
            roots: named("TLS_CLIENT_ROOT_CERT")?,
        });
    }
    let ours = env.text("OUTPUT_CERTS").map(|path| path.trim_end_matches('/'));
    read::CERTIFICATE_DIRECTORIES
        .into_iter()
        .filter(|directory| {
            ours.is_none_or(|ours| {
                ours.trim_start_matches(['.', '/']) != directory.trim_start_matches(['.', '/'])
            })
        })
        .find(|directory| inputs.has(directory))
        .map(CertificateFiles::below)
}

// istio: JWT_POLICY chooses between the projected token and the one every pod has.
fn token(env: Environment<'_>) -> &'static str {
    match env.text("JWT_POLICY") {
        Some("first-party-jwt") => "./var/run/secrets/kubernetes.io/serviceaccount/token",
        _ => "./var/run/secrets/tokens/istio-token",
    }
}

// istio: the flag, the ProxyConfig, the CPU limit; 0 and nothing mean one for each CPU.
fn workers(inputs: &Inputs, config: &ProxyConfig) -> Result<usize, SettingsError> {
    let env = Environment(&inputs.env);
    let number = |name: &str, text: &str| {
        text.parse::<usize>().map_err(|_| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "a number of workers",
        })
    };
    let flag = inputs.flags.get("concurrency").filter(|text| *text != "0");
    let configured = config.scalar("concurrency");
    let count = if let Some(text) = flag {
        number("--concurrency", text)?
    } else if let Some(text) = configured {
        number("concurrency", &text)?
    } else if let Some(text) = env.text("ISTIO_CPU_LIMIT") {
        number("ISTIO_CPU_LIMIT", text)?
    } else {
        0
    };
    Ok(if count == 0 { inputs.cpus.max(1) } else { count })
}

#[cfg(test)]
mod tests;
