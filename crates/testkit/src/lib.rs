//! Network namespaces and real traffic for tests.
//!
//! A [`Lab`] is a pod and its surroundings in namespaces of their own; nothing outside them is touched, and
//! they are removed on drop. An [`Actor`] is a thread in one of them, as some user: what it opens belongs
//! to that namespace and user. A test that cannot have all this fails and says why; it never passes by not
//! running.

mod actor;
mod corpus;
mod lab;
mod program;
mod reach;
mod shared;
mod traffic;

pub use actor::Actor;
pub use corpus::replay;
pub use lab::{Lab, LinkAddresses, answer_for_everyone, forwarding};
pub use program::{given_directory, has_programs};
pub use reach::reachable;
pub use shared::shared_folder;
pub use traffic::{Pair, Seen, Watch, exchange};
