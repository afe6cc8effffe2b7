//! The small values that flags are made of: ports, address ranges, owners, interface names, durations.
//!
//! Every parser here is total: any text gives a value or a [`ValueError`] that says what is wrong with it.
//! Nothing is trimmed, guessed or repaired silently; leniency is decided one level up, where it can be
//! reported.

use remora_pod::cidr::ParseCidrError;
pub use remora_pod::cidr::{Address, Cidr};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

/// Why a text is not the value it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a number, or not one that fits.
    #[error("{text:?} is not a port (1-65535)")]
    Port {
        /// The text as given.
        text: String,
    },
    /// A range that runs backwards.
    #[error("port range {text:?} ends before it begins")]
    PortOrder {
        /// The text as given.
        text: String,
    },
    /// Not `address/length`.
    #[error(transparent)]
    Cidr(#[from] ParseCidrError),
    /// Neither a number nor a user or group name.
    #[error("{text:?} is neither a numeric id nor a name")]
    Owner {
        /// The text as given.
        text: String,
    },
    /// Not a valid name of a network interface.
    #[error("{text:?} is not an interface name (1-15 characters, no blanks or slashes)")]
    Interface {
        /// The text as given.
        text: String,
    },
    /// Not a number, or not one that fits.
    #[error("{text:?} is not a number from {min} to {max}")]
    Number {
        /// The text as given.
        text: String,
        /// Smallest accepted value.
        min: u32,
        /// Largest accepted value.
        max: u32,
    },
    /// Not one of the words Go accepts as a boolean.
    #[error("{text:?} is not a boolean (true or false)")]
    Bool {
        /// The text as given.
        text: String,
    },
    /// Not a Go duration.
    #[error("{text:?} is not a duration like 5s, 1m30s or 500ms")]
    Duration {
        /// The text as given.
        text: String,
    },
    /// Not an IP address.
    #[error("{text:?} is not an IP address")]
    Address {
        /// The text as given.
        text: String,
    },
}

/// One port, or a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last port, the same as `first` for a single one.
    pub last: u16,
}

impl Ports {
    /// A single port.
    pub const fn one(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }

    /// Whether the range contains `port`.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

impl FromStr for Ports {
    type Err = ValueError;

    // istio: ranges `A:B` are not documented, but pass through to iptables and are in use.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Some((first, last)) = text.split_once(':') else {
            return port(text).map(Self::one);
        };
        let bad = |_| ValueError::Port {
            text: text.to_owned(),
        };
        let ports = Self {
            first: port(first).map_err(bad)?,
            last: port(last).map_err(bad)?,
        };
        if ports.first > ports.last {
            return Err(ValueError::PortOrder {
                text: text.to_owned(),
            });
        }
        Ok(ports)
    }
}

/// Reads a port that may be listened on or connected to.
pub fn port(text: &str) -> Result<u16, ValueError> {
    match digits(text) {
        Some(n @ 1..=65_535) => u16::try_from(n).map_err(|_| ValueError::Port {
            text: text.to_owned(),
        }),
        _ => Err(ValueError::Port {
            text: text.to_owned(),
        }),
    }
}

/// Decimal digits only: `str::parse` would also take a leading plus sign.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Reads a number in decimal, or in hexadecimal after `0x`.
pub fn number(text: &str, min: u32, max: u32) -> Result<u32, ValueError> {
    let value = match text.strip_prefix("0x") {
        Some(hex) if !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        Some(_) => None,
        None => digits(text),
    };
    value
        .and_then(|v| u32::try_from(v).ok())
        .filter(|v| (min..=max).contains(v))
        .ok_or_else(|| ValueError::Number {
            text: text.to_owned(),
            min,
            max,
        })
}

/// A user or a group, by number or by a name to be looked up where the rules are applied.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The numeric id.
    Id(u32),
    /// A name from /etc/passwd or /etc/group.
    Name(String),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl FromStr for Owner {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // 4294967295 is (uid_t)-1, "no change" to every system call that takes an id.
        if let Some(id) = digits(text)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|id| *id != u32::MAX)
        {
            return Ok(Self::Id(id));
        }
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let rest = bytes.all(|b| b.is_ascii_alphanumeric() || b"_-.$".contains(&b));
        if first && rest && text.len() <= 32 {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(ValueError::Owner {
                text: text.to_owned(),
            })
        }
    }
}

/// The name of a network interface; a trailing `+` means every name that begins so.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface(String);

impl Interface {
    /// The loopback interface.
    pub fn loopback() -> Self {
        Self("lo".to_owned())
    }

    /// The name, with the `+` if it is a pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The fixed part of a pattern, or `None` for an exact name.
    pub fn prefix(&self) -> Option<&str> {
        self.0.strip_suffix('+')
    }

    /// Whether the interface called `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        self.prefix()
            .map_or(self.0 == name, |prefix| name.starts_with(prefix))
    }
}

impl FromStr for Interface {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // The kernel allows more. Characters with a meaning in scripts and shells are in no real name.
        let allowed = |b: u8| b.is_ascii_graphic() && !b"/:!\"'\\*;{}$`".contains(&b);
        let body = text.strip_suffix('+').unwrap_or(text);
        let fine = (1..=15).contains(&text.len())
            && !matches!(text, "." | "..")
            && !text.starts_with('-')
            && !body.contains('+')
            && text.bytes().all(allowed);
        if fine {
            Ok(Self(text.to_owned()))
        } else {
            Err(ValueError::Interface {
                text: text.to_owned(),
            })
        }
    }
}

/// Reads a boolean as Go's `strconv.ParseBool` does.
pub fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::Bool {
            text: text.to_owned(),
        }),
    }
}

/// Reads an IP address.
pub fn address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError::Address {
        text: text.to_owned(),
    })
}

/// Reads a non-negative duration as Go writes it: `1h2m3.5s`, `500ms`, `0`.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::Duration {
        text: text.to_owned(),
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let (value, tail) = rest.split_at(end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(bad()),
        };
        let value: f64 = value.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(value * scale).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = next;
    }
    if text.is_empty() { Err(bad()) } else { Ok(total) }
}

/// The address from which the proxy dials the application itself, exempt from capture.
// istio: 127.0.0.6 and ::6, tools/istio-iptables/pkg/constants.
pub const PASSTHROUGH_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// The IPv6 twin of [`PASSTHROUGH_V4`]; it must be added to `lo`, where IPv4 has all of 127.0.0.0/8.
pub const PASSTHROUGH_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

#[cfg(test)]
mod tests;
