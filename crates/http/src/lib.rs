//! One server loop with limits, for every port on which clients that have not authenticated may connect.
//!
//! A port must never stop accepting, whatever other clients do: a kubelet that cannot reach a health endpoint restarts
//! the container, and an API server that cannot reach a webhook creates no pods. So the loop always accepts, and when
//! there is no room the connection that matters least is closed: see [`limits`], which decides that without IO.
//!
//! | part | what it does |
//! |---|---|
//! | [`limits`] | which connection to admit, to evict or to refuse (pure) |
//! | [`Registry`], [`Connection`] | the open connections of a port, and what each of them is doing |
//! | [`SourceLimiter`] | at most N things at once for one source address |
//! | [`Tracked`] | a stream that ends when its connection is evicted or asks for nothing in time |
//! | [`accept`], [`handshake`], [`http1`] | the loop, TLS, and HTTP/1 on top of it |

pub mod limits;
mod registry;
mod server;
mod source;
mod stream;

pub use limits::{Limits, Stage};
pub use registry::{Connection, InFlight, Registry};
pub use server::{Accepted, Http1, TlsConfig, accept, handshake, http1};
pub use source::{Permit, SourceLimiter};
pub use stream::Tracked;
