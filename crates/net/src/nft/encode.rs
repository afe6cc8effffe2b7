//! Expressions as netlink attributes.

use super::expression::{Expression, Verdict};
use crate::netlink::Writer;

const REGISTER: u32 = 1;
const SECOND_REGISTER: u32 = 2;
const VERDICT_REGISTER: u32 = 0;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

/// Writes one element of a rule's list of expressions.
pub(super) fn expression(writer: &mut Writer, expression: &Expression) {
    let Some(name) = name(expression) else { return };
    if let Expression::DestinationNat(to) = expression {
        load(writer, REGISTER, &to.ip().octets());
        load(writer, SECOND_REGISTER, &to.port().to_be_bytes());
    }
    writer.nested(LIST_ELEMENT, |w| {
        w.text(EXPRESSION_NAME, name);
        w.nested(EXPRESSION_DATA, |w| content(w, expression));
    });
}

/// Writes an expression that puts a value into a register.
fn load(writer: &mut Writer, register: u32, value: &[u8]) {
    writer.nested(LIST_ELEMENT, |w| {
        w.text(EXPRESSION_NAME, "immediate");
        w.nested(EXPRESSION_DATA, |w| {
            w.net_u32(1, register);
            data(w, 2, value);
        });
    });
}

fn name(expression: &Expression) -> Option<&'static str> {
    Some(match expression {
        Expression::Meta(_) | Expression::SetMeta(_) => "meta",
        Expression::Ct(_) | Expression::SetCt(_) => "ct",
        Expression::Payload { .. } => "payload",
        Expression::Mask(_) => "bitwise",
        Expression::Compare(..) => "cmp",
        Expression::NotInRange(..) => "range",
        Expression::Lookup(_) => "lookup",
        Expression::Value(_) | Expression::Verdict(_) => "immediate",
        Expression::Counter => "counter",
        Expression::Redirect => "redir",
        Expression::Tproxy => "tproxy",
        Expression::DestinationNat(_) => "nat",
        Expression::Masquerade => "masq",
        Expression::Reset => "reject",
        Expression::Random(_) => "numgen",
        Expression::Unknown(_) => return None,
    })
}

// Attribute numbers are those of linux/netfilter/nf_tables.h, in the order of each expression's enum.
fn content(w: &mut Writer, expression: &Expression) {
    match expression {
        Expression::Meta(key) => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, key.number());
        }
        Expression::SetMeta(key) => {
            w.net_u32(2, key.number());
            w.net_u32(3, REGISTER);
        }
        Expression::Ct(key) => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, key.number());
        }
        Expression::SetCt(key) => {
            w.net_u32(2, key.number());
            w.net_u32(4, REGISTER);
        }
        Expression::Payload { base, offset, length } => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, base.number());
            w.net_u32(3, *offset);
            w.net_u32(4, *length);
        }
        Expression::Mask(mask) => mask_attributes(w, mask),
        Expression::Compare(how, value) => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, how.number());
            data(w, 3, value);
        }
        Expression::NotInRange(from, to) => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, 1);
            data(w, 3, from);
            data(w, 4, to);
        }
        Expression::Lookup(map) => {
            w.text(1, map);
            w.net_u32(2, REGISTER);
            w.net_u32(3, VERDICT_REGISTER);
        }
        Expression::Value(value) => {
            w.net_u32(1, REGISTER);
            data(w, 2, value);
        }
        Expression::Redirect => w.net_u32(1, REGISTER),
        // Family 0: both.
        Expression::Tproxy => {
            w.net_u32(1, 0);
            w.net_u32(3, REGISTER);
        }
        Expression::Verdict(verdict) => {
            w.net_u32(1, VERDICT_REGISTER);
            w.nested(2, |w| self::verdict(w, verdict));
        }
        // Destination, IPv4, address and port from the registers they were loaded into.
        Expression::DestinationNat(_) => {
            w.net_u32(1, 1);
            w.net_u32(2, 2);
            w.net_u32(3, REGISTER);
            w.net_u32(5, SECOND_REGISTER);
        }
        Expression::Reset => w.net_u32(1, 1),
        Expression::Random(below) => {
            w.net_u32(1, REGISTER);
            w.net_u32(2, *below);
            w.net_u32(3, 1);
        }
        Expression::Counter | Expression::Masquerade | Expression::Unknown(_) => {}
    }
}

fn mask_attributes(w: &mut Writer, mask: &[u8]) {
    w.net_u32(1, REGISTER);
    w.net_u32(2, REGISTER);
    w.net_u32(3, u32::try_from(mask.len()).unwrap_or(0));
    data(w, 4, mask);
    data(w, 5, &[0; 16][..mask.len().min(16)]);
}

fn data(w: &mut Writer, kind: u16, value: &[u8]) {
    w.nested(kind, |w| w.bytes(DATA_VALUE, value));
}

/// Writes a verdict, in a rule or in a map.
pub(super) fn verdict(w: &mut Writer, verdict: &Verdict) {
    w.nested(DATA_VERDICT, |w| {
        w.bytes(1, &verdict.code().to_be_bytes());
        if let Verdict::Jump(chain) = verdict {
            w.text(2, chain);
        }
    });
}
