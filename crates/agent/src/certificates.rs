//! Where the pod's certificate comes from, and where it goes besides the proxy.
//!
//! Either the authority is asked, and asked again at half of a certificate's life, or somebody else puts files there
//! and exchanges them. In both cases the certificate in force stays until a better one is there and works.

use crate::log::{Log, chain};
use crate::look::{self, Look};
use crate::output;
use crate::settings::CertificateFiles;
use remora_mtls::{
    CertificateError, Chain, ConfigError, Credentials, CredentialsError, Identity, InstallError, KeyError,
    PrivateKey, Roots, RootsError, SpiffeId, TrustDomains,
};
use remora_proxy::join::{Membership, Notice};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Files that hold no certificate that works.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read the certificate")]
    Certificate(#[from] CertificateError),
    #[error("read the key")]
    Key(#[from] KeyError),
    #[error("read the roots")]
    Roots(#[from] RootsError),
    #[error("check the certificate")]
    Credentials(#[from] CredentialsError),
    #[error("prepare the certificate")]
    Config(#[from] ConfigError),
    #[error("install the certificate")]
    Install(#[from] InstallError),
}

/// Certificates from an authority or from files.
pub(crate) enum Certificates {
    Authority(Box<Membership>),
    Files(Box<Files>),
}

/// A set of files that somebody else keeps fresh.
pub(crate) struct Files {
    pub(crate) paths: CertificateFiles,
    pub(crate) expected: SpiffeId,
    pub(crate) domains: TrustDomains,
    pub(crate) log: Log,
}

impl Certificates {
    /// Tries until there is one.
    pub(crate) async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        match self {
            Self::Authority(membership) => membership.identity(notice).await,
            Self::Files(files) => files.identity(notice).await,
        }
    }

    /// Keeps it fresh for ever.
    pub(crate) async fn stay(&self, identity: &Identity, jitter: f64, notice: &mut impl FnMut(Notice)) {
        match self {
            Self::Authority(membership) => {
                membership.stay_certified(identity, jitter, notice).await;
            }
            Self::Files(files) => files.stay(identity, notice).await,
        }
    }
}

impl Files {
    async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        let mut said = String::new();
        loop {
            let made = self.read().and_then(|credentials| {
                let until = credentials.chain().not_after();
                let domains = self.domains_of(credentials.id());
                Ok((Identity::new(domains, credentials)?, until))
            });
            match made {
                Ok((identity, until)) => {
                    notice(Notice::Certified(until));
                    return identity;
                }
                Err(error) => self.say(&mut said, &error),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Believes its own domain, whatever the settings call it.
    fn domains_of(&self, id: &SpiffeId) -> TrustDomains {
        if id == &self.expected {
            return self.domains.clone();
        }
        self.log
            .warning(format_args!("the files name {id}, and not {}", self.expected));
        TrustDomains::of(id)
    }

    async fn stay(&self, identity: &Identity, notice: &mut impl FnMut(Notice)) {
        let (mut installed, mut said) = (self.marks(), String::new());
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.marks();
            if now == installed {
                continue;
            }
            match self.renew(identity) {
                Ok(until) => {
                    // Exchanged once more while we read: then it is read once more.
                    installed = now;
                    said.clear();
                    notice(Notice::Certified(until));
                }
                // Half of an exchange, most likely. What is in force stays.
                Err(error) => self.say(&mut said, &error),
            }
        }
    }

    fn renew(&self, identity: &Identity) -> Result<SystemTime, FilesError> {
        let credentials = self.read()?;
        let until = credentials.chain().not_after();
        identity.install(credentials, SystemTime::now())?;
        Ok(until)
    }

    fn read(&self) -> Result<Credentials, FilesError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| FilesError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let key = PrivateKey::from_pem(&read(&self.paths.key)?)?;
        let certificates = Chain::from_pem(&read(&self.paths.chain)?)?;
        let roots = Roots::from_pem(&read(&self.paths.roots)?)?;
        let id = certificates.id().clone();
        Ok(Credentials::new(
            &key,
            certificates,
            roots,
            &id,
            SystemTime::now(),
        )?)
    }

    /// Follows links, so that an exchange of the directory behind them is seen.
    fn marks(&self) -> [Look; 3] {
        [
            look::at(&self.paths.chain),
            look::at(&self.paths.key),
            look::at(&self.paths.roots),
        ]
    }

    /// The same trouble is worth one line.
    fn say(&self, said: &mut String, error: &FilesError) {
        let text = chain(error);
        if text != *said {
            self.log.warning(format_args!("certificates in files: {text}"));
            *said = text;
        }
    }
}

/// Writes the certificate in force for others to use. What was there stays if it cannot be written.
pub(crate) fn publish(directory: &Path, identity: &Identity, log: &Log) {
    if let Err(error) = output::write(directory, &identity.credentials().to_pem()) {
        log.warning(format_args!(
            "write the certificate to {}: {error}",
            directory.display()
        ));
    }
}
