//! Rules grouped by chain, with insertions applied.

use crate::rule::{Chain, Position, Rule, Table};

/// The chains of one address family after all rules have been added in build order.
#[derive(Debug, Clone)]
pub struct Chains<'a> {
    lists: Vec<Vec<&'a Rule>>,
}

const fn slot(table: Table, chain: Chain) -> usize {
    table as usize * Chain::COUNT + chain as usize
}

impl<'a> Chains<'a> {
    /// Sorts the rules.
    pub fn new(rules: &'a [Rule]) -> Self {
        let mut lists: Vec<Vec<&Rule>> = vec![Vec::new(); Table::ALL.len() * Chain::COUNT];
        for rule in rules {
            let list = &mut lists[slot(rule.table, rule.chain)];
            match rule.place {
                Position::Append => list.push(rule),
                Position::Insert(at) => list.insert(at.saturating_sub(1).min(list.len()), rule),
            }
        }
        Self { lists }
    }

    /// The rules of a chain in order; none if there is no such chain.
    pub fn rules(&self, table: Table, chain: Chain) -> &[&'a Rule] {
        &self.lists[slot(table, chain)]
    }
}
