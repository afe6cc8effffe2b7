//! Who a workload is, and how it proves it: SPIFFE ids, keys, certificates, TLS configurations, a small authority.
//!
//! Promises: a peer is accepted for its certificate chain and its one SPIFFE id, never for a DNS name. Certificates
//! are exchanged while connections are open and without touching them. A certificate that cannot be used is refused
//! when it is installed, and the one before stays in force.
//!
//! Knows no sockets, no runtime and no clock of its own: the time comes in as an argument, or with the clock an
//! identity was given for its handshakes.

mod anybody;
mod authority;
mod bootstrap;
mod certificate;
mod clock;
mod config;
mod credentials;
pub mod fuzz;
mod identity;
mod key;
mod peer;
mod pem;
mod provider;
mod spiffe;
mod trust;
mod verify;

pub use anybody::{Anybody, probe_client};
pub use authority::{Authority, AuthorityError, Issued, Kept, RootRotation};
pub use bootstrap::{BootstrapError, bootstrap_client, bootstrap_client_as, bootstrap_server};
pub use certificate::{CertificateError, Chain};
pub use clock::Clock;
pub use config::{ConfigError, Wire};
pub use credentials::{Credentials, CredentialsError};
pub use identity::{Identity, InstallError};
pub use key::{KeyError, PrivateKey};
pub use peer::{PeerCertificate, PeerRole};
pub use pem::{PairError, Pem, check_pair};
pub use provider::warm_up;
pub use spiffe::{InvalidSpiffeId, SpiffeId};
pub use trust::{Roots, RootsError, TrustDomains};
pub use verify::{PeerError, peer_identity};
