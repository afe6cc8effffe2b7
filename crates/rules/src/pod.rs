//! Reads the capture options from a pod's manifest.
//!
//! The rules of a pod with an init container are those of its command line and environment. In any other pod of a mesh
//! the node installs the rules (CNI), and reads them from annotations. The result is options with their origin, to be
//! read by [`crate::options::Settings`] like any others.

use crate::dialect::Dialect;
use crate::options::{ArgvError, Environment, Given, Name, Origin, parse_argv, set_argument};
use remora_pod::spec::{Container, PodView};

/// Why a pod's options cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// The init container's command line cannot be read.
    #[error("arguments of container {container}: {error}")]
    Arguments {
        /// The container.
        container: String,
        /// The parse error.
        error: ArgvError,
    },
}

/// What installs the rules of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapturedBy {
    /// The init container with this name.
    InitContainer(String),
    /// The node, by the pod's annotations (CNI).
    Node,
}

/// The options of a pod, and which component installs the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOptions {
    /// What installs the rules.
    pub by: CapturedBy,
    /// Flags or annotations.
    pub given: Vec<Given>,
    /// The environment variables of the init container.
    pub environment: Environment,
}

/// The options of a pod: from its init container if it has one, else from its annotations.
pub fn options(pod: &PodView, dialect: &'static Dialect) -> Result<PodOptions, PodError> {
    for container in &pod.containers[pod.init_slots()] {
        let Some(arguments) = arguments(container, dialect) else {
            continue;
        };
        let given = if dialect.program.is_some() {
            parse_argv(arguments).map_err(|error| PodError::Arguments {
                container: container.name.clone(),
                error,
            })?
        } else {
            with_defaults(translate_flags(arguments, dialect), dialect)
        };
        return Ok(PodOptions {
            by: CapturedBy::InitContainer(container.name.clone()),
            given,
            environment: container.env.iter().cloned().collect(),
        });
    }
    Ok(annotation_options(pod, dialect))
}

/// The options of a pod's annotations. The arguments of an init container are ignored.
pub fn annotation_options(pod: &PodView, dialect: &'static Dialect) -> PodOptions {
    let init = pod.containers[pod.init_slots()]
        .iter()
        .find(|c| dialect.capture.contains(&c.name.as_str()));
    let mut given = Vec::new();
    for annotation in dialect.annotations {
        let value = pod.annotation(annotation.key);
        // istio: the CNI plugin excludes this outbound port by default, the injector's init container does not.
        let default = annotation
            .default
            .filter(|_| init.is_none() || annotation.option != Name::IstioLocalOutboundPortsExclude);
        let Some(text) = value.or(default) else { continue };
        given.push(Given {
            option: annotation.option,
            value: istio_notation(text, annotation.option, dialect),
            origin: value.map_or(Origin::Default, |_| Origin::Annotation(annotation.key)),
        });
    }
    let proxy = pod.containers.iter().find(|c| c.name == dialect.proxy);
    given.extend(proxy_container_options(proxy, dialect));
    PodOptions {
        by: init.map_or(CapturedBy::Node, |c| CapturedBy::InitContainer(c.name.clone())),
        given: with_defaults(given, dialect),
        environment: Environment::new(),
    }
}

/// The words of a container's command line that are capture options, if it installs the rules.
pub fn arguments<'a>(container: &'a Container, dialect: &Dialect) -> Option<&'a [String]> {
    let name = container.name.as_str();
    let words = container.command.as_slice();
    // This container only validates the rules that the node installed.
    if dialect.validation.contains(&name) {
        return None;
    }
    let begin = match dialect.program {
        Some(program) => {
            let is_program = |word: &String| word.rsplit('/').next() == Some(program);
            words.iter().take(3).position(is_program)? + 1
        }
        None if dialect.capture.contains(&name) && !words.is_empty() => 0,
        None => return None,
    };
    // The words after `--` are a command to run afterwards: `istio-iptables FLAGS -- proxy sidecar …`.
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.get(begin..end)
}

/// Changes the value of an option in a `command` or `args` list, if the list contains the options.
pub fn change_arguments(
    words: &[String],
    dialect: &Dialect,
    option: Name,
    change: impl FnOnce(&str) -> String,
) -> Option<Vec<String>> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let Some(program) = dialect.program else {
        return change_foreign(words, dialect, option, change);
    };
    let is_program = |word: &String| word.rsplit('/').next() == Some(program);
    let begin = words.iter().take(3).position(is_program).map_or(0, |at| at + 1);
    let flags = words.get(begin..end)?;
    let given = parse_argv(flags).ok()?;
    if begin == 0 && given.is_empty() {
        return None;
    }
    let old = given.iter().rfind(|g| g.option == option);
    let value = change(old.map_or("", |g| g.value.as_str()));
    let flags = set_argument(flags, option, &value).ok()?;
    Some([&words[..begin], &flags, &words[end..]].concat())
}

