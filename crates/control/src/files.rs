//! Reads descriptions from files. All or nothing: one bad document and the whole is refused, with its place.
//!
//! A document is ours (`kind` and fields beside it) or Kubernetes' (`apiVersion`, `metadata`, `spec`): pods, services,
//! endpoint slices, nodes and Istio's policies become what they would in a cluster.

use crate::kubernetes::{Kind, Report, World};
use crate::mesh::Document;
use remora_mtls::TrustDomains;
use remora_pod::yaml::{self, Limits, ReadError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or directory.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not YAML.
    #[error("read {name} as YAML")]
    Yaml {
        /// Which file.
        name: String,
        /// Where and why.
        #[source]
        source: ReadError,
    },
    /// YAML, but not what is expected.
    #[error("understand the document at line {line} of {name}")]
    Shape {
        /// Which file.
        name: String,
        /// Where the document starts.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// An object of Kubernetes that says nothing about a mesh, or not in a way that is understood.
    #[error("the document at line {line} of {name} is a {kind}, which describes no mesh")]
    Kind {
        /// Which file.
        name: String,
        /// Where the document starts.
        line: usize,
        /// What it is.
        kind: String,
    },
    /// Not one byte: more likely somebody is writing it than that the mesh is gone.
    #[error("{name} has no content; delete it or leave a comment in it if it describes nothing")]
    Hollow {
        /// Which file.
        name: String,
    },
    /// Nothing in it.
    #[error("{name} is empty")]
    Empty {
        /// Which file.
        name: String,
    },
}

/// What files describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The mesh.
    pub documents: Vec<Document>,
    /// The policies among the objects, with what is not enforced as written.
    pub reports: Vec<Report>,
}

/// The documents of all files; of directories, those of `*.yaml` and `*.yml` directly in them, in order of name.
pub fn mesh(paths: &[PathBuf], trust_domains: &TrustDomains) -> Result<Described, LoadError> {
    let mut found = Vec::new();
    for path in paths {
        for file in expand(path)? {
            let (text, name) = (read(&file)?, file.display().to_string());
            // Most editors and `>` empty a file before they fill it: that nobody is there any more must be written.
            if text.is_empty() {
                return Err(LoadError::Hollow { name });
            }
            found.extend(values(&text, &name)?);
        }
    }
    understood(found, trust_domains)
}

/// What tells that a file is another one, or has another content, without reading it.
pub(crate) type Fingerprint = Vec<(PathBuf, u64, u64, i64, i64)>;

/// Of all files of a description; `None` when they cannot be looked at.
///
/// Reading a description of many thousand documents every second costs more than serving it.
pub(crate) fn fingerprint(paths: &[PathBuf]) -> Option<Fingerprint> {
    let mut all = Vec::new();
    for path in paths {
        for file in expand(path).ok()? {
            let data = std::fs::metadata(&file).ok()?;
            all.push((file, data.ino(), data.size(), data.mtime(), data.mtime_nsec()));
        }
    }
    Some(all)
}

