//! Lists of address ranges as annotations have them: `10.0.0.0/8,fd00::/8`, `*`, or nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::quote::quote;

/// A range of addresses of one family. Host bits are kept as written, and ignored in comparisons with addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(IpNet);

impl Cidr {
    /// A range; `None` if the address has fewer bits.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        IpNet::new(address, prefix).ok().map(Self)
    }

    /// Exactly one address.
    pub fn host(address: IpAddr) -> Self {
        Self(IpNet::from(address))
    }

    /// The address before the slash.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// The prefix length in bits.
    pub fn prefix(self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether the range is of IPv4 addresses.
    pub const fn is_ipv4(self) -> bool {
        matches!(self.0, IpNet::V4(_))
    }

    /// Whether an address is in the range. An IPv4 address is never in an IPv6 range.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Address(self.address()), self.prefix())
    }
}

/// An address as `iptables-save` and `inet_ntop` write it: IPv4-compatible IPv6 addresses keep their dots.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub IpAddr);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(ip) if ip.to_bits() >> 32 == 0 && ip.to_bits() > 0xffff => {
                let low = u32::try_from(ip.to_bits() & 0xffff_ffff).unwrap_or_default();
                write!(f, "::{}", Ipv4Addr::from_bits(low))
            }
            other => write!(f, "{other}"),
        }
    }
}

/// Why a text is not a range, or not a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseCidrError {
    /// An entry that is not a range.
    #[error("{} is not an address range", quote(.entry))]
    NotARange {
        /// The entry.
        entry: String,
    },
    /// An address without a slash and a number of bits.
    #[error("{} has no prefix length (write {entry}/{full} for this one address)", quote(.entry))]
    NoPrefix {
        /// The entry.
        entry: String,
        /// The length that means exactly this address.
        full: u8,
    },
    /// `*` where it is not allowed, or together with ranges.
    #[error("* cannot be used here")]
    Wildcard,
}

impl ParseCidrError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotARange { .. } => {
                Some("write an address, a slash and a number of bits, for example 10.0.0.0/8")
            }
            Self::NoPrefix { .. } => None,
            Self::Wildcard => Some("name the ranges one by one"),
        }
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseCidrError::NotARange {
            entry: text.to_owned(),
        };
        let Some((address, bits)) = text.split_once('/') else {
            let address: IpAddr = text.parse().map_err(|_| fail())?;
            return Err(ParseCidrError::NoPrefix {
                entry: text.to_owned(),
                full: Self::host(address).prefix(),
            });
        };
        let address: IpAddr = address.parse().map_err(|_| fail())?;
        // A leading zero is octal in other readers.
        let plain = bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
        let prefix: u8 = bits.parse().ok().filter(|_| plain).ok_or_else(fail)?;
        Self::new(address, prefix).ok_or_else(fail)
    }
}

/// A list of ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cidrs {
    /// `*`
    All,
    /// These, in the order given; may be empty.
    Some(Vec<Cidr>),
}

impl fmt::Display for Cidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Some(ranges) => {
                let ranges: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
                f.write_str(&ranges.join(","))
            }
        }
    }
}

/// Reads a list of ranges. Blanks around entries are ignored; an empty text is an empty list.
pub fn parse(text: &str, wildcard: bool) -> Result<Cidrs, ParseCidrError> {
    let text = text.trim();
    match text {
        "*" if wildcard => return Ok(Cidrs::All),
        "" => return Ok(Cidrs::Some(Vec::new())),
        _ => {}
    }
    let one = |entry: &str| {
        if entry == "*" {
            Err(ParseCidrError::Wildcard)
        } else {
            entry.parse()
        }
    };
    text.split(',')
        .map(|entry| one(entry.trim()))
        .collect::<Result<_, _>>()
        .map(Cidrs::Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse("", true), Ok(Cidrs::Some(vec![])));
        assert_eq!(parse("*", true), Ok(Cidrs::All));
        let list = parse("10.1.2.3/8, fd00::/8", true).unwrap();
        assert_eq!(list.to_string(), "10.1.2.3/8,fd00::/8");
    }

    #[test]
    fn refused() {
        for text in [
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/8;::/0",
            "10.0.0.0/8,",
            "*,10.0.0.0/8",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "fe80::1%eth0/64",
            "010.0.0.0/8",
            "1.1.1.1/8\n-A x",
            "x/8",
        ] {
            assert!(parse(text, true).is_err(), "{text:?}");
        }
        assert_eq!(parse("*", false), Err(ParseCidrError::Wildcard));
    }

    #[test]
    fn membership() {
        let contains =
            |range: &str, address: &str| range.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4"));
        assert!(!contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "::1"));
        assert!(contains("1.2.3.4/32", "1.2.3.4"));
        assert!(!contains("1.2.3.4/32", "1.2.3.5"));
        assert!(contains("fd00::/8", "fdff::1"));
    }
}
