//! The attributes of a connection that conditions of an `AuthorizationPolicy` can name.

use crate::mesh::{self, Match};
use remora_mtls::TrustDomains;

/// What a condition looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attribute {
    Principal,
    Namespace,
    ServiceAccount,
    TrustDomain,
    SourceIp,
    DestinationIp,
    DestinationPort,
    /// Only visible in HTTP requests, or in what this proxy does not read. The text says why it is not enforced.
    // A proxy that reads requests needs a variant for each of these, a place in `Match`, and nothing else.
    Unseen(&'static str),
}

const HTTP: Attribute = Attribute::Unseen("an attribute of HTTP requests, which is not enforced at L4");
const SNI: Attribute = Attribute::Unseen("the server name of TLS is not enforced");
const FILTER: Attribute = Attribute::Unseen("the metadata of Envoy filters is not enforced");

/// A field that holds a condition, and whether its values must not match.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) attribute: Attribute,
    pub(super) negated: bool,
}

const fn any(name: &'static str, attribute: Attribute) -> Field {
    Field {
        name,
        attribute,
        negated: false,
    }
}

const fn none(name: &'static str, attribute: Attribute) -> Field {
    Field {
        name,
        attribute,
        negated: true,
    }
}

/// The fields of `rules[].from[].source`.
pub(super) const SOURCE: [Field; 14] = [
    any("principals", Attribute::Principal),
    none("notPrincipals", Attribute::Principal),
    any("requestPrincipals", HTTP),
    none("notRequestPrincipals", HTTP),
    any("namespaces", Attribute::Namespace),
    none("notNamespaces", Attribute::Namespace),
    any("serviceAccounts", Attribute::ServiceAccount),
    none("notServiceAccounts", Attribute::ServiceAccount),
    any("ipBlocks", Attribute::SourceIp),
    none("notIpBlocks", Attribute::SourceIp),
    any("remoteIpBlocks", HTTP),
    none("notRemoteIpBlocks", HTTP),
    any("trustDomains", Attribute::TrustDomain),
    none("notTrustDomains", Attribute::TrustDomain),
];

/// The fields of `rules[].to[].operation`.
pub(super) const OPERATION: [Field; 8] = [
    any("hosts", HTTP),
    none("notHosts", HTTP),
    any("ports", Attribute::DestinationPort),
    none("notPorts", Attribute::DestinationPort),
    any("methods", HTTP),
    none("notMethods", HTTP),
    any("paths", HTTP),
    none("notPaths", HTTP),
];

/// The attribute that a `rules[].when[].key` names.
pub(super) fn of_key(key: &str) -> Option<Attribute> {
    Some(match key {
        "source.ip" => Attribute::SourceIp,
        "source.namespace" => Attribute::Namespace,
        "source.principal" => Attribute::Principal,
        "source.serviceAccount" => Attribute::ServiceAccount,
        "source.trustDomain" => Attribute::TrustDomain,
        "destination.ip" => Attribute::DestinationIp,
        "destination.port" => Attribute::DestinationPort,
        "remote.ip" | "request.auth.principal" | "request.auth.audiences" | "request.auth.presenter" => HTTP,
        "connection.sni" => SNI,
        _ if is_map_key(key, "request.headers") || is_map_key(key, "request.auth.claims") => HTTP,
        _ if key.starts_with("experimental.envoy.filters.") => FILTER,
        _ => return None,
    })
}

/// `NAME[KEY]`; claims may be nested, `NAME[KEY][KEY]`.
fn is_map_key(key: &str, name: &str) -> bool {
    key.strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'))
        .is_some_and(|inner| !inner.is_empty())
}

/// A match under construction: all its conditions must hold.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    all: Match,
    /// The peer must have, or must not have, an identity.
    authenticated: bool,
    unauthenticated: bool,
    /// A condition that no connection meets.
    never: bool,
}

/// What values are compared with, besides the connection.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// The namespace of the policy.
    pub(super) namespace: &'a str,
    pub(super) trust_domains: &'a TrustDomains,
}

