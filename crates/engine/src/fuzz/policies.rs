//! Entry points for fuzzing, and the chain from Istio's policies to a verdict that they and tests use.

use crate::mesh::{self, Peer, TRUST_DOMAIN};
use crate::services::Member;
use remora_control::mesh::{Snapshots, encode};
use remora_mtls::SpiffeId;
use remora_pod::path::Path;
use remora_proxy::mesh::Mesh;
use remora_proxy::policy::{Connection, Verdict};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// A server in namespace `shop`, with the label `app`.
const SERVERS: [(&str, Ipv4Addr); 2] = [
    ("server", Ipv4Addr::new(10, 1, 0, 1)),
    ("bystander", Ipv4Addr::new(10, 1, 0, 2)),
];

/// A client of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// `shop/web`, from 10.0.0.1.
    Intended,
    /// `evil/mallory`, from 10.0.0.2.
    Other,
    /// Without a certificate, from 10.0.0.3.
    Plaintext,
}

impl Caller {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Intended, Self::Other, Self::Plaintext];

    fn id(self) -> Option<SpiffeId> {
        let (namespace, account) = match self {
            Self::Intended => ("shop", "web"),
            Self::Other => ("evil", "mallory"),
            Self::Plaintext => return None,
        };
        SpiffeId::of_service_account(TRUST_DOMAIN, namespace, account).ok()
    }

    fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, 1 + self as u8)
    }
}

/// The proxies of a run with these policies: they are translated, encoded, read by a proxy, and judged by.
pub struct Enforced(Mesh);

impl Enforced {
    /// Takes policies as their author wrote them, in namespaces `shop`, `evil` or `istio-system`.
    ///
    /// # Panics
    ///
    /// If a policy cannot be expressed, or a proxy refuses it: neither may happen, whatever a policy says.
    pub fn new(policies: &[Value]) -> Self {
        let pods = SERVERS.map(|(app, _)| {
            json!({"metadata": {"name": app, "namespace": "shop", "labels": {"app": app}},
                "spec": {"containers": [{"name": "istio-proxy"}]}})
        });
        let members: Vec<Member> = pods
            .iter()
            .zip(SERVERS)
            .map(|(pod, (_, address))| Member::read(pod, address, true))
            .collect();
        let peers: Vec<Peer<'_>> = pods
            .iter()
            .zip(&members)
            .map(|(pod, member)| Peer { pod, member })
            .collect();
        let described = mesh::documents(&[], &peers, policies).map_err(|error| error.to_string());
        let encoded = described.and_then(|all| encode(&all, TRUST_DOMAIN).map_err(|error| error.to_string()));
        let proxy = Mesh::default();
        match encoded {
            Ok(snapshots) => {
                let refused = proxy.exchange(&Snapshots::new(), &snapshots);
                assert!(refused.is_empty(), "{refused:?}: {policies:?}");
            }
            Err(error) => assert!(error.is_empty(), "{error}: {policies:?}"),
        }
        Self(proxy)
    }

    /// Whether the server with this label accepts a connection.
    pub fn admits(&self, app: &str, port: u16, caller: Caller) -> bool {
        let server = SERVERS.into_iter().find(|(name, _)| *name == app);
        let connection = Connection {
            source: caller.id(),
            source_ip: caller.address().into(),
            destination_ip: server
                .map_or(Ipv4Addr::UNSPECIFIED, |(_, address)| address)
                .into(),
            destination_port: port,
        };
        self.0.verdict(&connection) == Verdict::Allow
    }
}

/// Policies: a JSON list of them, or bytes that choose some. Nothing that is added to a policy, and no part that is
/// replaced by something of another type, lets in a connection that was refused before.
///
/// # Panics
///
/// If it does, or if a policy is not enforced at all.
pub fn policy_translation(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let policies = match serde_json::from_slice::<Vec<Value>>(bytes) {
        Ok(policies) => policies.into_iter().take(4).map(placed).collect(),
        Err(_) => (0..=choices.below(3))
            .map(|_| choices.policy())
            .collect::<Vec<_>>(),
    };
    let before = Enforced::new(&policies);
    for changed in defects(&policies, &mut choices) {
        let after = Enforced::new(&changed);
        for (app, _) in SERVERS {
            for (port, caller) in Caller::ALL
                .into_iter()
                .flat_map(|caller| [(8080, caller), (9090, caller)])
            {
                let (was, is) = (before.admits(app, port, caller), after.admits(app, port, caller));
                assert!(
                    was || !is,
                    "{app}:{port} admits {caller:?}\nbefore: {policies:?}\nafter: {changed:?}"
                );
            }
        }
    }
}

/// In a namespace that matters, with a name.
fn placed(mut policy: Value) -> Value {
    if !policy.is_object() {
        policy = json!({});
    }
    for (field, usual) in [("namespace", "shop"), ("name", "p")] {
        if !policy["metadata"].is_object() {
            policy["metadata"] = json!({});
        }
        if !policy["metadata"][field].is_string() {
            policy["metadata"][field] = json!(usual);
        }
    }
    policy
}

