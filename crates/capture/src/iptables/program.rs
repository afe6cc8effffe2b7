//! Finds and runs the iptables programs.

use super::IptablesError;
use remora_rules::options::Backend;
use remora_rules::rule::Family;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The kernel interface that a program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// `ip_tables`.
    Legacy,
    /// `nf_tables` with the compatibility layer.
    Nft,
    /// The program without a suffix, whose kernel interface is unknown.
    Plain,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "iptables (legacy)",
            Self::Nft => "iptables (nf_tables)",
            Self::Plain => "iptables",
        })
    }
}

/// Whether legacy tables exist in this namespace.
// Running the legacy programs would load their kernel modules; /proc lists the tables without that.
pub(super) fn has_legacy_tables(family: Family) -> bool {
    let names = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    let tables = std::fs::read_to_string(format!("/proc/thread-self/net/{names}")).unwrap_or_default();
    !tables.trim().is_empty()
}

/// The programs of one variant for one family.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    variant: Variant,
    family: Family,
    base: String,
    lock: Option<PathBuf>,
}

impl Programs {
    fn new(variant: Variant, family: Family, lock: Option<&Path>) -> Self {
        let base = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let suffix = match variant {
            Variant::Legacy => "-legacy",
            Variant::Nft => "-nft",
            Variant::Plain => "",
        };
        Self {
            variant,
            family,
            base: format!("{base}{suffix}"),
            lock: lock.map(Path::to_owned),
        }
    }

    pub(super) fn variant(&self) -> Variant {
        if self.variant != Variant::Plain {
            return self.variant;
        }
        let version = self.run(&format!("{}-save", self.base), &["--version"], "");
        let text = version
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        match (text.contains("nf_tables"), text.contains("legacy")) {
            (true, _) => Variant::Nft,
            (_, true) => Variant::Legacy,
            _ => Variant::Plain,
        }
    }

    // istio: installed rules decide (legacy first), then nf_tables if it works, then the plain `iptables`. Unlike
    // Istio, this writes nothing to detect the variant: a program that can list rules can be used.
    pub(super) fn choose(
        backend: Backend,
        family: Family,
        lock: Option<&Path>,
    ) -> Result<Self, IptablesError> {
        let variants = |list: &[Variant]| -> Vec<Self> {
            list.iter()
                .map(|variant| Self::new(*variant, family, lock))
                .collect()
        };
        let candidates = match backend {
            Backend::IptablesLegacy => variants(&[Variant::Legacy]),
            Backend::IptablesNft => variants(&[Variant::Nft]),
            Backend::Iptables | Backend::Nftables => {
                let legacy = Self::new(Variant::Legacy, family, lock);
                if legacy.has_rules() {
                    return Ok(legacy);
                }
                variants(&[Variant::Nft, Variant::Plain])
            }
        };
        // The error of a program that exists and fails is more useful than that of a missing program.
        let mut reason = IptablesError::Missing {
            name: "iptables-restore".into(),
        };
        for programs in candidates {
            match programs.save() {
                Ok(_) => return Ok(programs),
                Err(error) if matches!(reason, IptablesError::Missing { .. }) => reason = error,
                Err(_) => {}
            }
        }
        Err(reason)
    }

    /// Every variant that is installed on this machine.
    pub(super) fn present(backend: Option<Backend>, family: Family, lock: Option<&Path>) -> Vec<Self> {
        let list: &[Variant] = match backend {
            Some(Backend::IptablesLegacy) => &[Variant::Legacy],
            Some(Backend::IptablesNft) => &[Variant::Nft],
            _ => &[Variant::Legacy, Variant::Nft, Variant::Plain],
        };
        let all = list.iter().map(|variant| Self::new(*variant, family, lock));
        all.filter(Programs::has_rules).collect()
    }

    /// Whether there are rules in this namespace.
    fn has_rules(&self) -> bool {
        if self.variant == Variant::Legacy && !has_legacy_tables(self.family) {
            return false;
        }
        self.save()
            .is_ok_and(|text| text.lines().any(|line| line.starts_with("-A ")))
    }

    /// All rules, as text.
    pub(super) fn save(&self) -> Result<String, IptablesError> {
        let name = format!("{}-save", self.base);
        let output = self.run_checked(&name, &[], "")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `iptables-restore` with this input; it commits one table at a time.
    pub(super) fn restore(&self, text: &str) -> Result<(), IptablesError> {
        // All users of the legacy programs share a lock file.
        let args: &[&str] = if self.variant() == Variant::Nft {
            &["--noflush"]
        } else {
            &["--noflush", "--wait=30"]
        };
        self.run_checked(&format!("{}-restore", self.base), args, text)
            .map(drop)
    }

    fn run_checked(&self, name: &str, args: &[&str], input: &str) -> Result<Output, IptablesError> {
        let output = self.run(name, args, input)?;
        if output.status.success() {
            return Ok(output);
        }
        // istio: the meanings it gives xtables' exit codes.
        let meaning = match output.status.code() {
            Some(2) => "a parameter problem",
            Some(3) => "a version problem",
            Some(4) => "a resource problem",
            _ => "an error",
        };
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(IptablesError::Failed {
            name: name.to_owned(),
            meaning,
            stderr,
        })
    }

    fn run(&self, name: &str, args: &[&str], input: &str) -> Result<Output, IptablesError> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => IptablesError::Missing {
                name: name.to_owned(),
            },
            _ => IptablesError::Run {
                name: name.to_owned(),
                source,
            },
        };
        let mut command = Command::new(name);
        if let Some(lock) = &self.lock {
            command.env("XTABLES_LOCKFILE", lock);
        }
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // The programs read all input before they write long output, so this cannot block. A program that exits early
        // prints the reason to standard error.
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output().map_err(failed)
    }
}
