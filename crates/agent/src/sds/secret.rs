//! Names of secrets, and their sources.

use crate::file_stamp::{self, FileStamp};
use remora_mtls::{Pem, Roots, check_pair};
use remora_xds::Message as _;
use remora_xds::proto::tls::data_source::Specifier;
use remora_xds::proto::tls::secret::Type;
use remora_xds::proto::tls::{CertificateValidationContext, DataSource, Secret, TlsCertificate};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

const CERTIFICATE: &str = "default";
const ROOTS: &str = "ROOTCA";
/// Paths of the system's root bundle on common distributions.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// The name is not that of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no secret: default, ROOTCA, file-cert:CERTIFICATE~KEY, file-root:BUNDLE and file-root:system are"
)]
pub struct NameError(pub String);

/// The source that a name refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    Certificate,
    Roots,
    FilePair { certificate: PathBuf, key: PathBuf },
    FileRoots(Vec<PathBuf>),
}

/// The last version of a secret that was sent.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) version: String,
    pub(super) bytes: Vec<u8>,
    stamp: Stamp,
}

/// Stamps of the files of a secret; empty for a secret without files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stamp(Vec<FileStamp>);

/// Why the files cannot be used.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) stamp: Stamp,
    pub(super) why: String,
}

impl Name {
    // istio: the paths cannot contain `~`.
    pub(super) fn parse(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError(text.to_owned());
        if let Some(pair) = text.strip_prefix("file-cert:") {
            let (certificate, key) = pair.split_once('~').ok_or_else(wrong)?;
            if certificate.is_empty() || key.is_empty() || key.contains('~') {
                return Err(wrong());
            }
            return Ok(Self::FilePair {
                certificate: certificate.into(),
                key: key.into(),
            });
        }
        match text.strip_prefix("file-root:") {
            Some("") => Err(wrong()),
            Some("system") => Ok(Self::FileRoots(SYSTEM_ROOTS.map(PathBuf::from).to_vec())),
            Some(path) => Ok(Self::FileRoots(vec![path.into()])),
            None if text == CERTIFICATE => Ok(Self::Certificate),
            None if text == ROOTS => Ok(Self::Roots),
            None => Err(wrong()),
        }
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::FilePair { .. } | Self::FileRoots(_))
    }

    /// The secret, if it exists and differs from the one that was sent.
    pub(super) fn current(
        &self,
        text: &str,
        certificate: Option<&Pem>,
        held: Option<&Held>,
    ) -> Result<Option<Held>, Unusable> {
        let stamp = self.stamp();
        let made = match self {
            Self::Certificate => certificate.map(|pem| pair(text, &pem.chain, &pem.key)),
            Self::Roots => certificate.map(|pem| roots(text, &pem.roots)),
            _ if held.is_some_and(|held| held.stamp == stamp) => return Ok(None),
            _ => match self.read_files(text) {
                Ok(secret) => Some(secret),
                Err(why) => return Err(Unusable { stamp, why }),
            },
        };
        let new = made.map(|(public, secret)| Held {
            version: fingerprint(&public),
            bytes: secret.encode_to_vec(),
            stamp,
        });
        Ok(new.filter(|new| held.is_none_or(|held| held.version != new.version)))
    }

    fn read_files(&self, text: &str) -> Result<(String, Secret), String> {
        match self {
            Self::FilePair { certificate, key } => {
                let (chain, private) = (read(certificate)?, read(key)?);
                check_pair(&chain, &private)
                    .map_err(|error| format!("{} and {}: {error}", certificate.display(), key.display()))?;
                Ok(pair(text, &chain, &private))
            }
            Self::FileRoots(paths) => {
                let path = paths
                    .iter()
                    .find(|path| path.exists())
                    .or(paths.first())
                    .ok_or_else(|| "no file is named".to_owned())?;
                let bundle = read(path)?;
                Roots::from_pem(&bundle).map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(roots(text, &bundle))
            }
            Self::Certificate | Self::Roots => Err("comes from no file".to_owned()),
        }
    }

    /// Current stamps of the files. Follows symbolic links: Kubernetes replaces a directory behind them.
    fn stamp(&self) -> Stamp {
        let paths: Vec<&Path> = match self {
            Self::FilePair { certificate, key } => vec![certificate, key],
            Self::FileRoots(paths) => paths.iter().map(PathBuf::as_path).collect(),
            Self::Certificate | Self::Roots => Vec::new(),
        };
        Stamp(paths.into_iter().map(file_stamp::read).collect())
    }
}

impl Held {
    /// Records that these files cannot be used. Returns whether that is new.
    pub(super) fn mark_unusable(&mut self, stamp: Stamp) -> bool {
        let new = self.stamp != stamp;
        self.stamp = stamp;
        new
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error: io::Error| format!("read {}: {error}", path.display()))
}

/// The secret, and the text that its version is computed from.
fn pair(name: &str, chain: &str, key: &str) -> (String, Secret) {
    let certificate = TlsCertificate {
        certificate_chain: Some(inline(chain)),
        private_key: Some(inline(key)),
    };
    (chain.to_owned(), secret(name, Type::TlsCertificate(certificate)))
}

fn roots(name: &str, bundle: &str) -> (String, Secret) {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(bundle)),
    };
    (bundle.to_owned(), secret(name, Type::ValidationContext(context)))
}

fn secret(name: &str, kind: Type) -> Secret {
    Secret {
        name: name.to_owned(),
        r#type: Some(kind),
    }
}

fn inline(text: &str) -> DataSource {
    DataSource {
        specifier: Some(Specifier::InlineBytes(text.as_bytes().to_vec())),
    }
}

/// Version of a secret: stable over restarts of the agent, so that nothing is sent again. Never computed from a key.
fn fingerprint(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn names_are_those_of_istio_and_no_others() {
        assert_eq!(Name::parse("default"), Ok(Name::Certificate));
        assert_eq!(Name::parse("ROOTCA"), Ok(Name::Roots));
        assert_eq!(
            Name::parse("file-cert:/a/cert.pem~/a/key.pem"),
            Ok(Name::FilePair {
                certificate: "/a/cert.pem".into(),
                key: "/a/key.pem".into()
            })
        );
        assert_eq!(
            Name::parse("file-root:/a/ca.pem"),
            Ok(Name::FileRoots(vec!["/a/ca.pem".into()]))
        );
        assert!(matches!(Name::parse("file-root:system"), Ok(Name::FileRoots(list)) if list.len() == 4));
        for wrong in [
            "",
            "Default",
            "file-cert:",
            "file-cert:/a",
            "file-cert:~",
            "file-cert:a~b~c",
            "file-root:",
        ] {
            assert!(Name::parse(wrong).is_err(), "{wrong}");
        }
    }
}
