//! One rule for one kind of value.

use crate::prometheus::parse_bool;
use remora_pod::quantity::Quantity;
use remora_pod::{cidr, names, ports, yaml};
use serde_json::Value;

/// What a value must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    Bool,
    OneOf(&'static [&'static str]),
    Quantity,
    Count,
    PortOrZero,
    Ports,
    PortsOrAll,
    Cidrs,
    CidrsOrAll,
    Interfaces,
    LogLevels,
    Tag,
    Image,
    ObjectName,
    TemplateNames,
    ContainerNames,
    JsonMap,
    JsonVolumes,
}

impl Rule {
    /// `Err` says what would be right.
    pub(super) fn judge(self, text: &str) -> Result<(), String> {
        match self {
            Self::Bool => wanted(parse_bool(text).is_some(), "true or false"),
            Self::OneOf(all) => wanted(all.contains(&text), &format!("one of {}", all.join(", "))),
            Self::Quantity => text.parse::<Quantity>().map(|_| ()).map_err(|e| e.to_string()),
            Self::Count => wanted(text.parse::<u32>().is_ok(), "a number from 0 to 4294967295"),
            Self::PortOrZero => wanted(text.parse::<u16>().is_ok(), "a port from 0 to 65535"),
            Self::Ports => judge_ports(text, false),
            Self::PortsOrAll => judge_ports(text, true),
            Self::Cidrs => judge_cidrs(text, false),
            Self::CidrsOrAll => judge_cidrs(text, true),
            Self::Interfaces => items(
                text,
                is_interface,
                "interface names: a letter, then letters, digits, _ . -, at most 15",
            ),
            Self::LogLevels => items(
                text,
                is_log_level,
                "levels such as \"warning\" or \"http:debug,misc:error\"",
            ),
            Self::Tag => wanted(
                text.len() <= 128 && text.bytes().all(is_tag_byte),
                "a tag suffix of letters, digits, _ . -",
            ),
            Self::Image => wanted(
                text.len() <= 512 && text.bytes().all(is_image_byte),
                "an image reference",
            ),
            Self::ObjectName => wanted(names::dns_subdomain(text).is_ok(), "the name of a ConfigMap"),
            Self::TemplateNames => items(text, is_template_name, "template names, separated by commas"),
            Self::ContainerNames => items(text, is_dns_label, "container names, separated by commas"),
            Self::JsonMap => json(text).and_then(|v| wanted(v.is_object(), "a JSON object")),
            Self::JsonVolumes => json(text).and_then(|v| judge_volumes(&v)),
        }
    }
}

fn wanted(holds: bool, what: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(format!("{what} is wanted"))
    }
}

/// Every item of a comma list passes; spaces around items are allowed, empty items are not.
fn items(text: &str, is_good: impl Fn(&str) -> bool, what: &str) -> Result<(), String> {
    match text
        .split(',')
        .map(|item| item.trim_matches(' '))
        .find(|item| !is_good(item))
    {
        Some(bad) => Err(format!(
            "{:?} is not right: {what}",
            bad.chars().take(60).collect::<String>()
        )),
        None => Ok(()),
    }
}

fn judge_ports(text: &str, wildcard: bool) -> Result<(), String> {
    ports::parse(text, ports::Allow { wildcard, zero: true })
        .map(|_| ())
        .map_err(|e| e.to_string())
}

fn judge_cidrs(text: &str, wildcard: bool) -> Result<(), String> {
    cidr::parse(text, wildcard).map(|_| ()).map_err(|e| e.to_string())
}

fn is_interface(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(is_tag_byte)
}

fn is_dns_label(text: &str) -> bool {
    names::dns_label(text).is_ok()
}

fn is_image_byte(b: u8) -> bool {
    is_tag_byte(b) || matches!(b, b'/' | b':' | b'@')
}

fn is_tag_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')
}

fn is_template_name(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.bytes().all(is_tag_byte)
}

fn is_log_level(text: &str) -> bool {
    text.len() <= 256
        && text
            .bytes()
            .all(|b| is_tag_byte(b) || matches!(b, b':' | b'/' | b'+'))
}

fn json(text: &str) -> Result<Value, String> {
    match yaml::parse_str(text) {
        Ok(document) => Ok(document.map(|d| d.value).unwrap_or_default()),
        Err(error) => Err(format!("JSON is wanted: {error}")),
    }
}

/// A map keyed by volume name, or a list of objects with names.
fn judge_volumes(value: &Value) -> Result<(), String> {
    let what = "a JSON object keyed by volume name, whose values are objects,";
    match value {
        Value::Object(map) => wanted(
            map.iter()
                .all(|(key, entry)| entry.is_object() && is_dns_label(key)),
            what,
        ),
        Value::Array(list) => wanted(
            list.iter().all(|entry| {
                entry
                    .get("name")
                    .and_then(Value::as_str)
                    .is_some_and(is_dns_label)
            }),
            what,
        ),
        Value::Null => Ok(()),
        _ => wanted(false, what),
    }
}