/// The policies with one defect each: an unknown field, or a part of another type.
fn defects(policies: &[Value], choices: &mut Choices<'_>) -> Vec<Vec<Value>> {
    let mut all = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        let Some(spec) = policy.get("spec") else { continue };
        let mut places = Vec::new();
        collect(spec, &Path::of(&["spec"]), &mut places);
        let is_target = |path: &Path| path.to_string().contains("targetRef");
        places.retain(|path| !is_target(path));
        let unknown = choices.pick(&[json!("x"), json!(["x"]), json!({}), json!(null), json!(7)]);
        for path in places.into_iter().take(40) {
            let mut with = |change: &dyn Fn(&mut Value)| {
                let mut changed = policies.to_vec();
                if let Some(place) = path.get_mut(&mut changed[index]) {
                    change(place);
                }
                all.push(changed);
            };
            // Labels have names of their author's.
            let labels = path.to_string().ends_with("matchLabels");
            with(&|place| {
                if let Some(object) = place.as_object_mut().filter(|_| !labels) {
                    object.insert("unknown".to_owned(), unknown.clone());
                }
            });
            with(&|place| *place = json!(7));
        }
    }
    all
}

fn collect(value: &Value, at: &Path, places: &mut Vec<Path>) {
    places.push(at.clone());
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                collect(inner, &at.join(key.as_str()), places);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                collect(inner, &at.join(index), places);
            }
        }
        _ => {}
    }
}

/// Bytes that make choices; zero when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first) % limit
    }

    fn pick(&mut self, from: &[Value]) -> Value {
        from[self.below(from.len())].clone()
    }

    fn policy(&mut self) -> Value {
        let (kind, spec) = if self.below(3) == 0 {
            ("PeerAuthentication", self.peer_authentication())
        } else {
            ("AuthorizationPolicy", self.authorization())
        };
        let namespaces = [json!("shop"), json!("istio-system"), json!("evil")];
        let mut policy =
            json!({"kind": kind, "metadata": {"namespace": self.pick(&namespaces)}, "spec": spec});
        policy["metadata"]["name"] = self.pick(&[json!("a"), json!("b"), json!("c")]);
        if self.below(8) == 1 {
            policy["metadata"]["annotations"] = json!({"istio.io/dry-run": "true"});
        }
        policy
    }

    fn selected(&mut self, spec: &mut Value) {
        let selectors = [
            json!(null),
            json!({"matchLabels": {"app": "server"}}),
            json!({"matchLabels": {"app": "bystander"}}),
            json!({"matchLabels": {}}),
            json!({"matchLabel": {}}),
        ];
        spec["selector"] = self.pick(&selectors);
    }

    fn peer_authentication(&mut self) -> Value {
        let modes = [
            json!("STRICT"),
            json!("PERMISSIVE"),
            json!("UNSET"),
            json!("DISABLE"),
            json!("x"),
        ];
        let mut spec = json!({"mtls": {"mode": self.pick(&modes)}});
        self.selected(&mut spec);
        if self.below(2) == 1 {
            let port = ["8080", "9090", "http"][self.below(3)];
            spec["portLevelMtls"] = json!({port: {"mode": self.pick(&modes)}});
        }
        spec
    }

    fn authorization(&mut self) -> Value {
        let actions =
            ["ALLOW", "DENY", "ALLOW", "DENY", "CUSTOM", "AUDIT", "deny"].map(|action| json!(action));
        let mut spec = json!({"action": self.pick(&actions)});
        self.selected(&mut spec);
        if self.below(16) == 1 {
            spec["targetRefs"] = json!([{"kind": "Gateway", "name": "g"}]);
        }
        if self.below(8) != 1 {
            let count = self.below(3);
            spec["rules"] = (0..count).map(|_| self.rule()).collect();
        }
        spec
    }

    fn rule(&mut self) -> Value {
        let mut rule = json!({});
        for (list, entry, fields) in [
            ("from", "source", &SOURCE[..]),
            ("to", "operation", &OPERATION[..]),
        ] {
            let count = self.below(3);
            if count > 0 {
                let entries = (0..count).map(|_| json!({entry: self.fields(fields)}));
                rule[list] = entries.collect();
            }
        }
        if self.below(3) == 1 {
            let keys = [
                "source.namespace",
                "source.principal",
                "destination.port",
                "source.ip",
                "request.headers[x]",
                "x",
            ];
            let key = keys[self.below(keys.len())];
            let list = ["values", "notValues"][self.below(2)];
            rule["when"] = json!([{"key": key, list: self.values()}]);
        }
        rule
    }

    fn fields(&mut self, from: &[&str]) -> Value {
        let mut fields = json!({});
        for _ in 0..=self.below(2) {
            fields[from[self.below(from.len())]] = self.values();
        }
        fields
    }

    /// One or two of them, which fit some of the fields.
    fn values(&mut self) -> Value {
        let all = [
            "cluster.local/ns/shop/sa/web",
            "*/sa/mallory",
            "*",
            "shop",
            "shop/web",
            "10.0.0.0/31",
            "10.0.0.3",
            "8080",
            "9090",
            "cluster.local",
            "a*b",
            "",
        ];
        let count = self.below(2) + 1;
        (0..count).map(|_| json!(all[self.below(all.len())])).collect()
    }
}

const SOURCE: [&str; 14] = [
    "principals",
    "notPrincipals",
    "requestPrincipals",
    "notRequestPrincipals",
    "namespaces",
    "notNamespaces",
    "serviceAccounts",
    "notServiceAccounts",
    "ipBlocks",
    "notIpBlocks",
    "remoteIpBlocks",
    "notRemoteIpBlocks",
    "trustDomains",
    "notTrustDomains",
];

const OPERATION: [&str; 8] = [
    "ports",
    "notPorts",
    "hosts",
    "notHosts",
    "methods",
    "notMethods",
    "paths",
    "notPaths",
];
