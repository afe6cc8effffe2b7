//! Rules as nftables expressions.

use super::{GATE, NftAction, NftMatch, NftRule};
use remora_net::nft::{Base, Cmp, Ct, Expression, Meta, Verdict};
use remora_rules::rule::{Family, Match, OwnerKind, State};
use remora_rules::value::{Cidr, Interface, Owner, Ports};
use std::net::IpAddr;

/// The expressions of one rule. A user or group name that is not resolved to a number matches no packet.
pub fn expressions(rule: &NftRule) -> Vec<Expression> {
    let mut out = Vec::with_capacity(12);
    for test in &rule.tests {
        match test {
            NftMatch::Family { family, not } => {
                out.extend([
                    Expression::Meta(Meta::Family),
                    compare(*not, &[family_number(*family)]),
                ]);
            }
            NftMatch::Plan(item) => one_match(&mut out, item),
            NftMatch::NotFirst => {
                // Of FIN, SYN, RST and ACK not just SYN.
                out.push(Expression::Payload {
                    base: Base::Transport,
                    offset: 13,
                    length: 1,
                });
                out.extend([Expression::Mask(vec![0x17]), compare(true, &[0x02])]);
            }
        }
    }
    action(&mut out, &rule.action);
    out
}

fn family_number(family: Family) -> u8 {
    // NFPROTO_IPV4 and NFPROTO_IPV6.
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

fn compare(not: bool, value: &[u8]) -> Expression {
    Expression::Compare(if not { Cmp::NotEqual } else { Cmp::Equal }, value.to_vec())
}

fn one_match(out: &mut Vec<Expression>, item: &Match) {
    match item {
        Match::In(interface) => name(out, Meta::InName, interface),
        Match::Out(interface) => name(out, Meta::OutName, interface),
        Match::Protocol(protocol) => {
            out.extend([
                Expression::Meta(Meta::Protocol),
                compare(false, &[protocol.number()]),
            ]);
        }
        Match::Source(range) => address(out, *range, false, 12, 8),
        Match::Destination { range, not } => address(out, *range, *not, 16, 24),
        Match::DestinationPort { ports, not } => destination_port(out, *ports, *not),
        Match::DestinationPortNoneOf(ports) => {
            for port in ports {
                destination_port(out, Ports::one(*port), true);
            }
        }
        Match::SourcePort(port) => {
            out.push(Expression::Payload {
                base: Base::Transport,
                offset: 0,
                length: 2,
            });
            out.push(compare(false, &port.to_be_bytes()));
        }
        Match::Owner { kind, owner, not } => {
            let key = match kind {
                OwnerKind::User => Meta::User,
                OwnerKind::Group => Meta::Group,
            };
            // (uid_t)-1 is not a valid id, so it matches no socket.
            let id = if let Owner::Id(id) = owner { *id } else { u32::MAX };
            out.extend([Expression::Meta(key), compare(*not, &id.to_ne_bytes())]);
        }
        Match::State(state) => {
            let bits = match state {
                State::Invalid => Ct::INVALID,
                State::Established => Ct::ESTABLISHED | Ct::RELATED,
            };
            let mask = Expression::Mask(bits.to_ne_bytes().to_vec());
            out.extend([Expression::Ct(Ct::State), mask, compare(true, &[0; 4])]);
        }
        Match::Mark { mark, not } => {
            out.extend([Expression::Meta(Meta::Mark), compare(*not, &mark.to_ne_bytes())]);
        }
        Match::ConnectionMark(mark) => {
            out.extend([Expression::Ct(Ct::Mark), compare(false, &mark.to_ne_bytes())]);
        }
    }
}

// An exact name is compared with its nul padding, a pattern without.
fn name(out: &mut Vec<Expression>, key: Meta, interface: &Interface) {
    let bytes = if let Some(prefix) = interface.prefix() {
        prefix.as_bytes().to_vec()
    } else {
        let mut bytes = interface.as_str().as_bytes().to_vec();
        bytes.resize(16, 0);
        bytes
    };
    // The pattern "+" alone is every name.
    if !bytes.is_empty() {
        out.extend([Expression::Meta(key), compare(false, &bytes)]);
    }
}

fn address(out: &mut Vec<Expression>, range: Cidr, not: bool, v4_offset: u32, v6_offset: u32) {
    let (bytes, offset, family) = match range.address() {
        IpAddr::V4(v4) => (v4.octets().to_vec(), v4_offset, Family::V4),
        IpAddr::V6(v6) => (v6.octets().to_vec(), v6_offset, Family::V6),
    };
    let (whole, bits) = (usize::from(range.prefix() / 8), range.prefix() % 8);
    if range.prefix() == 0 {
        // Everything of this family, or nothing of it.
        out.extend([
            Expression::Meta(Meta::Family),
            compare(not, &[family_number(family)]),
        ]);
        return;
    }
    let used = if bits == 0 { whole } else { bytes.len() };
    let mut value = bytes[..used].to_vec();
    let length = u32::try_from(used).unwrap_or(0);
    out.push(Expression::Payload {
        base: Base::Network,
        offset,
        length,
    });
    if bits != 0 {
        let mut mask = vec![0xff; whole];
        mask.push(0xff << (8 - bits));
        mask.resize(used, 0);
        value.iter_mut().zip(&mask).for_each(|(byte, mask)| *byte &= mask);
        out.push(Expression::Mask(mask));
    }
    out.push(compare(not, &value));
}

fn destination_port(out: &mut Vec<Expression>, ports: Ports, not: bool) {
    out.push(Expression::Payload {
        base: Base::Transport,
        offset: 2,
        length: 2,
    });
    let (first, last) = (
        ports.first.to_be_bytes().to_vec(),
        ports.last.to_be_bytes().to_vec(),
    );
    if first == last {
        out.push(compare(not, &first));
    } else if not {
        out.push(Expression::NotInRange(first, last));
    } else {
        out.push(Expression::Compare(Cmp::AtLeast, first));
        out.push(Expression::Compare(Cmp::AtMost, last));
    }
}

fn action(out: &mut Vec<Expression>, action: &NftAction) {
    match action {
        NftAction::Accept => out.push(Expression::Verdict(Verdict::Accept)),
        NftAction::Drop => out.push(Expression::Verdict(Verdict::Drop)),
        NftAction::Return => out.push(Expression::Verdict(Verdict::Return)),
        NftAction::Jump(chain) => out.push(Expression::Verdict(Verdict::Jump(chain.clone()))),
        NftAction::AskSwitch => out.extend([
            Expression::Meta(Meta::Protocol),
            Expression::Lookup(GATE.to_owned()),
        ]),
        NftAction::Redirect(port) => {
            let port = Expression::Value(port.to_be_bytes().to_vec());
            out.extend([Expression::Counter, port, Expression::Redirect]);
        }
        NftAction::Tproxy { port, mark } => {
            out.extend([Expression::Value(port.to_be_bytes().to_vec()), Expression::Tproxy]);
            out.extend([
                Expression::Value(mark.to_ne_bytes().to_vec()),
                Expression::SetMeta(Meta::Mark),
            ]);
            out.extend([Expression::Counter, Expression::Verdict(Verdict::Accept)]);
        }
        NftAction::SetMark(mark) => {
            out.extend([
                Expression::Value(mark.to_ne_bytes().to_vec()),
                Expression::SetMeta(Meta::Mark),
            ]);
        }
        NftAction::SaveMark => out.extend([Expression::Meta(Meta::Mark), Expression::SetCt(Ct::Mark)]),
        NftAction::RestoreMark => out.extend([Expression::Ct(Ct::Mark), Expression::SetMeta(Meta::Mark)]),
        NftAction::Zone(zone) => out.extend([
            Expression::Value(zone.to_ne_bytes().to_vec()),
            Expression::SetCt(Ct::Zone),
        ]),
    }
}
