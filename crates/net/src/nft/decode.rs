//! Expressions from netlink attributes.
//!
//! The kernel adds things of its own (counters, flags); what this crate cannot write becomes
//! [`Expression::Unknown`], which equals nothing it writes.

use super::expression::{Base, Cmp, Ct, Expression, Meta, Verdict};
use crate::netlink::{Attribute, Attributes};

/// Reads a rule's list of expressions.
pub(super) fn expressions(list: Attribute<'_>) -> Vec<Expression> {
    list.nested()
        .map(|element| expression(&element.nested()))
        .collect()
}

fn expression(attributes: &Attributes<'_>) -> Expression {
    let name = attributes.find(1).map(|name| name.text()).unwrap_or_default();
    let data = attributes
        .find(2)
        .map_or(Attributes::new(&[]), |data| data.nested());
    known(&name, &data).unwrap_or(Expression::Unknown(name))
}

fn known(name: &str, data: &Attributes<'_>) -> Option<Expression> {
    let number = |kind| data.find(kind).and_then(|value| value.net_u32());
    let value = |kind| {
        data.find(kind)?
            .nested()
            .find(1)
            .map(|value| value.value.to_vec())
    };
    match name {
        "meta" => {
            let key = Meta::ALL
                .into_iter()
                .find(|key| Some(key.number()) == number(2))?;
            Some(if data.find(3).is_some() {
                Expression::SetMeta(key)
            } else {
                Expression::Meta(key)
            })
        }
        "ct" => {
            let key = Ct::ALL.into_iter().find(|key| Some(key.number()) == number(2))?;
            Some(if data.find(4).is_some() {
                Expression::SetCt(key)
            } else {
                Expression::Ct(key)
            })
        }
        "payload" => {
            let base = [Base::Network, Base::Transport]
                .into_iter()
                .find(|b| Some(b.number()) == number(2))?;
            Some(Expression::Payload {
                base,
                offset: number(3)?,
                length: number(4)?,
            })
        }
        "bitwise" => {
            let plain = value(5)?.iter().all(|byte| *byte == 0);
            plain.then_some(Expression::Mask(value(4)?))
        }
        "cmp" => {
            let how = Cmp::ALL.into_iter().find(|how| Some(how.number()) == number(2))?;
            Some(Expression::Compare(how, value(3)?))
        }
        "range" if number(2) == Some(1) => Some(Expression::NotInRange(value(3)?, value(4)?)),
        "lookup" if data.find(3).is_some() => Some(Expression::Lookup(data.find(1)?.text())),
        "immediate" => immediate(data),
        "counter" => Some(Expression::Counter),
        "redir" => data.find(1).map(|_| Expression::Redirect),
        "masq" => Some(Expression::Masquerade),
        "reject" => (number(1) == Some(1)).then_some(Expression::Reset),
        "numgen" => (number(3) == Some(1)).then(|| number(2).map(Expression::Random))?,
        "tproxy" => (number(1) == Some(0)).then_some(Expression::Tproxy),
        _ => None,
    }
}

fn immediate(data: &Attributes<'_>) -> Option<Expression> {
    let content = data.find(2)?.nested();
    if let Some(value) = content.find(1) {
        return Some(Expression::Value(value.value.to_vec()));
    }
    verdict(&content).map(Expression::Verdict)
}

/// Reads a verdict, in a rule or in a map.
pub(super) fn verdict(data: &Attributes<'_>) -> Option<Verdict> {
    let attributes = data.find(2)?.nested();
    match attributes.find(1)?.net_u32()?.cast_signed() {
        1 => Some(Verdict::Accept),
        0 => Some(Verdict::Drop),
        -5 => Some(Verdict::Return),
        -1 => Some(Verdict::Continue),
        -3 => Some(Verdict::Jump(attributes.find(2)?.text())),
        _ => None,
    }
}
