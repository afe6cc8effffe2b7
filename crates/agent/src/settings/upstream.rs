//! Where the control plane is, whom to believe there, and certificates that need none.

use super::read::{self, Environment};
use super::{Inputs, Node, ProxyConfig, SettingsError};
use remora_xds::client::LARGEST_MESSAGE;
use std::path::PathBuf;

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
    /// Chain and key to show, where there are some.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Sent with everything, beside the token.
    pub headers: Vec<(String, String)>,
    /// Who is to sign certificates, where there are several; empty for nobody in particular.
    pub signer: String,
    /// Bytes that one of its messages may have.
    pub largest_message: usize,
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
    pub(crate) fn below(directory: &str) -> Self {
        let path = |name: &str| PathBuf::from(format!("{directory}/{name}"));
        Self {
            chain: path("cert-chain.pem"),
            key: path("key.pem"),
            roots: path("root-cert.pem"),
        }
    }
}

pub(super) fn server(name: &str, text: &str) -> Result<Server, SettingsError> {
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

pub(super) fn discovery(
    inputs: &Inputs,
    config: &ProxyConfig,
    node: &Node,
) -> Result<Upstream, SettingsError> {
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
        certificate: certificate(inputs, node),
        headers: headers(inputs, node, "XDS_HEADER_"),
        signer: String::new(),
        largest_message: env.bytes("REMORA_XDS_MAX_MESSAGE_BYTES", LARGEST_MESSAGE)?,
    })
}

/// The namespace whose policies may be for all workloads: the mesh configuration names it, else it is the control
/// plane's, whose address names that.
// istio: `rootNamespace` is the namespace of the installation unless another is configured.
pub(super) fn root_namespace(config: &ProxyConfig) -> Result<String, SettingsError> {
    let server = server("discoveryAddress", config.required_text("discoveryAddress")?)?;
    let mut labels = server.host.split('.').skip(1);
    let of_service = labels.next().filter(|_| labels.next() == Some("svc"));
    let named = config.mesh_text("/rootNamespace").or(of_service);
    Ok(named.unwrap_or("istio-system").to_owned())
}

pub(super) fn authority(
    inputs: &Inputs,
    config: &ProxyConfig,
    node: &Node,
) -> Result<Upstream, SettingsError> {
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
        certificate: certificate(inputs, node),
        headers: headers(inputs, node, "CA_HEADER_"),
        signer: named(node, "CERT_SIGNER").unwrap_or_default().to_owned(),
        largest_message: LARGEST_MESSAGE,
    })
}

fn named<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.get(key)?.as_str()
}

// istio: the cluster's name, and whatever variables with this beginning hold.
fn headers(inputs: &Inputs, node: &Node, beginning: &str) -> Vec<(String, String)> {
    let cluster = named(node, "CLUSTER_ID").map(|id| ("clusterid".to_owned(), id.to_owned()));
    let given = inputs.env.iter().filter_map(|(name, value)| {
        let header = name.strip_prefix(beginning)?;
        Some((header.to_ascii_lowercase(), value.clone()))
    });
    cluster.into_iter().chain(given).collect()
}

// istio: what was provisioned before, or what is mounted. A machine outside a cluster has no token to show.
fn certificate(inputs: &Inputs, node: &Node) -> Option<(PathBuf, PathBuf)> {
    let env = Environment(&inputs.env);
    if let Some(directory) = env.text("PROV_CERT") {
        let path = |name: &str| PathBuf::from(format!("{directory}/{name}"));
        return Some((path("cert-chain.pem"), path("key.pem")));
    }
    if env.text("FILE_MOUNTED_CERTS") != Some("true") {
        return None;
    }
    let path = |key: &str| named(node, key).map(PathBuf::from);
    Some((path("TLS_CLIENT_CERT_CHAIN")?, path("TLS_CLIENT_KEY")?))
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
pub(super) fn certificate_files(inputs: &Inputs, node: &Node) -> Option<CertificateFiles> {
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
pub(super) fn token(env: Environment<'_>) -> &'static str {
    match env.text("JWT_POLICY") {
        Some("first-party-jwt") => "./var/run/secrets/kubernetes.io/serviceaccount/token",
        _ => "./var/run/secrets/tokens/istio-token",
    }
}
