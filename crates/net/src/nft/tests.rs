use super::*;
use crate::netlink::{Attributes, Writer};

fn round_trip(expressions: &[Expression]) -> Vec<Expression> {
    let mut writer = Writer::default();
    writer.nested(4, |w| {
        for expression in expressions {
            encode::expression(w, expression);
        }
    });
    let list = Attributes::new(writer.as_bytes()).find(4).unwrap();
    decode::expressions(list)
}

#[test]
fn every_expression_survives_writing_and_reading() {
    let all = [
        Expression::Meta(Meta::User),
        Expression::SetMeta(Meta::Mark),
        Expression::Ct(Ct::State),
        Expression::SetCt(Ct::Zone),
        Expression::Payload {
            base: Base::Transport,
            offset: 13,
            length: 1,
        },
        Expression::Mask(vec![0x17]),
        Expression::Compare(Cmp::AtLeast, vec![1, 2]),
        Expression::NotInRange(vec![0, 1], vec![0, 9]),
        Expression::Lookup("gate".into()),
        Expression::Value(vec![58, 153]),
        Expression::Counter,
        Expression::Redirect,
        Expression::Tproxy,
        Expression::Verdict(Verdict::Accept),
        Expression::Verdict(Verdict::Drop),
        Expression::Verdict(Verdict::Return),
        Expression::Verdict(Verdict::Continue),
        Expression::Verdict(Verdict::Jump("elsewhere".into())),
    ];
    assert_eq!(round_trip(&all), all);
    assert_eq!(
        round_trip(&[Expression::Unknown("limit".into())]),
        [],
        "what is not known is not written"
    );
}