impl Attribute {
    /// What a value looks like, if this is not such a value.
    pub(super) fn refused(self, text: &str, around: Surroundings<'_>) -> Option<&'static str> {
        let (sound, expected) = match self {
            Self::Principal => (
                is_principal(text),
                "a principal like TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT",
            ),
            Self::Namespace => (is_pattern(text) && !text.contains('/'), "a namespace"),
            Self::ServiceAccount => (
                account(text, around.namespace).is_some(),
                "a service account like NAMESPACE/ACCOUNT",
            ),
            Self::TrustDomain => (
                is_pattern(text) && !text.contains('/') && spans(text, around.trust_domains).is_some(),
                "a trust domain, or it matches some aliases of the mesh's trust domain only",
            ),
            Self::SourceIp | Self::DestinationIp => (is_range(text), "an address or CIDR block"),
            Self::DestinationPort => (port(text).is_some(), "a port number"),
            Self::Unseen(_) => (true, ""),
        };
        (!sound).then_some(expected)
    }
}

impl Conditions {
    /// Adds a condition whose values were all accepted.
    pub(super) fn add(
        &mut self,
        attribute: Attribute,
        negated: bool,
        values: &[&str],
        around: Surroundings<'_>,
    ) {
        let m = &mut self.all;
        let owned = || values.iter().map(|text| (*text).to_owned());
        let pick = |yes, no| if negated { no } else { yes };
        match attribute {
            Attribute::Principal => pick(&mut m.principals, &mut m.not_principals).extend(
                values
                    .iter()
                    .flat_map(|text| expanded(text, around.trust_domains)),
            ),
            Attribute::Namespace => pick(&mut m.namespaces, &mut m.not_namespaces).extend(owned()),
            Attribute::ServiceAccount => pick(&mut m.service_accounts, &mut m.not_service_accounts)
                .extend(values.iter().filter_map(|text| account(text, around.namespace))),
            Attribute::SourceIp => pick(&mut m.source_ips, &mut m.not_source_ips).extend(owned()),
            Attribute::DestinationIp => {
                pick(&mut m.destination_ips, &mut m.not_destination_ips).extend(owned());
            }
            Attribute::DestinationPort => {
                let list = if negated { &mut m.not_ports } else { &mut m.ports };
                list.extend(values.iter().filter_map(|text| port(text)));
            }
            Attribute::TrustDomain => {
                // Every identity a proxy accepts is of the mesh's own trust domain, whatever alias it shows.
                let own = values
                    .iter()
                    .any(|text| spans(text, around.trust_domains) == Some(true));
                self.authenticated |= own && !negated;
                self.unauthenticated |= own && negated;
                self.never |= !own && !negated;
            }
            Attribute::Unseen(_) => {}
        }
    }

