//! Lists of address ranges as annotations have them: `10.0.0.0/8,fd00::/8`, `*`, or nothing.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use crate::quote::quote;

/// A range of addresses. Host bits are kept as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The address before the slash.
    pub address: IpAddr,
    /// Bits that are fixed.
    pub prefix: u8,
}

impl Cidr {
    /// Whether an address is in the range. An IPv4 address is never in an IPv6 range.
    pub fn contains(&self, address: IpAddr) -> bool {
        let wide = |address: IpAddr| match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, true),
            IpAddr::V6(v6) => (u128::from(v6), false),
        };
        let ((a, a_is_v4), (b, b_is_v4)) = (wide(self.address), wide(address));
        let differ = (a ^ b).checked_shr(128 - u32::from(self.prefix)).unwrap_or(0);
        a_is_v4 == b_is_v4 && differ == 0
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Why a text is not a range, or not a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseCidrError {
    /// An entry that is no range.
    #[error("{} is not an address range", quote(.entry))]
    NotARange {
        /// The entry.
        entry: String,
    },
    /// `*` where it is not allowed, or together with ranges.
    #[error("* cannot be used here")]
    Wildcard,
}

impl ParseCidrError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotARange { .. } => {
                Some("write an address, a slash and a number of bits, for example 10.0.0.0/8")
            }
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
        let (address, bits) = text.split_once('/').ok_or_else(fail)?;
        let address: IpAddr = address.parse().map_err(|_| fail())?;
        let plain = bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
        let prefix: u8 = bits.parse().ok().filter(|_| plain).ok_or_else(fail)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(fail());
        }
        Ok(Self { address, prefix })
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
