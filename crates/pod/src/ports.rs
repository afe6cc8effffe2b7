//! Lists of ports as annotations have them: `80,443`, `*`, or nothing.

use std::fmt;

use thiserror::Error;

use crate::quote::quote;

/// A list of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// `*`
    All,
    /// These, in the order given; may be empty.
    Some(Vec<u16>),
}

impl Ports {
    /// Whether a port is in the list.
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Some(ports) => ports.contains(&port),
        }
    }

    /// Whether the list has no port.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Some(ports) if ports.is_empty())
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Some(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                f.write_str(&ports.join(","))
            }
        }
    }
}

/// What a list may have in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allow {
    /// `*` is accepted for all ports.
    pub wildcard: bool,
    /// 0 is a port.
    pub zero: bool,
}

/// Why a text is not a list of ports.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParsePortsError {
    /// An entry that is not a port.
    #[error("{} is not a port", quote(.entry))]
    NotAPort {
        /// The entry.
        entry: String,
    },
    /// `*` where it is not allowed, or together with ports.
    #[error("* cannot be used here")]
    Wildcard,
}

impl ParsePortsError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotAPort { .. } => Some("write numbers from 0 to 65535, separated by commas"),
            Self::Wildcard => Some("name the ports one by one"),
        }
    }
}

/// Reads a list of ports. Blanks around entries are ignored; an empty text is an empty list.
pub fn parse(text: &str, allow: Allow) -> Result<Ports, ParsePortsError> {
    let text = text.trim();
    if text == "*" && allow.wildcard {
        return Ok(Ports::All);
    }
    if text.is_empty() {
        return Ok(Ports::Some(Vec::new()));
    }
    text.split(',')
        .map(|entry| port(entry.trim(), allow.zero))
        .collect::<Result<_, _>>()
        .map(Ports::Some)
}

fn port(entry: &str, zero: bool) -> Result<u16, ParsePortsError> {
    if entry == "*" {
        return Err(ParsePortsError::Wildcard);
    }
    // `u16::from_str` would take a plus sign.
    let number = if entry.bytes().all(|b| b.is_ascii_digit()) {
        entry.parse().ok()
    } else {
        None
    };
    number
        .filter(|port| zero || *port > 0)
        .ok_or_else(|| ParsePortsError::NotAPort {
            entry: entry.to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Allow = Allow {
        wildcard: true,
        zero: true,
    };

    #[test]
    fn lists() {
        assert_eq!(parse("", ANY), Ok(Ports::Some(vec![])));
        assert_eq!(parse("*", ANY), Ok(Ports::All));
        assert_eq!(parse(" 80 , 443,0 ", ANY), Ok(Ports::Some(vec![80, 443, 0])));
        assert_eq!(parse("80,443", ANY).unwrap().to_string(), "80,443");
        assert!(parse("*", ANY).unwrap().contains(1));
    }

    #[test]
    fn refused() {
        for text in [
            "80,", ",", "80;443", "-1", "+1", "65536", "1e3", "80 443", "80\n443", "*,80", "**", "http",
            "８０",
        ] {
            assert!(parse(text, ANY).is_err(), "{text:?}");
        }
        assert_eq!(
            parse(
                "*",
                Allow {
                    wildcard: false,
                    zero: true
                }
            ),
            Err(ParsePortsError::Wildcard)
        );
        assert!(
            parse(
                "0",
                Allow {
                    wildcard: true,
                    zero: false
                }
            )
            .is_err()
        );
        let error = parse(&"x".repeat(1 << 20), ANY).unwrap_err();
        assert!(error.to_string().len() < 120);
    }
}
