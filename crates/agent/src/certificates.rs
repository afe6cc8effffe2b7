//! Sources of the pod's certificate, and its copy on disk for other programs.
//!
//! Either the agent requests it from the authority and renews it at half of its lifetime, or another program writes and
//! rotates files. In both cases the current certificate stays in force until a new one was verified.

use crate::file_stamp::{self, FileStamp};
use crate::log::{Log, chain};
use crate::output;
use crate::settings::CertificateFiles;
use remora_mtls::{Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
use remora_proxy::join::{CertifyError, Membership, Notice};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// Interval between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// An authority that does not respond within this time counts as unavailable.
const AUTHORITY_TIMEOUT: Duration = Duration::from_secs(2);

/// Certificates from an authority or from files.
pub(crate) enum Certificates {
    Authority(Box<Authority>),
    Files(Box<Files>),
}

/// An authority, and the files with the last certificate that it issued, if the agent writes them.
pub(crate) struct Authority {
    pub(crate) membership: Membership,
    pub(crate) kept: Option<Files>,
}

/// A set of files that another program rotates.
pub(crate) struct Files {
    pub(crate) paths: CertificateFiles,
    pub(crate) expected: SpiffeId,
    pub(crate) domains: TrustDomains,
    pub(crate) log: Log,
}

impl Certificates {
    /// Retries until there is a certificate.
    pub(crate) async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        match self {
            Self::Authority(authority) => authority.identity(notice).await,
            Self::Files(files) => files.identity(notice).await,
        }
    }

    /// Renews the certificate indefinitely.
    pub(crate) async fn renew_forever(
        &self,
        identity: &Identity,
        jitter: f64,
        notice: &mut impl FnMut(Notice),
    ) {
        match self {
            Self::Authority(authority) => {
                authority
                    .membership
                    .stay_certified(identity, jitter, notice)
                    .await;
            }
            Self::Files(files) => files.renew_forever(identity, notice).await,
        }
    }
}

impl Authority {
    /// Retries until the authority issues a certificate. Uses the one on disk if the authority is unavailable.
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
                Err(error) => report_once(&mut said, error, notice),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The certificate on disk, once the authority is unavailable; never completes without a valid one.
    async fn last_good(&self, away: &Notify) -> (Identity, SystemTime) {
        tokio::select! {
            () = away.notified() => {}
            () = tokio::time::sleep(AUTHORITY_TIMEOUT) => {}
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

    /// Trust domains for a certificate from files: that of the certificate, if it differs from the settings.
    fn domains_of(&self, id: &SpiffeId) -> TrustDomains {
        if id == &self.expected {
            return self.domains.clone();
        }
        self.log
            .warning(format_args!("the files name {id}, and not {}", self.expected));
        TrustDomains::of(id)
    }

    async fn renew_forever(&self, identity: &Identity, notice: &mut impl FnMut(Notice)) {
        let (mut installed, mut said) = (self.stamps(), String::new());
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = self.stamps();
            if now == installed {
                continue;
            }
            match self.renew(identity) {
                Ok(until) => {
                    // `now` was taken before reading: files that changed meanwhile are read again.
                    installed = now;
                    said.clear();
                    notice(Notice::Certified(until));
                }
                // Most likely a partial update. The current certificate stays in force.
                Err(error) => report_once(&mut said, error, notice),
            }
        }
    }

    fn renew(&self, identity: &Identity) -> Result<SystemTime, CertifyError> {
        let credentials = self.read(None)?;
        let until = credentials.chain().not_after();
        identity.install(credentials, SystemTime::now())?;
        Ok(until)
    }

    /// Reads the files and verifies them for `expected`, or for the id in the certificate.
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

    /// Follows links, so that a replaced directory behind them is detected.
    fn stamps(&self) -> [FileStamp; 3] {
        [
            file_stamp::read(&self.paths.chain),
            file_stamp::read(&self.paths.key),
            file_stamp::read(&self.paths.roots),
        ]
    }
}

/// Reports an error, unless it is the same as the last one.
fn report_once(said: &mut String, error: CertifyError, notice: &mut impl FnMut(Notice)) {
    let text = chain(&error);
    if text != *said {
        notice(Notice::NotCertified(error));
        *said = text;
    }
}

/// Writes the current certificate for other programs. If that fails, the previous files stay.
pub(crate) fn publish(directory: &Path, identity: &Identity, log: &Log) {
    if let Err(error) = output::write(directory, &identity.credentials().to_pem()) {
        log.warning(format_args!(
            "write the certificate to {}: {error}",
            directory.display()
        ));
    }
}
