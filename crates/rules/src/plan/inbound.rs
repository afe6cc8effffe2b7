//! Rules for connections from outside.

use super::{Builder, MATCH_TCP, dports, in_lo, not_to, out_lo, owned_by};
use crate::intent::{Inbound, Mode};
use crate::rule::{Action, Chain, Match, State, Table};
use crate::value::Ports;

/// Distinguishes the proxy's calls to its own pod, which must be captured, from the application's, which must not.
// istio: a constant there too (outboundMark); only used in TPROXY mode.
const SELF_CALL_MARK: u32 = 1338;

impl Builder<'_> {
    pub(super) fn inbound(&mut self) {
        let intent = self.intent;
        if intent.inbound == Inbound::Nothing {
            return;
        }
        let table = match intent.mode {
            Mode::Redirect => Table::Nat,
            Mode::Tproxy => {
                self.tproxy_chains();
                Table::Mangle
            }
        };
        self.append(
            table,
            Chain::Prerouting,
            [MATCH_TCP],
            Action::Jump(Chain::Inbound),
        );
        match &intent.inbound {
            Inbound::Nothing => {}
            Inbound::AllExcept(excluded) => {
                for ports in excluded {
                    self.append(table, Chain::Inbound, [MATCH_TCP, dports(*ports)], Action::Return);
                }
                self.capture_inbound(None);
            }
            Inbound::Only(included) => {
                for ports in included {
                    self.capture_inbound(Some(*ports));
                }
            }
        }
    }

    fn capture_inbound(&mut self, ports: Option<Ports>) {
        let mut matches = vec![MATCH_TCP];
        matches.extend(ports.map(dports));
        match self.intent.mode {
            Mode::Redirect => self.append(
                Table::Nat,
                Chain::Inbound,
                matches,
                Action::Jump(Chain::InRedirect),
            ),
            Mode::Tproxy => {
                let mut known = matches.clone();
                known.push(Match::State(State::Established));
                self.append(Table::Mangle, Chain::Inbound, known, Action::Jump(Chain::Divert));
                self.append(
                    Table::Mangle,
                    Chain::Inbound,
                    matches,
                    Action::Jump(Chain::Tproxy),
                );
            }
        }
    }

    fn tproxy_chains(&mut self) {
        let mark = self.intent.mark;
        self.append(Table::Mangle, Chain::Divert, [], Action::SetMark(mark));
        self.append(Table::Mangle, Chain::Divert, [], Action::Accept);
        let action = Action::Tproxy {
            port: self.intent.inbound_port,
            mark,
        };
        self.append(
            Table::Mangle,
            Chain::Tproxy,
            [not_to(self.loopback), MATCH_TCP],
            action,
        );
    }

    // The proxy connects to the application from the client's address, with the mark. The mark is saved with
    // the connection and put back on the application's answers, so that they are delivered here and not
    // sent to the client directly. The inserted rules keep marked packets, passthrough connections and the
    // application's own calls on `lo` from being captured (again).
    pub(super) fn tproxy_loops(&mut self) {
        let mark = self.intent.mark;
        let marked = Match::Mark { mark, not: false };
        self.append(
            Table::Mangle,
            Chain::Prerouting,
            [MATCH_TCP, marked.clone()],
            Action::SaveMark,
        );
        self.append(
            Table::Mangle,
            Chain::Output,
            [MATCH_TCP, out_lo(), marked.clone()],
            Action::Return,
        );
        for (kind, owner) in self.proxy_owners() {
            let matches = [not_to(self.loopback), MATCH_TCP, out_lo(), owned_by(kind, owner)];
            self.append(
                Table::Mangle,
                Chain::Output,
                matches,
                Action::SetMark(SELF_CALL_MARK),
            );
        }
        let answers = [MATCH_TCP, Match::ConnectionMark(mark)];
        self.append(Table::Mangle, Chain::Output, answers, Action::RestoreMark);
        self.insert(
            Table::Mangle,
            Chain::Inbound,
            1,
            [MATCH_TCP, marked],
            Action::Return,
        );
        let passthrough = [MATCH_TCP, Match::Source(self.passthrough), in_lo()];
        self.insert(Table::Mangle, Chain::Inbound, 2, passthrough, Action::Return);
        let application = [
            MATCH_TCP,
            in_lo(),
            Match::Mark {
                mark: SELF_CALL_MARK,
                not: true,
            },
        ];
        self.insert(Table::Mangle, Chain::Inbound, 3, application, Action::Return);
    }
}