    /// The match. `None`: no connection meets all conditions. An empty match: every connection does.
    pub(super) fn finish(mut self) -> Option<Match> {
        if self.never {
            return None;
        }
        let presence = || "*".to_owned();
        if self.authenticated && self.all.principals.is_empty() {
            self.all.principals.push(presence());
        }
        if self.unauthenticated {
            self.all.not_principals.push(presence());
        }
        Some(self.all)
    }
}

/// `text`, `text*`, `*text` or `*`. A wildcard elsewhere would be compared as a star, which no name contains.
fn is_pattern(text: &str) -> bool {
    let inner = text
        .strip_prefix('*')
        .or_else(|| text.strip_suffix('*'))
        .unwrap_or(text);
    !inner.contains('*')
}

fn is_principal(text: &str) -> bool {
    let bare = without_scheme(text);
    // Every principal contains a slash: one without can never match.
    is_pattern(bare) && (bare.contains('*') || bare.contains('/'))
}

// istio: policies may write principals with or without the scheme.
fn without_scheme(principal: &str) -> &str {
    principal.strip_prefix("spiffe://").unwrap_or(principal)
}

/// `NAMESPACE/ACCOUNT`, where the namespace of the policy is the default. istio: no wildcards.
fn account(text: &str, own_namespace: &str) -> Option<String> {
    let (namespace, account) = text.split_once('/').unwrap_or((own_namespace, text));
    let sound = |name: &str| !name.is_empty() && !name.contains(['/', '*']);
    (sound(namespace) && sound(account)).then(|| format!("{namespace}/{account}"))
}

/// Digits only: Rust would also take a sign.
fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// An IPv4 address in IPv6 notation is refused: connections show the IPv4 address, so it would never match.
fn is_range(text: &str) -> bool {
    let mapped = |address: &str| {
        let parsed = address.parse::<std::net::Ipv6Addr>().ok();
        parsed.is_some_and(|v6| v6.to_ipv4_mapped().is_some())
    };
    mesh::is_range(text) && !mapped(text.split('/').next().unwrap_or_default())
}

/// Whether a pattern matches the trust domain of the mesh: by all its names or by none. `None`: by some of them.
fn spans(pattern: &str, domains: &TrustDomains) -> Option<bool> {
    if domains.all().any(|name| name == pattern) {
        return Some(true);
    }
    let matched = domains.all().filter(|name| matches(pattern, name)).count();
    match matched {
        0 => Some(false),
        some if some == domains.all().count() => Some(true),
        _ => None,
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    if let Some(suffix) = pattern.strip_prefix('*') {
        return text.ends_with(suffix);
    }
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => text == pattern,
    }
}

/// A principal under every name of the mesh's trust domain, where it names one of them. istio: `cluster.local` stands
/// for the trust domain of the mesh, whatever it is called.
///
/// A proxy compares with the canonical identity of a peer, whatever alias the peer shows. So patterns of the trust
/// domain are expanded too, which Istio does not need.
fn expanded(principal: &str, domains: &TrustDomains) -> Vec<String> {
    let principal = without_scheme(principal);
    let named = |domain: &str| domains.all().any(|name| matches(domain, name));
    let under_all = |path: &str| domains.all().map(|name| format!("{name}/{path}")).collect();
    let (domain, path) = match principal.split_once('/') {
        Some(parts) => parts,
        // `old-td*`: a prefix of the trust domain.
        None if principal.ends_with('*') && principal != "*" => (principal, "*"),
        None => return vec![principal.to_owned()],
    };
    if !domain.contains('*') {
        return if domain == "cluster.local" || named(domain) {
            under_all(path)
        } else {
            vec![principal.to_owned()]
        };
    }
    // `*x/y` may be the end of a path as well: only a whole principal surely begins with the trust domain.
    let whole = path == "*" || path.split('/').count() == 4;
    let mut all = vec![principal.to_owned()];
    if domain != "*" && whole && named(domain) {
        let other: Vec<String> = under_all(path);
        all.extend(other);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{expanded, is_map_key, port, spans};
    use remora_mtls::TrustDomains;

    fn domains() -> TrustDomains {
        TrustDomains::new("new-td", &["old-td", "third"]).unwrap()
    }

    #[test]
    fn a_principal_of_the_mesh_is_meant_under_all_its_names() {
        let all = ["new-td/ns/a/sa/b", "old-td/ns/a/sa/b", "third/ns/a/sa/b"];
        for principal in [
            "new-td/ns/a/sa/b",
            "old-td/ns/a/sa/b",
            "cluster.local/ns/a/sa/b",
            "spiffe://old-td/ns/a/sa/b",
        ] {
            assert_eq!(expanded(principal, &domains()), all, "{principal}");
        }
        assert_eq!(
            expanded("old-td/ns/a/*", &domains()),
            ["new-td/ns/a/*", "old-td/ns/a/*", "third/ns/a/*"]
        );
        let pattern = expanded("*-td/ns/a/sa/b", &domains());
        assert_eq!(
            (pattern[0].as_str(), &pattern[1..]),
            ("*-td/ns/a/sa/b", &all.map(str::to_owned)[..])
        );
        assert_eq!(expanded("old-td*", &domains())[1], "new-td/*");
        for other in ["stranger/ns/a/sa/b", "*/ns/a/sa/b", "*", "stranger*", "*td/b"] {
            assert_eq!(expanded(other, &domains()), [other]);
        }
    }

    #[test]
    fn the_end_of_an_account_is_not_taken_for_a_trust_domain() {
        // `*-td` matches accounts that end like the trust domain. It must not become every principal of the mesh.
        for end in ["*-td", "*old-td", "*d"] {
            assert_eq!(expanded(end, &domains()), [end]);
        }
    }

    #[test]
    fn a_trust_domain_pattern_matches_all_names_or_none() {
        assert_eq!(spans("old-td", &domains()), Some(true), "an alias is the mesh");
        assert_eq!(spans("*", &domains()), Some(true));
        assert_eq!(spans("stranger", &domains()), Some(false));
        assert_eq!(spans("*-td", &domains()), None, "not the third");
    }

    #[test]
    fn ports_are_digits_and_keys_have_a_name_in_brackets() {
        assert_eq!(port("8080"), Some(8080));
        for wrong in ["+80", "-1", "65536", "80-90", "http", " 80", ""] {
            assert_eq!(port(wrong), None, "{wrong:?}");
        }
        assert!(is_map_key("request.headers[x]", "request.headers"));
        for wrong in [
            "request.headers",
            "request.headers[]",
            "request.headers[x",
            "request.headersx]",
        ] {
            assert!(!is_map_key(wrong, "request.headers"), "{wrong}");
        }
    }
}
