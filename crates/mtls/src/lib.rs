//! Workload identity and mutual TLS: SPIFFE ids, keys, certificates, TLS configurations, a small certificate authority.
//!
//! Promises: a peer is accepted for its certificate chain and its one SPIFFE id, never for a DNS name. Rotating a
//! certificate does not affect open connections. A certificate that cannot be used is refused when it is installed,
//! and the previous one stays in force.
//!
//! The crate has no sockets, no runtime and no global clock: callers pass the time, or give an identity a clock for its
//! handshakes.

mod authority;
mod bootstrap;
mod certificate;
mod clock;
mod config;
mod credentials;
pub mod fuzz;
mod identity;
mod key;
mod no_verify;
mod peer;
mod pem;
mod provider;
mod spiffe;
mod trust;
mod verify;

pub use authority::{Authority, AuthorityError, AuthorityState, Issued, RootRotation};
pub use bootstrap::{BootstrapError, bootstrap_client, bootstrap_client_as, bootstrap_server};
pub use certificate::{CertificateError, Chain};
pub use clock::Clock;
pub use config::{AlpnProfile, ConfigError};
pub use credentials::{Credentials, CredentialsError};
pub use identity::{Identity, InstallError};
pub use key::{KeyError, PrivateKey};
pub use no_verify::{NoVerifier, probe_client};
pub use peer::{PeerCertificate, PeerRole};
pub use pem::{PairError, Pem, check_pair};
pub use provider::warm_up;
pub use spiffe::{InvalidSpiffeId, SpiffeId};
pub use trust::{Roots, RootsError, TrustDomains};
pub use verify::{PeerError, peer_identity};
