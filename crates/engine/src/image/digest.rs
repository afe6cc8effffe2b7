//! Digests: content named by its own hash.

use aws_lc_rs::digest::{Context, SHA256, SHA512};
use std::fmt;

/// `sha256:…` or `sha512:…`, checked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

/// Not a digest.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a digest of the form sha256:HEX")]
pub struct DigestError(String);

impl Digest {
    /// Reads a digest. Only lower-case hexadecimal of the right length passes, so it is safe in a path.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let length = match text.split_once(':') {
            Some(("sha256", hex)) if is_hex(hex) => hex.len() == 64,
            Some(("sha512", hex)) if is_hex(hex) => hex.len() == 128,
            _ => false,
        };
        if length {
            Ok(Self(text.to_owned()))
        } else {
            Err(DigestError(text.chars().take(200).collect()))
        }
    }

    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the algorithm.
    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(_, hex)| hex)
    }

    /// Something that computes a digest of the same kind.
    pub(crate) fn hasher(&self) -> Hasher {
        if self.0.starts_with("sha512") {
            Hasher(Context::new(&SHA512), "sha512")
        } else {
            Hasher::sha256()
        }
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Computes a digest piece by piece.
pub(crate) struct Hasher(Context, &'static str);

impl Hasher {
    pub(crate) fn sha256() -> Self {
        Self(Context::new(&SHA256), "sha256")
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        use fmt::Write as _;
        let mut text = format!("{}:", self.1);
        for byte in self.0.finish().as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Digest(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_and_bad_ones() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::parse(empty).unwrap(), Digest::of(b""));
        for bad in [
            "",
            "sha256:",
            "sha256:../../etc",
            "md5:00",
            &empty.to_uppercase(),
            &empty[..70],
        ] {
            assert!(Digest::parse(bad).is_err(), "{bad}");
        }
    }
}
