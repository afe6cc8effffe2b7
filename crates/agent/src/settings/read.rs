//! Sources of the settings: command line, environment, files and kernel.

use super::SettingsError;
use crate::flags::Flags;
use remora_net::route::{self, Family};
use remora_net::{address, link};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

// istio: the downward API's files.
const LABELS: &str = "./etc/istio/pod/labels";
const ANNOTATIONS: &str = "./etc/istio/pod/annotations";
const MESH: &str = "./etc/istio/config/mesh";
/// The root certificate that is mounted next to certificate files.
pub(super) const MOUNTED_ROOT: &str = "./etc/certs/root-cert.pem";
/// Where certificates may be mounted.
pub(super) const CERTIFICATE_DIRECTORIES: [&str; 2] =
    ["./var/run/secrets/workload-spiffe-credentials", "./etc/certs"];

/// All inputs of the settings.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The command line.
    pub flags: Flags,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// The mesh configuration file.
    pub mesh: Option<String>,
    /// The pod's labels, as the downward API writes them.
    pub labels: Option<String>,
    /// The pod's annotations, in the same format.
    pub annotations: Option<String>,
    /// Addresses of the pod's interfaces.
    pub interfaces: Vec<IpAddr>,
    /// Gateways of the pod's default routes.
    pub gateways: Vec<IpAddr>,
    /// CPUs the process may use.
    pub cpus: usize,
    /// Whether the file that `--binaryPath` names is there.
    pub binary: bool,
    /// Existing certificate files and complete certificate directories; their presence decides the certificate source.
    pub present: BTreeSet<&'static str>,
}

impl Inputs {
    /// Reads the files below the working directory, and addresses and routes from the kernel.
    pub fn read(words: &[String], env: BTreeMap<String, String>) -> Result<Self, SettingsError> {
        let flags = Flags::parse(words)?;
        let mesh = optional(flags.get("meshConfig").unwrap_or(MESH))?;
        // Interfaces are read only if the environment does not contain the pod's address.
        let interfaces = if env.contains_key("INSTANCE_IP") || flags.get("ip").is_some() {
            Vec::new()
        } else {
            interfaces().map_err(SettingsError::Addresses)?
        };
        Ok(Self {
            mesh,
            labels: optional(LABELS)?,
            annotations: optional(ANNOTATIONS)?,
            interfaces,
            // Default routes identify the kubelet, which matters only if probes go through the agent.
            gateways: if env.contains_key("ISTIO_KUBE_APP_PROBERS") {
                gateways().map_err(SettingsError::Gateways)?
            } else {
                Vec::new()
            },
            present: present(),
            binary: flags
                .get("binaryPath")
                .is_some_and(|path| Path::new(path).is_file()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            flags,
            env,
        })
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.present.contains(path)
    }
}

/// The files and whole sets of certificates that are there.
fn present() -> BTreeSet<&'static str> {
    let whole = |directory: &&str| {
        ["cert-chain.pem", "key.pem", "root-cert.pem"]
            .iter()
            .all(|name| Path::new(directory).join(name).exists())
    };
    let root = [MOUNTED_ROOT].into_iter().filter(|path| Path::new(path).exists());
    root.chain(CERTIFICATE_DIRECTORIES.into_iter().filter(whole))
        .collect()
}

fn optional(path: &str) -> Result<Option<String>, SettingsError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::File {
            path: path.into(),
            source,
        }),
    }
}

fn interfaces() -> std::io::Result<Vec<IpAddr>> {
    let mut socket = link::socket().map_err(std::io::Error::other)?;
    let all = address::list(&mut socket).map_err(std::io::Error::other)?;
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    Ok(all
        .into_iter()
        .map(|assigned| assigned.address.to_canonical())
        .filter(usable)
        .collect())
}

/// Gateways of the default routes, for IPv4 and IPv6. A kernel without a family has no routes for it.
fn gateways() -> std::io::Result<Vec<IpAddr>> {
    let mut socket = link::socket()?;
    let mut gateways = Vec::new();
    for family in [Family::V4, Family::V6] {
        let routes = match route::routes(&mut socket, family) {
            Ok(routes) => routes,
            Err(_) if family == Family::V6 => Vec::new(),
            Err(error) => return Err(std::io::Error::other(error)),
        };
        let default = routes.into_iter().filter(|route| route.destination.is_none());
        gateways.extend(default.filter_map(|route| route.gateway));
    }
    Ok(gateways)
}

/// The environment, read by name. Empty means not set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a>(pub(crate) &'a BTreeMap<String, String>);

impl<'a> Environment<'a> {
    pub(crate) fn text(self, name: &str) -> Option<&'a str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    pub(super) fn required(self, name: &'static str) -> Result<&'a str, SettingsError> {
        self.text(name).ok_or(SettingsError::Missing(name))
    }

    pub(crate) fn duration(self, name: &str, default: Duration) -> Result<Duration, SettingsError> {
        self.text(name).map_or(Ok(default), |text| duration(name, text))
    }

    pub(crate) fn seconds(self, name: &str) -> Result<Option<Duration>, SettingsError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let seconds = text.parse().map_err(|_| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "a number of seconds",
        })?;
        Ok(Some(Duration::from_secs(seconds)))
    }

    /// As Go reads them; not set is off.
    pub(super) fn flag(self, name: &str) -> Result<bool, SettingsError> {
        self.switch(name, false)
    }

    /// The same, with another default.
    pub(crate) fn switch(self, name: &str, default: bool) -> Result<bool, SettingsError> {
        match self.text(name) {
            None => Ok(default),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some(text) => Err(SettingsError::Value {
                name: name.to_owned(),
                value: text.to_owned(),
                expected: "true or false",
            }),
        }
    }

    pub(super) fn bytes(self, name: &str, default: usize) -> Result<usize, SettingsError> {
        let Some(text) = self.text(name) else {
            return Ok(default);
        };
        let bytes = text.parse().ok().filter(|bytes| *bytes > 0);
        bytes.ok_or_else(|| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "a number of bytes",
        })
    }

    pub(crate) fn port(self, name: &str, default: u16) -> Result<u16, SettingsError> {
        let Some(text) = self.text(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "a port",
        })
    }
}

/// As Go writes them, and not negative.
pub(super) fn duration(name: &str, text: &str) -> Result<Duration, SettingsError> {
    let nanos = remora_pod::duration::parse(text).map_err(|source| SettingsError::Duration {
        name: name.to_owned(),
        source,
    })?;
    let nanos = u64::try_from(nanos).map_err(|_| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: "a time that could pass",
    })?;
    Ok(Duration::from_nanos(nanos))
}
