//! Rules for DNS queries.
//!
//! A query of the application and the agent's own query may have the same four addresses and ports;
//! connection tracking would then take the first one's decision for the second and the query would escape.
//! So the two directions live in zones of their own: 1 = agent and upstream, 2 = application and agent.

use super::{Builder, MATCH_UDP, dport, owned_by, to};
use crate::intent::Dns;
use crate::rule::{Action, Chain, Match, Protocol, Table};
use crate::value::Cidr;

/// The port where the agent answers DNS queries.
// istio: a constant there too (IstioAgentDNSListenerPort).
const AGENT_DNS_PORT: u16 = 15053;
const AGENT_ZONE: u16 = 1;
const APPLICATION_ZONE: u16 = 2;

impl Builder<'_> {
    pub(super) fn dns(&mut self) {
        let servers: Vec<Option<Cidr>> = match &self.intent.dns {
            Dns::Off => return,
            Dns::All => vec![None],
            Dns::Servers(servers) => {
                let own = servers
                    .iter()
                    .map(|address| Cidr::host(*address))
                    .filter(|range| self.family.has(*range));
                own.map(Some).collect()
            }
        };
        self.append(Table::Raw, Chain::Output, [], Action::Jump(Chain::OutputDns));
        if !servers.is_empty() {
            self.append(Table::Nat, Chain::IstioOutput, [], Action::Jump(Chain::OutputDns));
        }
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for server in &servers {
                let mut matches = vec![Match::Protocol(protocol), dport(53)];
                matches.extend(server.map(to));
                self.append(
                    Table::Nat,
                    Chain::OutputDns,
                    matches,
                    Action::Redirect(AGENT_DNS_PORT),
                );
            }
        }
        self.dns_zones(&servers);
    }

    fn dns_zones(&mut self, servers: &[Option<Cidr>]) {
        for (kind, owner) in self.proxy_owners() {
            let query = [MATCH_UDP, dport(53), owned_by(kind, owner)];
            self.append(Table::Raw, Chain::OutputDns, query, Action::Zone(AGENT_ZONE));
            let answer = [
                MATCH_UDP,
                Match::SourcePort(AGENT_DNS_PORT),
                owned_by(kind, owner),
            ];
            self.append(
                Table::Raw,
                Chain::OutputDns,
                answer,
                Action::Zone(APPLICATION_ZONE),
            );
        }
        if !servers.is_empty() {
            self.append(Table::Raw, Chain::Prerouting, [], Action::Jump(Chain::Inbound));
        }
        for server in servers {
            let mut query = vec![MATCH_UDP, dport(53)];
            query.extend(server.map(to));
            self.append(
                Table::Raw,
                Chain::OutputDns,
                query,
                Action::Zone(APPLICATION_ZONE),
            );
            let mut answer = vec![MATCH_UDP, Match::SourcePort(53)];
            answer.extend(server.map(Match::Source));
            self.append(Table::Raw, Chain::Inbound, answer, Action::Zone(AGENT_ZONE));
        }
    }
}
