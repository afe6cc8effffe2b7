//! What `remora control` is told by its file.

use crate::files::{self, LoadError};
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The configuration of a control plane. Relative paths start at the directory of the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Where to listen.
    #[serde(default = "any_address")]
    pub listen: SocketAddr,
    /// The trust domain of the mesh.
    #[serde(default = "cluster_local")]
    pub trust_domain: String,
    /// Other names of the trust domain. Principals in policies that name one of them mean the same workloads.
    #[serde(default)]
    pub trust_domain_aliases: Vec<String>,
    /// Names under which the control plane is reached, for its own certificate.
    #[serde(default = "server_names")]
    pub server_names: Vec<String>,
    /// The directory of the root certificate and its key; made at the first start.
    pub authority: PathBuf,
    /// Files or directories that describe the mesh.
    pub mesh: Vec<PathBuf>,
    /// The file of tokens.
    pub tokens: PathBuf,
    /// Accounts, `NAMESPACE/ACCOUNT`, whose proxies serve many namespaces and are told everything.
    #[serde(default)]
    pub node_proxies: Option<Vec<String>>,
    /// Life of a certificate for which nothing else was asked.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub certificate_life: Duration,
    /// The longest that may be asked for.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub longest_certificate_life: Duration,
    /// How often the files are looked at.
    #[serde(default = "one_second", deserialize_with = "duration")]
    pub reload: Duration,
}

fn any_address() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 15012))
}

fn cluster_local() -> String {
    "cluster.local".to_owned()
}

fn server_names() -> Vec<String> {
    let names = ["istiod.istio-system.svc", "localhost", "127.0.0.1", "::1"];
    names.map(str::to_owned).into()
}

fn one_day() -> Duration {
    Duration::from_hours(24)
}

fn one_second() -> Duration {
    Duration::from_secs(1)
}

/// As Go writes them: `24h`, `1m30s`.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let nanos = remora_pod::duration::parse(&text).map_err(serde::de::Error::custom)?;
    match u64::try_from(nanos) {
        Ok(nanos) if nanos > 0 => Ok(Duration::from_nanos(nanos)),
        _ => Err(serde::de::Error::custom(format_args!(
            "{text} is no time that could pass"
        ))),
    }
}

impl Config {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let mut config: Self = files::one(path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        config.authority = base.join(&config.authority);
        config.tokens = base.join(&config.tokens);
        for path in &mut config.mesh {
            *path = base.join(&*path);
        }
        Ok(config)
    }
}
