//! Compares the rules in the kernel with the desired rules.

use crate::apply::{ApplyError, Nftables};
use crate::ruleset::script;
use crate::ruleset::{Ruleset, expressions};
use remora_net::nft::{Expression, ListedRule};
use std::fmt;

/// A difference between the installed and the desired rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Remora's table is not installed.
    NoTable,
    /// A rule is missing, or not in its position.
    Missing {
        /// The chain.
        chain: String,
        /// The rule.
        rule: String,
    },
    /// A rule is installed that should not be.
    Unexpected {
        /// The chain.
        chain: String,
        /// Its position in the chain, counted from 1.
        place: usize,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTable => f.write_str("no capture rules are installed"),
            Self::Missing { chain, rule } => write!(f, "chain {chain} lacks the rule: {rule}"),
            Self::Unexpected { chain, place } => {
                write!(f, "chain {chain} has a foreign rule at place {place}")
            }
        }
    }
}

/// Reads the rules back and returns the differences; empty if the rules are as desired.
pub fn verify(nftables: &mut Nftables, ruleset: &Ruleset) -> Result<Vec<Difference>, ApplyError> {
    if nftables.installed()?.is_none() {
        return Ok(vec![Difference::NoTable]);
    }
    Ok(compare(&nftables.rules()?, ruleset))
}

/// Compares listed rules with the desired rules.
pub fn compare(listed: &[ListedRule], ruleset: &Ruleset) -> Vec<Difference> {
    let mut differences = Vec::new();
    for chain in &ruleset.chains {
        let there: Vec<&[Expression]> = listed
            .iter()
            .filter(|rule| rule.chain == chain.name)
            .map(|rule| rule.expressions.as_slice())
            .collect();
        let mut at = 0;
        for rule in &chain.rules {
            let wanted = expressions(rule);
            match there[at..].iter().position(|found| *found == wanted.as_slice()) {
                Some(skipped) => {
                    differences.extend((at..at + skipped).map(|place| foreign(&chain.name, place)));
                    at += skipped + 1;
                }
                None => differences.push(Difference::Missing {
                    chain: chain.name.clone(),
                    rule: script::rule(rule),
                }),
            }
        }
        differences.extend((at..there.len()).map(|place| foreign(&chain.name, place)));
    }
    differences
}

fn foreign(chain: &str, index: usize) -> Difference {
    Difference::Unexpected {
        chain: chain.to_owned(),
        place: index + 1,
    }
}
