//! Address ranges in CIDR form.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address range such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    address: IpAddr,
    bits: u32,
}

/// A text that is no address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reading {0:?} as an address range")]
pub struct RangeError(String);

impl Range {
    /// Whether the address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= self.bits.min(32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= self.bits.min(128)
            }
            _ => false,
        }
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let wrong = || RangeError(text.to_owned());
        let (address, bits) = text
            .trim()
            .split_once('/')
            .map_or((text.trim(), None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |b| b.parse::<u32>().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}
