//! The parts of an image reference: `registry:5000/team/app:v1@sha256:…`.

use std::fmt;

/// An image reference, cut into its parts. Nothing is filled in: no default registry, no `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Image<'a> {
    /// Host and port of the registry, when named.
    pub registry: Option<&'a str>,
    /// What is between the registry and the tag.
    pub repository: &'a str,
    /// After the last colon.
    pub tag: Option<&'a str>,
    /// After the `@`, with its algorithm.
    pub digest: Option<&'a str>,
}

impl<'a> Image<'a> {
    /// Cuts a reference into its parts. Any text has parts; whether they make sense is not judged.
    pub fn split(reference: &'a str) -> Self {
        let (rest, digest) = match reference.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (reference, None),
        };
        // The first part is a registry when it cannot be part of a repository on the default one.
        let (registry, rest) = match rest.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), rest),
            _ => (None, rest),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (rest, None),
        };
        Self {
            registry,
            repository,
            tag,
            digest,
        }
    }

    /// The last part of the repository: `proxyv2` of `docker.io/istio/proxyv2:1.2`.
    pub fn name(&self) -> &'a str {
        self.repository.rsplit('/').next().unwrap_or(self.repository)
    }
}

impl fmt::Display for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(registry) = self.registry {
            write!(f, "{registry}/")?;
        }
        f.write_str(self.repository)?;
        if let Some(tag) = self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let cases = [
            ("nginx", (None, "nginx", None, None)),
            ("nginx:1.2", (None, "nginx", Some("1.2"), None)),
            ("team/app:v1", (None, "team/app", Some("v1"), None)),
            (
                "docker.io/istio/proxyv2:1.2",
                (Some("docker.io"), "istio/proxyv2", Some("1.2"), None),
            ),
            ("localhost/app", (Some("localhost"), "app", None, None)),
            ("host:5000/a/b", (Some("host:5000"), "a/b", None, None)),
            (
                "host:5000/a/b:t@sha256:ab",
                (Some("host:5000"), "a/b", Some("t"), Some("sha256:ab")),
            ),
            ("a@sha256:ab", (None, "a", None, Some("sha256:ab"))),
            ("", (None, "", None, None)),
        ];
        for (reference, (registry, repository, tag, digest)) in cases {
            let image = Image::split(reference);
            assert_eq!(
                image,
                Image {
                    registry,
                    repository,
                    tag,
                    digest
                },
                "{reference}"
            );
            assert_eq!(image.to_string(), reference);
        }
        assert_eq!(Image::split("docker.io/istio/proxyv2:1.2").name(), "proxyv2");
    }
}