fn change_foreign(
    words: &[String],
    dialect: &Dialect,
    option: Name,
    change: impl FnOnce(&str) -> String,
) -> Option<Vec<String>> {
    let flag_of = |word: &String| {
        let name = word.split('=').next().unwrap_or_default().to_owned();
        dialect
            .flags
            .iter()
            .find(|(flag, known)| *known == option && *flag == name)
    };
    let mut words = words.to_vec();
    let Some(at) = words.iter().rposition(|word| flag_of(word).is_some()) else {
        let (flag, _) = dialect.flags.iter().find(|(_, known)| *known == option)?;
        words.extend([(*flag).to_owned(), change("")]);
        return Some(words);
    };
    if let Some((flag, value)) = words[at].clone().split_once('=') {
        words[at] = format!("{flag}={}", change(value));
    } else {
        let value = words.get_mut(at + 1)?;
        *value = change(value);
    }
    Some(words)
}

/// Translates flags of a mesh that is not Istio. Unknown flags do not concern the rules and are skipped.
fn translate_flags(words: &[String], dialect: &Dialect) -> Vec<Given> {
    let mut given = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (flag, attached) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), None),
        };
        let Some((_, option)) = dialect.flags.iter().find(|(name, _)| *name == flag) else {
            continue;
        };
        if let Some(value) = attached.or_else(|| rest.next().map(String::as_str)) {
            given.push(Given {
                option: *option,
                value: istio_notation(value, *option, dialect),
                origin: Origin::Flag,
            });
        }
    }
    given
}

/// A value in Istio's notation: other meshes write port ranges with a dash.
fn istio_notation(value: &str, option: Name, dialect: &Dialect) -> String {
    let ports = matches!(
        option,
        Name::IstioLocalExcludePorts | Name::IstioLocalOutboundPortsExclude
    );
    if ports && dialect.program.is_none() {
        value.replace('-', ":")
    } else {
        value.to_owned()
    }
}

/// Adds the mesh's defaults for options that neither a flag nor an annotation sets.
fn with_defaults(mut given: Vec<Given>, dialect: &Dialect) -> Vec<Given> {
    for (option, value) in dialect.defaults {
        if !given.iter().any(|g| g.option == *option) {
            given.push(default(*option, (*value).to_owned()));
        }
    }
    if dialect.program.is_none() && !given.iter().any(|g| g.option == Name::ProxyUid) {
        given.push(default(Name::ProxyUid, dialect.uid.to_string()));
    }
    let is_inbound = |g: &&mut Given| g.option == Name::IstioLocalExcludePorts;
    match given.iter_mut().rfind(is_inbound) {
        Some(inbound) => inbound.value = with_own_ports(&inbound.value, dialect),
        None => given.push(default(Name::IstioLocalExcludePorts, with_own_ports("", dialect))),
    }
    given
}

const fn default(option: Name, value: String) -> Given {
    Given {
        option,
        value,
        origin: Origin::Default,
    }
}

/// Adds the proxy's own ports to a list of excluded ports: they are never captured.
fn with_own_ports(list: &str, dialect: &Dialect) -> String {
    let mut ports: Vec<String> = Vec::new();
    let own = dialect.own_ports.iter().map(u16::to_string);
    for port in list.split(',').map(str::to_owned).chain(own) {
        if !port.is_empty() && !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports.join(",")
}

/// The options of the proxy's container: its user and group, and some of its environment.
fn proxy_container_options(container: Option<&Container>, dialect: &Dialect) -> Vec<Given> {
    let mut given = Vec::new();
    let own = container.map_or((None, None), |c| c.own_ids);
    let ids = [
        (own.0, Name::ProxyUid, Some(dialect.uid)),
        (own.1, Name::ProxyGid, dialect.gid),
    ];
    for (own, option, usual) in ids {
        // istio: 0 counts as not set.
        let own = own.and_then(|id| u32::try_from(id).ok()).filter(|id| *id != 0);
        if let Some(id) = usual.map(|usual| own.unwrap_or(usual)) {
            given.push(Given {
                option,
                value: id.to_string(),
                origin: Origin::Pod("securityContext of the proxy's container"),
            });
        }
    }
    let variables = [
        ("ISTIO_META_DNS_CAPTURE", Name::RedirectDns),
        ("ISTIO_META_DNS_CAPTURE", Name::CaptureAllDns),
        ("ISTIO_DUAL_STACK", Name::DualStack),
        ("INVALID_DROP", Name::DropInvalid),
    ];
    for (name, option) in variables {
        let value = container
            .and_then(|c| c.env(name))
            .filter(|value| !value.is_empty());
        given.extend(value.map(|value| Given {
            option,
            value: value.to_owned(),
            origin: Origin::Pod("environment of the proxy's container"),
        }));
    }
    given
}

#[cfg(test)]
mod tests;
