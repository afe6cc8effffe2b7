//! Which host may be sent what: the decisions about credentials, redirects and plain HTTP, without any network.
//!
//! A credential belongs to one [`Origin`], the registry's or the mirror's own. The rules are:
//!
//! - Only a response of that origin is a challenge. After a redirect to another origin no challenge is answered, also
//!   not when a later redirect leads back (CVE-2020-15157 was this mistake).
//! - The registry itself may name a realm on another host, as Docker Hub and GitLab do. It could ask for the password
//!   with a Basic challenge as well, so this gives it nothing new. The realm must not be less protected than the registry.
//! - Plain HTTP is spoken where the operator allowed it: on loopback, and to the hosts of [`Settings::insecure`]. A
//!   redirect cannot extend that list, and only a registry on loopback can redirect to plain HTTP on loopback.
//!
//! [`Settings::insecure`]: super::Settings::insecure

use super::challenge::Challenge;
use http::Uri;
use std::fmt;

/// Scheme, host and port, with the port filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    tls: bool,
    /// Lower case; an IPv6 address has its brackets.
    host: String,
    port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port != usual_port(self.tls) {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

impl Origin {
    /// `None` for other schemes, and for addresses with a user name in them.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority().filter(|a| !a.as_str().contains('@'))?;
        let host = authority.host().to_ascii_lowercase();
        // An empty or impossible port is an error, not the usual port.
        let port = match authority.as_str().get(host.len()..)?.strip_prefix(':') {
            None => usual_port(tls),
            Some(text) => text.parse().ok().filter(|p| *p > 0)?,
        };
        (!host.is_empty()).then_some(Self { tls, host, port })
    }

    /// The origin of a host, written as in an image reference, without TLS.
    pub(super) fn plain(host: &str) -> Option<Self> {
        Self::of(&format!("http://{host}/").parse().ok()?)
    }

    fn is_loopback(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']');
        let ip = address.parse::<std::net::IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

fn usual_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// Hosts that may be spoken to without TLS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain<'a> {
    /// Hosts the operator named, with their ports.
    pub(super) insecure: &'a [String],
}

impl Plain<'_> {
    /// Whether images of this host are asked for without TLS.
    pub(super) fn allows(self, host: &str) -> bool {
        let origin = Origin::plain(host);
        origin.is_some_and(|origin| origin.is_loopback() || self.names(&origin))
    }

    fn names(self, origin: &Origin) -> bool {
        let mut named = self.insecure.iter().filter_map(|host| Origin::plain(host));
        named.any(|named| named == *origin)
    }

    /// Whether a host that was reached at `from` may send the client to `to`.
    pub(super) fn leads(self, from: &Origin, to: &Origin) -> Result<(), String> {
        let plain = || to == from || self.names(to) || (from.is_loopback() && to.is_loopback());
        if to.tls || (!from.tls && plain()) {
            return Ok(());
        }
        Err(format!("{to}, without TLS"))
    }
}

/// Who gave a response: the origin that was asked, or another one that a redirect led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) by: Origin,
    /// A redirect has led to another origin on the way.
    pub(super) elsewhere: bool,
}

impl Answered {
    /// At the beginning of a request.
    pub(super) fn at_home(home: &Origin) -> Self {
        Self {
            by: home.clone(),
            elsewhere: false,
        }
    }

    /// After one more redirect.
    pub(super) fn moved(&mut self, to: Origin) {
        self.elsewhere |= to != self.by;
        self.by = to;
    }
}

/// What to do about a challenge.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send the registry's credential to the registry with every request.
    Basic,
    /// Fetch a token here, and show the registry's credential there if there is one.
    Token(Uri),
}

/// Decides on a challenge in a response of the registry at `home`. The error completes a sentence about the URL.
pub(super) fn decide(
    home: &Origin,
    answered: &Answered,
    challenge: &Challenge,
    plain: Plain<'_>,
) -> Result<Decision, String> {
    if answered.elsewhere || answered.by != *home {
        let by = &answered.by;
        return Err(format!(
            "redirects to {by}, which asks for credentials; those of {home} are not sent there"
        ));
    }
    let Challenge::Bearer { realm, .. } = challenge else {
        return Ok(Decision::Basic);
    };
    let uri = realm.parse::<Uri>().ok();
    let origin = uri.as_ref().and_then(Origin::of);
    let (Some(uri), Some(origin)) = (uri, origin) else {
        return Err("names no usable address for tokens".to_owned());
    };
    plain
        .leads(home, &origin)
        .map_err(|why| format!("sends us for a token to {why}"))?;
    Ok(Decision::Token(uri))
}

#[cfg(test)]
mod tests;
