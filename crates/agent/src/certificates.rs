//! Where the pod's certificate comes from, and where it goes besides the proxy.
//!
//! Either the authority is asked, and asked again at half of a certificate's life, or somebody else puts files there
//! and exchanges them. In both cases the certificate in force stays until a better one is there and works.

use crate::log::{Log, chain};
use crate::look::{self, Look};
use crate::output;
use crate::settings::CertificateFiles;
use remora_mtls::{Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
use remora_proxy::join::{CertifyError, Membership, Notice};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// An authority that says nothing for so long is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// Certificates from an authority or from files.
pub(crate) enum Certificates {
    Authority(Box<Authority>),
    Files(Box<Files>),
}

/// An authority, and the last certificate it gave, where that is written.
pub(crate) struct Authority {
    pub(crate) membership: Membership,
    pub(crate) kept: Option<Files>,
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
            Self::Authority(authority) => authority.identity(notice).await,
            Self::Files(files) => files.identity(notice).await,
        }
    }

    /// Keeps it fresh for ever.
    pub(crate) async fn stay(&self, identity: &Identity, jitter: f64, notice: &mut impl FnMut(Notice)) {
        match self {
            Self::Authority(authority) => {
                authority
                    .membership
                    .stay_certified(identity, jitter, notice)
                    .await;
            }
            Self::Files(files) => files.stay(identity, notice).await,
        }
    }
}

impl Authority {
    /// Asks until it gives one, or until it is known to be away and there is one from before.
    async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        let Some(kept) = &self.kept else {
            return self.membership.identity(notice).await;
        };
        let away = Notify::new();
        let mut hear = |heard: Notice| {
            if matches!(heard, Notice::NotCertified(_)) {
                away.notify_one();
            }
            notice(heard);
        };
        let (identity, until) = tokio::select! {
            identity = self.membership.identity(&mut hear) => return identity,
            made = kept.last_good(&away) => made,
        };
        notice(Notice::Certified(until));
        identity
    }
}

impl Files {
    async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        let mut said = String::new();
        loop {
            let made = self.read(None).and_then(|credentials| {
                let until = credentials.chain().not_after();
                let domains = self.domains_of(credentials.id());
                Ok((Identity::new(domains, credentials)?, until))
            });
            match made {
                Ok((identity, until)) => {
                    notice(Notice::Certified(until));
                    return identity;
                }
                Err(error) => say(&mut said, error, notice),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The certificate of before, once the authority is away; never if there is none that still works.
    async fn last_good(&self, away: &Notify) -> (Identity, SystemTime) {
        tokio::select! {
            () = away.notified() => {}
            () = tokio::time::sleep(PATIENCE) => {}
        }
        let made = self.read(Some(&self.expected)).and_then(|credentials| {
            let until = credentials.chain().not_after();
            Ok((Identity::new(self.domains.clone(), credentials)?, until))
        });
        let at = self.paths.chain.display();
        match made {
            Ok(made) => {
                self.log.warning(format_args!(
                    "the authority is away: starts with the certificate in {at}"
                ));
                made
            }
            Err(error) => {
                self.log.warning(format_args!(
                    "the authority is away, and there is no certificate from before: {}",
                    chain(&error)
                ));
                std::future::pending().await
            }
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
                Err(error) => say(&mut said, error, notice),
            }
        }
    }

    fn renew(&self, identity: &Identity) -> Result<SystemTime, CertifyError> {
        let credentials = self.read(None)?;
        let until = credentials.chain().not_after();
        identity.install(credentials, SystemTime::now())?;
        Ok(until)
    }

    /// Checked for whom is expected, or for whom it names itself.
    fn read(&self, expected: Option<&SpiffeId>) -> Result<Credentials, CertifyError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| CertifyError::File {
                path: path.to_owned(),
                source,
            })
        };
        let key = PrivateKey::from_pem(&read(&self.paths.key)?)?;
        let certificates = Chain::from_pem(&read(&self.paths.chain)?)?;
        let roots = Roots::from_pem(&read(&self.paths.roots)?)?;
        let id = expected.unwrap_or_else(|| certificates.id()).clone();
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
}

/// The same trouble is worth one notice.
fn say(said: &mut String, error: CertifyError, notice: &mut impl FnMut(Notice)) {
    let text = chain(&error);
    if text != *said {
        notice(Notice::NotCertified(error));
        *said = text;
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
