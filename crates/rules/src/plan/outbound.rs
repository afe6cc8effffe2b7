//! Rules for connections made in the pod.
//!
//! A packet meets, in this order: excluded ports, the passthrough source, the proxy's users and groups,
//! groups of processes, DNS queries, loopback, excluded ranges, included ports, included ranges. A packet
//! that matches none of these is not captured.

use super::{Builder, MATCH_TCP, MATCH_UDP, dports, not_dport, not_owned_by, not_to, out_lo, owned_by, to};
use crate::intent::{Destinations, Dns, Groups};
use crate::rule::{Action, Chain, Match, OwnerKind, Table};
use crate::value::Owner;

impl Builder<'_> {
    pub(super) fn outbound(&mut self) {
        // No protocol here: UDP name queries are handled inside.
        self.append(Table::Nat, Chain::Output, [], Action::Jump(Chain::IstioOutput));
        let (intent, family) = (self.intent, self.family);
        for ports in &intent.excluded_outbound_ports {
            self.output([MATCH_TCP, dports(*ports)], Action::Return);
            self.output([MATCH_UDP, dports(*ports)], Action::Return);
        }
        self.output([out_lo(), Match::Source(self.passthrough)], Action::Return);
        for (kind, owner) in self.proxy_owners() {
            self.proxy_owner(kind, owner);
        }
        self.groups();
        self.dns();
        self.output([to(self.loopback)], Action::Return);
        for range in intent
            .excluded_destinations
            .iter()
            .filter(|range| family.has(**range))
        {
            self.output([to(*range)], Action::Return);
        }
        for ports in &intent.outbound_ports {
            self.output([MATCH_TCP, dports(*ports)], Action::Jump(Chain::Redirect));
        }
        self.destinations();
    }

    fn output(&mut self, matches: impl Into<Vec<Match>>, action: Action) {
        self.append(Table::Nat, Chain::IstioOutput, matches, action);
    }

    // (a) The application calls its own service, the proxy chooses this very pod and dials it over lo: that
    //     goes to the inbound listener, so that the server's side of mTLS and policy applies.
    // (b) The application calls its own address: straight to itself.
    // (c) Everything else the proxy sends is not captured, or it would be redirected to the proxy in an endless loop.
    // With DNS capture, port 53 is left to the DNS rules further down.
    fn proxy_owner(&mut self, kind: OwnerKind, owner: &Owner) {
        let with_dns = self.intent.dns != Dns::Off;
        let tunnel = self.intent.tunnel_port;
        // istio: groups always get the form without DNS.
        let other_ports = if with_dns && kind == OwnerKind::User {
            Match::DestinationPortNoneOf(vec![53, tunnel])
        } else {
            not_dport(tunnel)
        };
        let self_call = [
            out_lo(),
            not_to(self.loopback),
            MATCH_TCP,
            other_ports,
            owned_by(kind, owner),
        ];
        self.output(self_call, Action::Jump(Chain::InRedirect));
        if !self.intent.includes_loopback() {
            let mut local = vec![out_lo()];
            if with_dns {
                local.extend([MATCH_TCP, not_dport(53)]);
            }
            local.push(not_owned_by(kind, owner));
            self.output(local, Action::Return);
        }
        self.output([owned_by(kind, owner)], Action::Return);
    }

    fn groups(&mut self) {
        match &self.intent.groups {
            Groups::AllExcept(excluded) => {
                for group in excluded {
                    self.output([owned_by(OwnerKind::Group, group)], Action::Return);
                }
            }
            // One rule with all conditions: "none of these groups". An empty list leaves no condition and
            // captures nothing.
            Groups::Only(included) => {
                let matches: Vec<Match> = included
                    .iter()
                    .map(|group| not_owned_by(OwnerKind::Group, group))
                    .collect();
                self.output(matches, Action::Return);
            }
        }
    }

    fn destinations(&mut self) {
        let (intent, family) = (self.intent, self.family);
        match &intent.destinations {
            Destinations::All => {
                self.output([], Action::Jump(Chain::Redirect));
                for interface in &intent.virtual_interfaces {
                    self.virtual_machine([Match::In(interface.clone())]);
                }
            }
            Destinations::Ranges(ranges) => {
                for range in ranges.iter().filter(|range| family.has(**range)) {
                    for interface in &intent.virtual_interfaces {
                        self.virtual_machine([Match::In(interface.clone()), to(*range)]);
                    }
                    self.output([to(*range)], Action::Jump(Chain::Redirect));
                }
            }
        }
    }

    fn virtual_machine(&mut self, matches: impl Into<Vec<Match>>) {
        self.insert(
            Table::Nat,
            Chain::Prerouting,
            1,
            matches,
            Action::Jump(Chain::Redirect),
        );
    }
}
