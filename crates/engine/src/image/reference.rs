//! Image references with everything filled in: `nginx` is `docker.io/library/nginx:latest`.

use super::digest::Digest;
use std::fmt;

/// A reference that can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Host and perhaps port.
    pub registry: String,
    /// Path on the registry.
    pub repository: String,
    /// `latest` when neither tag nor digest is given.
    pub tag: String,
    /// Wins over the tag.
    pub digest: Option<Digest>,
}

/// Not a reference (k8s: `InvalidImageName`).
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an image reference: {why}")]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

const DEFAULT_REGISTRY: &str = "docker.io";
/// Length of a repository with its registry, and of a tag.
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;

impl Reference {
    /// Reads a reference as it stands in a pod.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let wrong = |why| ReferenceError {
            text: text.chars().take(300).collect(),
            why,
        };
        let parts = remora_pod::image::Image::split(text);
        let digest = parts.digest.map(Digest::parse).transpose();
        let digest = digest.map_err(|_| wrong("the digest is not of the form sha256:HEX"))?;
        let registry = parts.registry.unwrap_or(DEFAULT_REGISTRY);
        let registry = if registry == "index.docker.io" {
            DEFAULT_REGISTRY
        } else {
            registry
        };
        if !is_host(registry) {
            return Err(wrong("the registry is not a host"));
        }
        let repository = if registry == DEFAULT_REGISTRY && !parts.repository.contains('/') {
            format!("library/{}", parts.repository)
        } else {
            parts.repository.to_owned()
        };
        if repository.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(wrong("the repository must be lower case"));
        }
        if !repository.split('/').all(is_component) || registry.len() + repository.len() >= NAME_MAX {
            return Err(wrong(
                "the repository has characters or parts that are not allowed",
            ));
        }
        let tag = parts.tag.unwrap_or("latest");
        if !is_tag(tag) {
            return Err(wrong("the tag has characters that are not allowed"));
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.to_owned(),
            digest,
        })
    }

    /// What to ask the registry for: the digest, or the tag.
    pub fn wanted(&self) -> &str {
        self.digest.as_ref().map_or(&self.tag, Digest::as_str)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => write!(f, ":{}", self.tag),
        }
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_fine = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && !host.starts_with(['-', '.'])
                && host
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
        }
    };
    host_fine && port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0))
}

/// Lower-case letters and digits, separated by `.`, `_`, `__` or dashes.
fn is_component(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    ends && bytes.iter().all(|b| plain(*b) || matches!(b, b'.' | b'_' | b'-'))
        && !text.contains("..")
        && !text.contains("___")
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= TAG_MAX
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_in() {
        let digest = Digest::of(b"x");
        for (text, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.2", "docker.io/library/nginx:1.2"),
            ("team/app", "docker.io/team/app:latest"),
            ("localhost:5000/a/b_c:v1", "localhost:5000/a/b_c:v1"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            (
                &format!("ghcr.io/a/b:1@{digest}"),
                &format!("ghcr.io/a/b@{digest}"),
            ),
        ] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), full);
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            ":",
            "@",
            "a b",
            "UPPER/case",
            "a//b",
            "../up",
            "a/../b",
            "a:",
            "a:b c",
            "-a",
            "a@sha256:12",
            "host:99999/a",
            "host:5000/",
            "a\n",
            "a:tag\0",
            "-x.y/a",
            "a/b.",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }
}
