use super::Mesh;
use crate::policy::{Connection, Verdict};
use remora_xds::Message as _;
use remora_xds::delta::{Change, Received};
use remora_xds::proto::security::{Address as Range, Authorization, Clause, Match, Rule, Scope};
use remora_xds::proto::workload::address::Type;
use remora_xds::proto::workload::{Address, Workload};
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::Ipv4Addr;

const WORKLOADS: [(&str, &str, Ipv4Addr); 3] = [
    ("shop", "named", Ipv4Addr::new(10, 0, 0, 1)),
    ("shop", "other", Ipv4Addr::new(10, 0, 0, 2)),
    ("ops", "far", Ipv4Addr::new(10, 0, 0, 3)),
];

fn apply(mesh: &Mesh, type_url: &str, change: Change) -> usize {
    mesh.apply(&Received::of(type_url, vec![change])).len()
}

fn update(name: &str, bytes: Vec<u8>) -> Change {
    Change::Update {
        name: name.to_owned(),
        bytes,
    }
}

/// Workloads of two namespaces, the first of which names a policy.
fn mesh(policy: &str) -> Mesh {
    known(Mesh::default(), policy)
}

fn known(mesh: Mesh, policy: &str) -> Mesh {
    for (namespace, name, address) in WORKLOADS {
        let workload = Workload {
            uid: name.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            addresses: vec![address.octets().to_vec()],
            authorization_policies: if name == "named" {
                vec![policy.to_owned()]
            } else {
                Vec::new()
            },
            ..Workload::default()
        };
        let message = Address {
            r#type: Some(Type::Workload(workload)),
        };
        assert_eq!(apply(&mesh, ADDRESS, update(name, message.encode_to_vec())), 0);
    }
    mesh
}

/// Which of the workloads are open.
fn open(mesh: &Mesh) -> [bool; 3] {
    WORKLOADS.map(|(_, _, address)| {
        let connection = Connection {
            source: None,
            source_ip: [10, 9, 9, 9].into(),
            destination_ip: address.into(),
            destination_port: 80,
        };
        mesh.verdict(&connection) == Verdict::Allow
    })
}

/// A DENY policy that matches nothing but is not understood, because of an address of five bytes.
fn broken(namespace: &str, scope: i32) -> Vec<u8> {
    let range = Range {
        address: vec![0; 5],
        length: 8,
    };
    let m = Match {
        source_ips: vec![range],
        ..Match::default()
    };
    let message = Authorization {
        name: "p".to_owned(),
        namespace: namespace.to_owned(),
        scope,
        action: 1,
        rules: vec![Rule {
            clauses: vec![Clause { matches: vec![m] }],
        }],
        ..Authorization::default()
    };
    message.encode_to_vec()
}

/// Audit M10: it closed every workload of the mesh.
#[test]
fn a_policy_that_is_not_understood_closes_the_workloads_it_may_be_for() {
    let unreadable = vec![0xff; 3];
    let (global, namespace, selector) = (Scope::Global, Scope::Namespace, Scope::WorkloadSelector);
    for (what, name, bytes, expected) in [
        (
            "named ones",
            "shop/p",
            broken("shop", selector.into()),
            [false, true, true],
        ),
        (
            "its namespace",
            "shop/p",
            broken("shop", namespace.into()),
            [false, false, true],
        ),
        (
            "another namespace",
            "ops/p",
            broken("ops", namespace.into()),
            [true, true, false],
        ),
        (
            "all",
            "istio-system/p",
            broken("istio-system", global.into()),
            [false; 3],
        ),
        (
            "a scope of a newer version",
            "shop/p",
            broken("shop", 9),
            [false, false, true],
        ),
        (
            "the same in the root namespace",
            "istio-system/p",
            broken("istio-system", 9),
            [false; 3],
        ),
        (
            "nothing but its name",
            "ops/p",
            unreadable.clone(),
            [true, true, false],
        ),
        (
            "nothing but its name, of the root namespace",
            "istio-system/p",
            unreadable.clone(),
            [false; 3],
        ),
        ("nothing at all", "p", unreadable, [false; 3]),
    ] {
        let mesh = mesh(if name == "shop/p" { name } else { "shop/good" });
        let good = Authorization {
            name: "good".to_owned(),
            namespace: "shop".to_owned(),
            scope: selector.into(),
            action: 1,
            ..Authorization::default()
        };
        assert_eq!(
            apply(&mesh, AUTHORIZATION, update("shop/good", good.encode_to_vec())),
            0
        );
        assert_eq!(apply(&mesh, AUTHORIZATION, update(name, bytes)), 1, "{what}");
        assert_eq!(open(&mesh), expected, "{what}");
        assert_eq!(mesh.broken_policies(), [name]);
        apply(
            &mesh,
            AUTHORIZATION,
            Change::Remove {
                name: name.to_owned(),
            },
        );
        let missing = name == "shop/p";
        assert_eq!(open(&mesh), [!missing, true, true], "{what}, and it is gone");
    }
}

#[test]
fn a_policy_without_a_scope_closes_everything_only_where_it_is_of_the_root_namespace() {
    let closed = |root: &str, name: &str| {
        let mesh = known(Mesh::new(root), "shop/good");
        let good = Authorization {
            name: "good".to_owned(),
            namespace: "shop".to_owned(),
            scope: Scope::WorkloadSelector.into(),
            action: 1,
            ..Authorization::default()
        };
        apply(&mesh, AUTHORIZATION, update("shop/good", good.encode_to_vec()));
        apply(&mesh, AUTHORIZATION, update(name, vec![0xff; 3]));
        open(&mesh)
    };
    assert_eq!(closed("istio-system", "ops/p"), [true, true, false]);
    assert_eq!(closed("ops", "ops/p"), [false; 3]);
    // The usual one may be it as well.
    assert_eq!(closed("ops", "istio-system/p"), [false; 3]);
}
