//! The capture rules a pod asks for, from annotations and from the arguments of its capture container.

use super::Mesh;
use crate::network::{Capture, Range};
use crate::view::{Container, PodView};

/// The rules in force in this pod once capture has begun.
pub(super) fn of(view: &PodView, mesh: &Mesh, proxy: Option<&Container>) -> Capture {
    let own = proxy.and_then(|p| p.uid).filter(|u| *u != 0).unwrap_or(mesh.uid);
    let mut rules = Capture {
        uids: vec![own],
        gids: mesh.gid.into_iter().collect(),
        exclude_inbound: mesh.own_ports.to_vec(),
        dns: proxy.is_some_and(captures_dns),
        ..Capture::default()
    };
    let names = &mesh.annotations;
    let annotation = |name: Option<&str>| name.and_then(|n| view.annotation(n)).map(str::to_owned);
    rules
        .exclude_ports
        .extend(ports(annotation(Some(names.exclude_ports))));
    rules.include_ports.extend(ports(annotation(names.include_ports)));
    rules
        .exclude_ranges
        .extend(ranges(annotation(names.exclude_ranges)));
    rules
        .exclude_inbound
        .extend(ports(annotation(Some(names.exclude_inbound))));
    rules.include_ranges = listed(annotation(names.include_ranges)).map(|text| ranges(Some(text)));
    rules.include_inbound = listed(annotation(names.include_inbound)).map(|text| ports(Some(text)));
    let by = view
        .containers
        .iter()
        .find(|c| mesh.capture.contains(&c.name.as_str()));
    if let Some(words) = by.map(|by| by.command.as_slice()).or_else(|| own_words(proxy?)) {
        read_arguments(&mut rules, words);
    }
    rules
}

/// The capture flags of a proxy that captures the traffic itself: `istio-iptables FLAGS -- proxy sidecar …`.
pub(super) fn own_words(proxy: &Container) -> Option<&[String]> {
    let words = &proxy.command;
    let is_capture = |word: &String| word.rsplit('/').next() == Some("istio-iptables");
    let begin = words.iter().take(3).position(is_capture)? + 1;
    let end = words.iter().position(|word| word == "--")?;
    words.get(begin..end)
}

/// `*` and nothing both mean everything.
fn listed(text: Option<String>) -> Option<String> {
    text.filter(|t| t.trim() != "*")
}

// istio: `-o` excludes outbound ports, `-x` outbound ranges, `-i` and `-b` list what is captured; linkerd and kuma
// spell it out.
fn read_arguments(rules: &mut Capture, words: &[String]) {
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), rest.peek().map(|v| (*v).clone())),
        };
        match flag {
            "-o"
            | "--istio-local-exclude-ports"
            | "--outbound-ports-to-ignore"
            | "--exclude-outbound-ports" => {
                rules.exclude_ports.extend(ports(value));
            }
            "-x" | "--istio-service-exclude-cidr" | "--exclude-outbound-ips" => {
                rules.exclude_ranges.extend(ranges(value));
            }
            "-i" | "--istio-service-cidr" if rules.include_ranges.is_none() => {
                rules.include_ranges = listed(value).map(|text| ranges(Some(text)));
            }
            "-u" | "--proxy-uid" => replace(&mut rules.uids, value),
            "-g" | "--proxy-gid" => replace(&mut rules.gids, value),
            "--redirect-dns" | "--capture-all-dns" => rules.dns = true,
            _ => {}
        }
    }
    rules.exclude_ports.sort_unstable();
    rules.exclude_ports.dedup();
}

/// A list of users or groups, when there is one.
fn replace(list: &mut Vec<i64>, value: Option<String>) {
    let given: Vec<i64> = words(value).iter().filter_map(|w| w.parse().ok()).collect();
    if !given.is_empty() {
        *list = given;
    }
}

fn captures_dns(proxy: &Container) -> bool {
    proxy.env("ISTIO_META_DNS_CAPTURE") == Some("true")
}

fn words(text: Option<String>) -> Vec<String> {
    let text = text.unwrap_or_default();
    text.split(',')
        .map(|w| w.trim().to_owned())
        .filter(|w| !w.is_empty())
        .collect()
}

/// Single ports, and ranges such as `4222-4224` as linkerd allows them.
fn ports(text: Option<String>) -> Vec<u16> {
    let mut out = Vec::new();
    for word in words(text) {
        match word.split_once('-') {
            Some((low, high)) => {
                if let (Ok(low), Ok(high)) = (low.parse::<u16>(), high.parse::<u16>()) {
                    out.extend(low..=high);
                }
            }
            None => out.extend(word.parse::<u16>().ok()),
        }
    }
    out
}

fn ranges(text: Option<String>) -> Vec<Range> {
    words(text).iter().filter_map(|w| w.parse().ok()).collect()
}
