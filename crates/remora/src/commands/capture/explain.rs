//! `remora capture explain`: which rule decides about a packet.

use super::{Source, StateName};
use anyhow::Context;
use clap::{Args, ValueEnum};
use remora_rules::explain::{ConnectionState, Decision, Direction, Evaluator, Fate, Packet, Step};
use remora_rules::options::InitialState;
use remora_rules::rule::{Protocol, Rule};
use remora_rules::switch::State;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A connection made in the pod, to this address and port
    #[arg(
        long,
        value_name = "ADDR:PORT",
        required_unless_present = "from",
        conflicts_with = "port"
    )]
    to: Option<SocketAddr>,
    /// A connection from outside, from this address and port; with --to: the source of a connection made here
    #[arg(long, value_name = "ADDR:PORT")]
    from: Option<SocketAddr>,
    /// The port of the pod that a connection from outside is for
    #[arg(long, value_name = "PORT", requires = "from")]
    port: Option<u16>,
    /// The user that makes the connection
    #[arg(long, value_name = "UID", default_value_t = 1000)]
    uid: u32,
    /// The group that makes the connection [default: as --uid]
    #[arg(long, value_name = "GID")]
    gid: Option<u32>,
    /// TCP or UDP
    #[arg(long, value_enum, default_value_t = ProtocolName::Tcp)]
    protocol: ProtocolName,
    /// The interface it arrives on or leaves by [default: lo for loopback addresses, else eth0]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Explain the rules that are installed in this network namespace
    #[arg(long)]
    live: bool,
    /// Suppose that the switch is in this state [default: as it is, else closed]
    #[arg(long, value_enum)]
    suppose: Option<StateName>,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProtocolName {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let (plan, state) = if args.live {
        args.source.live()?
    } else {
        let (settings, plan) = args.source.plan()?;
        let state = match settings.state {
            InitialState::Set(state) => state,
            InitialState::Keep => State::Closed,
        };
        (plan, state)
    };
    let state = args.suppose.map_or(state, State::from);
    let packet = args.packet()?;
    let evaluator = Evaluator::new(&plan, state);
    let (decision, trail) = evaluator.explain(&packet);
    let text = match args.format {
        Format::Text => text(&packet, &decision, &trail, state),
        Format::Json => format!("{:#}\n", json(&packet, &decision, &trail, state)),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

impl ExplainArgs {
    fn packet(&self) -> anyhow::Result<Packet<'_>> {
        let any = |like: SocketAddr| -> IpAddr {
            if like.is_ipv4() {
                IpAddr::from([0, 0, 0, 0])
            } else {
                IpAddr::from([0u16; 8])
            }
        };
        let (outward, source, destination) = match (self.to, self.from) {
            (Some(to), from) => (true, from.unwrap_or_else(|| SocketAddr::new(any(to), 0)), to),
            (None, Some(from)) => {
                let port = self
                    .port
                    .context("--from needs --port (a connection from outside) or --to")?;
                (false, from, SocketAddr::new(any(from), port))
            }
            (None, None) => anyhow::bail!("say --to, or --from with --port"),
        };
        let local = outward && destination.ip().is_loopback();
        let interface = self
            .interface
            .as_deref()
            .unwrap_or(if local { "lo" } else { "eth0" });
        Ok(Packet {
            direction: if outward {
                Direction::Out { interface }
            } else {
                Direction::In { interface }
            },
            protocol: match self.protocol {
                ProtocolName::Tcp => Protocol::Tcp,
                ProtocolName::Udp => Protocol::Udp,
            },
            source,
            destination,
            owner: outward.then_some((self.uid, self.gid.unwrap_or(self.uid))),
            mark: 0,
            connection_mark: 0,
            state: ConnectionState::New,
        })
    }
}

fn verdict(fate: Fate) -> String {
    match fate {
        Fate::Untouched => "not captured: it goes where it was going".into(),
        Fate::Redirected(port) => format!("captured: it goes to the proxy's port {port}"),
        Fate::Transparent(port) => {
            format!("captured: the transparent listener on port {port} gets it unchanged")
        }
        Fate::Held => "held: it waits until the switch is flipped".into(),
        Fate::Dropped => "dropped".into(),
    }
}

fn place(rule: &Rule) -> String {
    format!("{} {}", rule.table.name(), rule.chain.name())
}

fn text(packet: &Packet<'_>, decision: &Decision<'_>, trail: &[Step<'_>], state: State) -> String {
    let mut out = String::new();
    let way = match packet.direction {
        Direction::Out { interface } => format!("to {} by {interface}", packet.destination),
        Direction::In { interface } => {
            format!(
                "from {} on {interface} to port {}",
                packet.source,
                packet.destination.port()
            )
        }
    };
    // A String cannot fail to be written to.
    let _ = writeln!(
        out,
        "{} {way}: {}",
        packet.protocol.name(),
        verdict(decision.fate)
    );
    match decision.rule {
        Some(rule) => {
            let _ = writeln!(out, "decided by: {}: {rule}", place(rule));
        }
        None => out.push_str("decided by: no rule\n"),
    }
    if !state.captures() {
        let _ = writeln!(out, "switch: {state}");
    }
    for step in trail {
        let _ = writeln!(out, "  {} {}: {}", place(step.rule), step.place, step.rule);
    }
    out
}

fn json(packet: &Packet<'_>, decision: &Decision<'_>, trail: &[Step<'_>], state: State) -> Value {
    let (fate, port) = match decision.fate {
        Fate::Untouched => ("untouched", None),
        Fate::Redirected(port) => ("redirected", Some(port)),
        Fate::Transparent(port) => ("transparent", Some(port)),
        Fate::Held => ("held", None),
        Fate::Dropped => ("dropped", None),
    };
    let one = |rule: &Rule| json!({"table": rule.table.name(), "chain": rule.chain.name(), "rule": rule.to_string()});
    let trail: Vec<Value> = trail
        .iter()
        .map(|step| {
            let mut value = one(step.rule);
            value["place"] = json!(step.place);
            value
        })
        .collect();
    json!({
        "protocol": packet.protocol.name(),
        "source": packet.source.to_string(),
        "destination": packet.destination.to_string(),
        "switch": state.name(),
        "fate": fate,
        "port": port,
        "decidedBy": decision.rule.map(one),
        "mark": decision.mark,
        "zone": decision.zone,
        "trail": trail,
    })
}
