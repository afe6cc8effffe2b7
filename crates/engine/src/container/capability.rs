//! Capabilities: the parts of root's power, by name.

use std::fmt;

/// The kernel's names in the order of their numbers, without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What container runtimes give when nobody asks.
const USUAL: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

/// A name the kernel does not know.
#[derive(Debug, thiserror::Error)]
#[error("there is no capability {0:?}")]
pub struct UnknownCapability(String);

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// All the kernel knows.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);

    /// Adds by name: `NET_ADMIN` or `CAP_NET_ADMIN`, any case; `ALL` is all.
    pub fn add(&mut self, name: &str) -> Result<(), UnknownCapability> {
        self.0 |= Self::named(name)?.0;
        Ok(())
    }

    /// Removes by name, as [`add`](Self::add) adds.
    pub fn drop(&mut self, name: &str) -> Result<(), UnknownCapability> {
        self.0 &= !Self::named(name)?.0;
        Ok(())
    }

    /// Whether the set has the capability of that name.
    pub fn has(self, name: &str) -> bool {
        Self::named(name).is_ok_and(|c| self.0 & c.0 == c.0)
    }

    /// The usual set changed as a pod says it. k8s: `ALL` counts first, dropped before added; then the single names.
    pub fn changed(add: &[String], drop: &[String]) -> Result<Self, UnknownCapability> {
        let all = |list: &[String]| list.iter().any(|n| n.eq_ignore_ascii_case("ALL"));
        let mut set = match (all(add), all(drop)) {
            (_, true) => Self::NONE,
            (true, false) => Self::ALL,
            (false, false) => Self::default(),
        };
        for name in add {
            set.add(name)?;
        }
        for name in drop.iter().filter(|n| !n.eq_ignore_ascii_case("ALL")) {
            set.drop(name)?;
        }
        Ok(set)
    }

    fn named(name: &str) -> Result<Self, UnknownCapability> {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if short == "ALL" {
            return Ok(Self::ALL);
        }
        let number = NAMES.iter().position(|known| *known == short);
        number
            .map(|n| Self(1 << n))
            .ok_or_else(|| UnknownCapability(name.to_owned()))
    }

    /// Names of what the set has.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |name| self.has(name))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        let mut set = Self::NONE;
        for name in USUAL {
            set.0 |= Self::named(name).map_or(0, |c| c.0);
        }
        set
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_usual_set_is_what_runtimes_give() {
        assert_eq!(Capabilities::default().bits(), 0xa804_25fb);
    }

    #[test]
    fn a_pod_adds_and_drops() {
        let set = Capabilities::changed(&list(&["NET_ADMIN"]), &list(&["ALL"])).unwrap();
        assert_eq!(format!("{set:?}"), "[\"NET_ADMIN\"]");
        let set = Capabilities::changed(&list(&["cap_net_admin"]), &list(&["KILL"])).unwrap();
        assert!(set.has("NET_ADMIN") && !set.has("KILL") && set.has("CHOWN"));
        let set = Capabilities::changed(&list(&["ALL"]), &list(&["SYS_ADMIN"])).unwrap();
        assert!(set.has("BPF") && !set.has("SYS_ADMIN"));
        assert!(Capabilities::changed(&list(&["FLYING"]), &[]).is_err());
    }
}
