//! Applies a plan with nftables and netlink, and removes it.
//!
//! The rules are written in one transaction. The plan also needs the address `::6` on `lo` and, for TPROXY, a
//! routing rule and table; [`crate::install`] adds these first. Every item is looked up before it is added, so a
//! second run changes nothing. Removal touches only what remora installed: its table, routes and routing rules with
//! its protocol number, and `::6`.

use crate::ruleset::{GATE, Ruleset, TABLE, UnreadableRule, expressions, plan_of};
use remora_net::address::{self, InterfaceAddress};
use remora_net::netlink::{KernelError, Socket};
use remora_net::nft::{Batch, ChainSpec, Connection, TransactionError, Verdict};
use remora_net::route::{self, Family, MarkRule};
use remora_net::{link, netlink};
use remora_rules::switch::State;
use remora_rules::value::PASSTHROUGH_V6;
use remora_rules::{Plan, PolicyRoute};
use std::io;
use std::net::IpAddr;

/// Why rules could not be installed, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The netlink socket could not be opened.
    #[error("open a netlink socket")]
    Open(#[source] io::Error),
    /// The transaction failed; nothing was changed.
    #[error("change the capture rules")]
    Rules(#[source] TransactionError),
    /// The installed rules could not be read.
    #[error("read the capture rules")]
    Read(#[source] KernelError),
    /// The kernel refused a change of an address, route or routing rule.
    #[error("{what}")]
    Route {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        #[source]
        source: KernelError,
    },
    /// There is no loopback interface.
    #[error("find the loopback interface")]
    Loopback(#[source] io::Error),
    /// No rules are installed that could be read or switched.
    #[error("no nftables capture rules are installed in this network namespace")]
    NotInstalled,
}

impl ApplyError {
    /// Whether a privilege is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Rules(error) => error.source.is_permission(),
            Self::Read(error) | Self::Route { source: error, .. } => error.is_permission(),
            _ => false,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotInstalled => Some("install them with `remora istio-iptables`"),
            _ if self.is_permission() => Some(
                "the container needs the capability NET_ADMIN (securityContext.capabilities.add: [NET_ADMIN, NET_RAW])",
            ),
            Self::Rules(error) if error.source.errno == 2 || error.source.errno == 95 => {
                Some("the kernel may lack nf_tables, nft_redir, nft_ct or nft_tproxy; try --backend iptables")
            }
            _ => None,
        }
    }
}

/// Why the installed rules could not be turned back into a plan.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The rules cannot be read.
    #[error("read the rules of this network namespace")]
    Apply(#[from] ApplyError),
    /// A rule was not written by this version of remora.
    #[error("understand the rules of this network namespace")]
    Unreadable(#[from] UnreadableRule),
}

/// The installed state of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The comment of the table, which contains the fingerprint of the rules.
    pub comment: String,
    /// The state of the switch; `None` if another program changed the map to something unknown.
    pub state: Option<State>,
}

/// The capture rules of one network namespace, managed with nftables.
///
/// Bound to the namespace of the thread that opened it. A caller that will flip the switch again should keep it open.
#[derive(Debug)]
pub struct Nftables {
    connection: Connection,
}

impl Nftables {
    /// Connects to the namespace of the calling thread.
    pub fn open() -> Result<Self, ApplyError> {
        Connection::open()
            .map(|connection| Self { connection })
            .map_err(ApplyError::Open)
    }

    /// The installed state, if remora's table exists.
    pub fn installed(&mut self) -> Result<Option<Installed>, ApplyError> {
        let tables = self.connection.tables().map_err(ApplyError::Read)?;
        let Some(table) = tables.into_iter().find(|table| table.name == TABLE) else {
            return Ok(None);
        };
        let comment = table.comment.unwrap_or_default();
        match self.connection.elements(TABLE, GATE) {
            Ok(elements) => Ok(Some(Installed {
                comment,
                state: state_of(&elements),
            })),
            Err(error) if error.is_missing() => Ok(Some(Installed { comment, state: None })),
            Err(error) => Err(ApplyError::Read(error)),
        }
    }

    /// Installs these rules in one transaction, if remora's table does not exist; returns `false` if it does.
    ///
    /// Removes nothing, so that closing the connection does not have to wait until the kernel has freed removed rules:
    /// several milliseconds at the end of a short program.
    pub fn create(&mut self, ruleset: &Ruleset, state: State) -> Result<bool, ApplyError> {
        let mut batch = Batch::new(TABLE);
        batch.create_table(&ruleset.comment());
        add_content(&mut batch, ruleset, state);
        match self.connection.commit(batch) {
            Ok(()) => Ok(true),
            Err(error) if error.source.exists() => Ok(false),
            Err(error) => Err(ApplyError::Rules(error)),
        }
    }

    /// Replaces the content of remora's table by these rules, in one transaction.
    pub fn replace(&mut self, ruleset: &Ruleset, state: State) -> Result<(), ApplyError> {
        let mut batch = Batch::new(TABLE);
        // Added first, so that it can be deleted whether it was there or not.
        batch.add_table(None);
        batch.delete_table();
        batch.add_table(Some(&ruleset.comment()));
        add_content(&mut batch, ruleset, state);
        self.connection.commit(batch).map_err(ApplyError::Rules)
    }

    /// Flips the switch. Connections that exist stay where they are.
    pub fn switch(&mut self, state: State) -> Result<(), ApplyError> {
        let mut batch = Batch::new(TABLE);
        batch.clear_map(GATE);
        batch.add_elements(GATE, &elements(state));
        self.connection.commit(batch).map_err(|error| {
            if error.source.is_missing() {
                ApplyError::NotInstalled
            } else {
                ApplyError::Rules(error)
            }
        })
    }

    /// Removes remora's table.
    pub fn remove(&mut self) -> Result<(), ApplyError> {
        let mut batch = Batch::new(TABLE);
        // Added first, so that it can be deleted whether it was there or not.
        batch.add_table(None);
        batch.delete_table();
        self.connection.commit(batch).map_err(ApplyError::Rules)
    }

    /// The plan that corresponds to the installed rules.
    pub fn plan(&mut self) -> Result<Plan, LiveError> {
        let rules = self.rules()?;
        if rules.is_empty() {
            return Err(ApplyError::NotInstalled.into());
        }
        Ok(plan_of(&rules)?)
    }

    /// Whether `iptables-nft` left chains of remora or Istio in this namespace.
    pub(crate) fn has_iptables_chains(&mut self) -> Result<bool, ApplyError> {
        let chains = self.connection.all_chains().map_err(ApplyError::Read)?;
        Ok(chains
            .iter()
            .any(|(table, chain)| table != TABLE && chain.starts_with("ISTIO_")))
    }

    /// The installed rules, chain by chain.
    pub(crate) fn rules(&mut self) -> Result<Vec<remora_net::nft::ListedRule>, ApplyError> {
        self.connection.rules(TABLE).map_err(ApplyError::Read)
    }
}

fn add_content(batch: &mut Batch, ruleset: &Ruleset, state: State) {
    for chain in &ruleset.chains {
        batch.add_chain(&ChainSpec {
            name: &chain.name,
            hook: chain.hook,
        });
    }
    batch.add_verdict_map(GATE);
    batch.add_elements(GATE, &elements(state));
    for chain in &ruleset.chains {
        for rule in &chain.rules {
            batch.add_rule(&chain.name, &expressions(rule));
        }
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;

// An empty map means captured: a program that empties the map must not disable capture.
fn elements(state: State) -> Vec<(u8, Verdict)> {
    let verdict = match state {
        State::Open => Verdict::Accept,
        State::Hold => Verdict::Drop,
        State::On => Verdict::Continue,
        State::Closed => return Vec::new(),
    };
    vec![(TCP, verdict.clone()), (UDP, verdict)]
}

fn state_of(found: &[(u8, Verdict)]) -> Option<State> {
    State::ALL.into_iter().find(|state| {
        let wanted = elements(*state);
        wanted.len() == found.len() && wanted.iter().all(|element| found.contains(element))
    })
}

fn families(plan: &Plan) -> &'static [Family] {
    if plan.ipv6.is_some() {
        &[Family::V4, Family::V6]
    } else {
        &[Family::V4]
    }
}

fn route_error(what: &'static str) -> impl Fn(KernelError) -> ApplyError {
    move |source| ApplyError::Route { what, source }
}

/// Adds the address, routes and routing rules that a plan needs, where they are missing.
pub fn add_routes(plan: &Plan) -> Result<(), ApplyError> {
    let mut socket = Socket::open(netlink::Protocol::Route).map_err(ApplyError::Open)?;
    let loopback = link::index("lo").map_err(ApplyError::Loopback)?;
    if plan.ipv6.is_some() {
        let wanted = InterfaceAddress {
            interface: loopback,
            address: IpAddr::V6(PASSTHROUGH_V6),
            prefix: 128,
        };
        match address::add(&mut socket, wanted) {
            Err(error) if !error.exists() => Err(route_error("add the address ::6 to lo")(error))?,
            _ => {}
        }
    }
    let Some(PolicyRoute { mark, table }) = plan.route else {
        return Ok(());
    };
    for family in families(plan) {
        match route::add_local_default(&mut socket, *family, table, loopback) {
            Err(error) if !error.exists() => {
                Err(route_error("add the route that delivers marked packets")(error))?;
            }
            _ => {}
        }
        // istio: the kernel takes the same rule any number of times, and Istio's command adds one per run.
        let there = route::mark_rules(&mut socket, *family).map_err(route_error("read the routing rules"))?;
        if !there.iter().any(|rule| rule.mark == mark && rule.table == table) {
            let rule = MarkRule {
                family: *family,
                mark,
                table,
                priority: RULE_PRIORITY,
                protocol: route::ROUTE_PROTOCOL,
            };
            route::add_mark_rule(&mut socket, rule)
                .map_err(route_error("add the routing rule for marked packets"))?;
        }
    }
    Ok(())
}

/// Priority of the routing rule: before the rule for the main table.
const RULE_PRIORITY: u32 = 32_765;

/// Removes the address, routes and routing rules that remora added, except those that a plan still needs.
pub fn remove_routes(keep: Option<&Plan>) -> Result<(), ApplyError> {
    let mut socket = Socket::open(netlink::Protocol::Route).map_err(ApplyError::Open)?;
    let loopback = link::index("lo").map_err(ApplyError::Loopback)?;
    if keep.is_none_or(|plan| plan.ipv6.is_none()) {
        let wanted = InterfaceAddress {
            interface: loopback,
            address: IpAddr::V6(PASSTHROUGH_V6),
            prefix: 128,
        };
        let there = address::list(&mut socket).map_err(route_error("read the addresses"))?;
        if there.contains(&wanted) {
            ignore_missing(address::delete(&mut socket, wanted))
                .map_err(route_error("remove the address ::6 from lo"))?;
        }
    }
    let kept = |family: Family| {
        keep.filter(|plan| families(plan).contains(&family))
            .and_then(|plan| plan.route)
    };
    for family in [Family::V4, Family::V6] {
        let kept = kept(family);
        let rules = route::mark_rules(&mut socket, family).map_err(route_error("read the routing rules"))?;
        let stale = |rule: &&MarkRule| {
            kept != Some(PolicyRoute {
                mark: rule.mark,
                table: rule.table,
            })
        };
        for rule in rules
            .iter()
            .filter(|rule| rule.protocol == route::ROUTE_PROTOCOL)
            .filter(stale)
        {
            ignore_missing(route::delete_mark_rule(&mut socket, *rule))
                .map_err(route_error("remove a routing rule"))?;
        }
        let routes = route::routes(&mut socket, family).map_err(route_error("read the routes"))?;
        let stale = |table: u32| kept.is_none_or(|route| route.table != table);
        for route in routes
            .iter()
            .filter(|route| route.protocol == route::ROUTE_PROTOCOL && route.local && stale(route.table))
        {
            ignore_missing(route::delete_local_default(
                &mut socket,
                family,
                route.table,
                loopback,
            ))
            .map_err(route_error("remove a route"))?;
        }
    }
    Ok(())
}

/// Ignores that an object does not exist: another program may have removed it after it was listed.
fn ignore_missing(result: Result<(), KernelError>) -> Result<(), KernelError> {
    match result {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}
