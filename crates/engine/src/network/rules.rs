//! The node's rules: Service addresses are translated, those nobody stands behind refuse.

use remora_net::nft::{Base, Batch, ChainSpec, Cmp, Connection, Ct, Expression, Hook, Meta, Verdict};

use std::net::SocketAddrV4;

use super::NetworkError;
use crate::services::{Forward, Protocol};

const TABLE: &str = "remora-node";
const SERVICES: &str = "services";
const NOBODY: &str = "nobody";
const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const DESTINATION_NAT: i32 = -100;
const IPV4: u8 = 2;

/// Puts the chains there. They stay for the life of the node: removing them would forget open connections.
pub(super) fn install(node: &mut Connection) -> Result<(), NetworkError> {
    let mut batch = Batch::new(TABLE);
    batch.add_table(None);
    for name in [SERVICES, NOBODY] {
        batch.add_chain(&ChainSpec { name, hook: None });
    }
    for (direction, number) in [("pods", PREROUTING), ("node", OUTPUT)] {
        for (kind, priority, target) in [
            ("nat", DESTINATION_NAT, SERVICES),
            ("filter", DESTINATION_NAT + 10, NOBODY),
        ] {
            let name = format!("{kind}-{direction}");
            let hook = Some(Hook {
                kind,
                number,
                priority,
            });
            batch.add_chain(&ChainSpec { name: &name, hook });
            // The kernel follows connections while some rule asks about them. Without this one it stopped when the last
            // Service lost its last pod, and answers under way lost the Service's address.
            batch.add_rule(&name, &[Expression::Ct(Ct::State)]);
            batch.add_rule(&name, &[Expression::Verdict(Verdict::Jump(target.to_owned()))]);
        }
    }
    Ok(node.commit(batch)?)
}

/// Sends what pods want of the outside to a port of the node.
pub(super) fn lead_outside(node: &mut Connection, to: SocketAddrV4) -> Result<(), NetworkError> {
    let part_of_destination = Expression::Payload {
        base: Base::Network,
        offset: 16,
        length: 2,
    };
    let mut rule = vec![
        Expression::Meta(Meta::Family),
        Expression::Compare(Cmp::Equal, vec![IPV4]),
        Expression::Meta(Meta::Protocol),
        Expression::Compare(Cmp::Equal, vec![Protocol::Tcp.number()]),
    ];
    // Pods and Services, each of which have the first two bytes in common.
    for inside in [[10, 244], [10, 96]] {
        rule.push(part_of_destination.clone());
        rule.push(Expression::Compare(Cmp::NotEqual, inside.to_vec()));
    }
    rule.push(Expression::DestinationNat(to));
    let mut batch = Batch::new(TABLE);
    batch.add_rule("nat-pods", &rule);
    Ok(node.commit(batch)?)
}

/// Exchanges the rules of the Services, all at once.
pub(super) fn replace(node: &mut Connection, forwards: &[Forward]) -> Result<(), NetworkError> {
    let mut batch = Batch::new(TABLE);
    batch.flush_chain(SERVICES);
    batch.flush_chain(NOBODY);
    for forward in forwards {
        if forward.to.is_empty() && forward.protocol == Protocol::Tcp {
            // k8s: kube-proxy refuses connections to a Service without endpoints.
            let mut rule = addressed_to(forward);
            rule.push(Expression::Reset);
            batch.add_rule(NOBODY, &rule);
        }
        for (index, target) in forward.to.iter().enumerate() {
            let left = u32::try_from(forward.to.len() - index).unwrap_or(u32::MAX);
            let mut rule = addressed_to(forward);
            if left > 1 {
                rule.extend([
                    Expression::Random(left),
                    Expression::Compare(Cmp::Equal, 0_u32.to_ne_bytes().to_vec()),
                ]);
            }
            rule.push(Expression::DestinationNat(*target));
            batch.add_rule(SERVICES, &rule);
        }
    }
    Ok(node.commit(batch)?)
}

fn addressed_to(forward: &Forward) -> Vec<Expression> {
    let destination = |base, offset, length| Expression::Payload { base, offset, length };
    let equals = |bytes: &[u8]| Expression::Compare(Cmp::Equal, bytes.to_vec());
    vec![
        Expression::Meta(Meta::Family),
        equals(&[IPV4]),
        destination(Base::Network, 16, 4),
        equals(&forward.from.ip().octets()),
        Expression::Meta(Meta::Protocol),
        equals(&[forward.protocol.number()]),
        destination(Base::Transport, 2, 2),
        equals(&forward.from.port().to_be_bytes()),
    ]
}