fn expand(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let yaml = file.extension().is_some_and(|e| e == "yaml" || e == "yml");
        // k8s: mounted ConfigMaps have hidden directories beside the links.
        if yaml && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The documents of one text. `name` is for messages.
pub fn documents(text: &str, name: &str) -> Result<Vec<Document>, LoadError> {
    Ok(understood(values(text, name)?, &TrustDomains::default())?.documents)
}

/// Objects of Kubernetes are looked at together: services select pods, wherever they stand.
fn understood(found: Vec<Found>, trust_domains: &TrustDomains) -> Result<Described, LoadError> {
    // istio: names of the cluster, the root namespace and the domain unless others are given.
    let mut world = World::new("cluster", "istio-system", "cluster.local", trust_domains.clone());
    let mut documents = Vec::new();
    for found in found {
        if found.value.get("apiVersion").is_none() {
            documents.push(found.typed()?);
            continue;
        }
        let kind = match found.value["kind"].as_str() {
            Some("Pod") => Kind::Pod,
            Some("Service") => Kind::Service,
            Some("EndpointSlice") => Kind::EndpointSlice,
            Some("Node") => Kind::Node,
            Some("AuthorizationPolicy") => Kind::AuthorizationPolicy,
            Some("PeerAuthentication") => Kind::PeerAuthentication,
            other => {
                return Err(LoadError::Kind {
                    kind: other.unwrap_or("nothing").to_owned(),
                    name: found.name,
                    line: found.line,
                });
            }
        };
        world.put(kind, &found.value);
    }
    documents.extend(world.changes().filter_map(|(_, document)| document));
    Ok(Described {
        documents,
        reports: world.reports(),
    })
}

/// The one document of a file.
pub(crate) fn one<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let name = path.display().to_string();
    let found = values(&read(path)?, &name)?;
    match found.into_iter().next() {
        Some(found) => found.typed(),
        None => Err(LoadError::Empty { name }),
    }
}

/// A document and its place.
struct Found {
    name: String,
    line: usize,
    value: Value,
}

impl Found {
    fn typed<T: DeserializeOwned>(self) -> Result<T, LoadError> {
        serde_json::from_value(self.value).map_err(|source| LoadError::Shape {
            name: self.name,
            line: self.line,
            source,
        })
    }
}

fn values(text: &str, name: &str) -> Result<Vec<Found>, LoadError> {
    let mut found = Vec::new();
    for raw in yaml::split(text) {
        let document = yaml::parse(&raw, Limits::default()).map_err(|source| LoadError::Yaml {
            name: name.to_owned(),
            source,
        })?;
        let Some(document) = document else { continue };
        found.push(Found {
            name: name.to_owned(),
            line: raw.line,
            value: document.value,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::documents;
    use crate::mesh::{Affinity, Distribution, Document, InternalPolicy};

    const CLUSTER: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIPs: [10.96.0.1]
  selector: {app: cart}
  ports: [{port: 80, targetPort: web, appProtocol: http}]
  sessionAffinity: ClientIP
  trafficDistribution: PreferSameZone
  internalTrafficPolicy: Local
---
kind: Workload
name: old
namespace: shop
---
apiVersion: v1
kind: Pod
metadata: {name: cart-0, namespace: shop, labels: {app: cart}}
spec:
  containers: [{name: cart, ports: [{name: web, containerPort: 8080}]}]
status: {phase: Running, podIP: 10.0.0.7, podIPs: [{ip: 10.0.0.7}], conditions: [{type: Ready, status: 'True'}]}
";

    #[test]
    fn objects_of_kubernetes_stand_beside_ours() {
        let found = documents(CLUSTER, "test").unwrap();
        let services: Vec<_> = found
            .iter()
            .filter_map(|document| match document {
                Document::Service(service) => Some(service),
                _ => None,
            })
            .collect();
        let [service] = services.as_slice() else {
            unreachable!("one service was described, not {services:?}")
        };
        assert_eq!(service.session_affinity, Affinity::ClientIp);
        assert_eq!(service.traffic_distribution, Distribution::PreferSameZone);
        assert_eq!(service.internal_traffic_policy, InternalPolicy::Local);
        let behind = found.iter().find_map(|document| match document {
            Document::Workload(workload) if workload.name == "cart-0" => Some(&workload.services),
            _ => None,
        });
        assert_eq!(behind.unwrap()["shop/cart.shop.svc.cluster.local"], ["80:8080"]);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_describes_no_mesh_is_refused_with_its_place() {
        let text = "kind: Workload\nname: a\nnamespace: b\n---\napiVersion: apps/v1\nkind: Deployment\n";
        let error = documents(text, "test").unwrap_err().to_string();
        assert_eq!(
            error,
            "the document at line 4 of test is a Deployment, which describes no mesh"
        );
    }
}
