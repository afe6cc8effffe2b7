//! The options of `istio-iptables`: their names, their environment variables, and reading them.
//!
//! Three stages. **Given**: texts with their origin (flag, environment variable, annotation). **Settings**:
//! validated and typed, still without knowledge of the host. **Intent**: combined with the facts about the host
//! ([`HostFacts`]). An unusable value is an error that names its origin and its text; where Istio's own templates
//! rely on leniency the value is accepted with a warning.

mod argv;
mod read;
mod reader;
mod settings;
mod table;

pub use argv::{ArgvError, parse_argv, set_argument};
pub use read::{Environment, Given, Origin};
pub use settings::{Backend, HostFacts, InitialState, RequiredFacts, Settings, SettingsError};
pub use table::{Kind, Name, OPTIONS, Spec, find};

#[cfg(test)]
mod tests;
