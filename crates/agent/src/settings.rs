//! Everything the agent is told, as one value.
//!
//! [`Settings::resolve`] is pure: flags, environment, the texts of a few files and the pod's addresses in; settings
//! and warnings, or one clear error, out. [`Inputs::read`] collects them from the working directory (the root of the
//! image, in a pod).

mod error;
mod node;
mod pod;
mod proxy_config;
mod read;
mod upstream;

pub use error::SettingsError;
pub use node::Node;
pub use proxy_config::ProxyConfig;
pub use read::Inputs;
pub use upstream::{CertificateFiles, RootSource, Server, Upstream};

use crate::envoy::{self, EnvoySettings};
use crate::kubelet::KubeletSources;
use crate::probes::Probes;
use crate::scrape::{self, Target};
use crate::snapshot::Place;
use crate::stop::Knobs;
pub(crate) use read::Environment;
use remora_mtls::{SpiffeId, TrustDomains};
use remora_proxy::UnknownDestinations;
use remora_proxy::access::log::Format;
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

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

/// Lines about connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// A file, or the name of a standard stream; `None`: nowhere.
    pub file: Option<String>,
    /// How they are written.
    pub format: Format,
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
    /// Where lines about connections go.
    pub access_log: AccessLog,
    /// Whether the proxy tells where its CPU time and memory go.
    pub profiling: bool,
    /// When to go after the stop was asked for.
    pub stop: Knobs,
    /// The pod's namespace.
    pub namespace: String,
    /// The namespace whose policies may be for all workloads.
    pub root_namespace: String,
    /// The domain of the cluster.
    pub cluster_domain: String,
    /// A process whose end is ours too.
    pub watched: Option<String>,
    /// The application's probes.
    pub probes: Probes,
    /// From where the kubelet asks for them.
    pub kubelet: KubeletSources,
    /// Where the application is asked.
    pub application: IpAddr,
    /// Where it has its metrics.
    pub metrics: Vec<Target>,
    /// Whether Envoy's metrics are on the same page.
    pub merge_envoy: bool,
    /// Metrics are for the pod itself only.
    pub private_metrics: bool,
    /// Where the last good configuration is kept, for a start without a control plane; `None`: nowhere.
    pub last_good: Option<Place>,
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
        let (id, domains) = pod::identity(inputs, &config, &mut warnings)?;
        let addresses = pod::addresses(inputs)?;
        let node = Node::new(inputs, &config, &addresses)?;
        let envoy = envoy::resolve(inputs, &config, &node, &addresses, &mut warnings)?;
        let settings = Self {
            envoy,
            discovery: upstream::discovery(inputs, &config, &node)?,
            authority: upstream::authority(inputs, &config, &node)?,
            certificate_files: upstream::certificate_files(inputs, &node),
            output: env.text("OUTPUT_CERTS").map(PathBuf::from),
            token: upstream::token(env).into(),
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
            access_log: AccessLog {
                file: config.mesh_text("/accessLogFile").map(str::to_owned),
                format: match config.mesh_text("/accessLogEncoding") {
                    Some("JSON") => Format::Json,
                    _ => Format::Text,
                },
            },
            // differs from istio: off unless it is asked for.
            profiling: inputs.flags.get("profiling") == Some("true"),
            stop: stop(env, &config)?,
            namespace: env.required("POD_NAMESPACE")?.to_owned(),
            root_namespace: upstream::root_namespace(&config)?,
            cluster_domain: cluster_domain(inputs),
            watched: env.text("REMORA_EXIT_WITH_PROCESS").map(str::to_owned),
            probes: env
                .text("ISTIO_KUBE_APP_PROBERS")
                .map(Probes::parse)
                .transpose()?
                .unwrap_or_default(),
            kubelet: KubeletSources::resolve(env, &inputs.gateways, &addresses)?,
            application: application(env, &addresses),
            metrics: env
                .text("ISTIO_PROMETHEUS_ANNOTATIONS")
                .map(scrape::targets)
                .transpose()?
                .unwrap_or_default(),
            merge_envoy: env.switch("PILOT_AGENT_MERGE_ENVOY_STATS", true)?,
            private_metrics: env.flag("METRICS_LOCALHOST_ACCESS_ONLY")?,
            last_good: last_good(env)?,
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

/// Opt-in: it is something on a disk.
fn last_good(env: Environment<'_>) -> Result<Option<Place>, SettingsError> {
    let Some(directory) = env.text("REMORA_LAST_GOOD_DIR") else {
        return Ok(None);
    };
    Ok(Some(Place {
        directory: directory.into(),
        longest: env.duration("REMORA_LAST_GOOD_MAX_AGE", Duration::from_hours(24))?,
    }))
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
        Some(upstream::server("DNS_PROXY_ADDR", address)?.port)
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
