//! The command line of `proxy`, as Istio's injection templates of all versions write it.
//!
//! Unknown flags are accepted with a warning, because the pods of newer and older templates must still start. Values are
//! not validated here.
// istio: cobra with unknown flags allowed; `--flag value` and `--flag=value` for texts, `--flag` and `--flag=false`
// for switches.

use std::collections::BTreeMap;

/// Flags with a value: current ones, those of Istio 1.5, and remora's own.
const TEXTS: &[&str] = &[
    "applicationPorts",
    "binaryPath",
    "concurrency",
    "configPath",
    "connectTimeout",
    "controlPlaneAuthPolicy",
    "customConfigFile",
    "datadogAgentAddress",
    "discoveryAddress",
    "dnsRefreshRate",
    "domain",
    "drainDuration",
    "envoyAccessLogService",
    "envoyMetricsService",
    "id",
    "ip",
    "lightstepAccessToken",
    "lightstepAddress",
    "lightstepCacertPath",
    "log_caller",
    "log_output_level",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
    "meshConfig",
    "mixerIdentity",
    "outlierLogPath",
    "parentShutdownDuration",
    "pilotIdentity",
    "proxy",
    "proxyAdminPort",
    "proxyComponentLogLevel",
    "proxyLogLevel",
    "serviceCluster",
    "serviceregistry",
    "statsdUdpAddress",
    "statusPort",
    "stsPort",
    "templateFile",
    "tokenManagerPlugin",
    "trust-domain",
    "zipkinAddress",
];

/// Boolean flags.
const SWITCHES: &[&str] = &[
    "controlPlaneBootstrap",
    "disableInternalTelemetry",
    "lightstepSecure",
    "log_as_json",
    "profiling",
];

/// The parsed command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// The first argument that is not a flag: `sidecar`.
    pub role: Option<String>,
    values: BTreeMap<String, String>,
    /// Unknown arguments, unchanged.
    pub unknown: Vec<String>,
}

/// A flag has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{0} needs a value")]
pub struct MissingValue(pub String);

impl Flags {
    /// Parses the arguments after `proxy`.
    pub fn parse(words: &[String]) -> Result<Self, MissingValue> {
        let mut flags = Self::default();
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                if word.starts_with('-') && word.len() > 1 {
                    flags.unknown.push(word.to_owned());
                } else if flags.role.is_none() {
                    flags.role = Some(word.to_owned());
                } else {
                    flags.unknown.push(word.to_owned());
                }
                continue;
            };
            let (name, attached) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, None),
            };
            let value = if TEXTS.contains(&name) {
                let Some(value) = attached.or_else(|| words.next()) else {
                    return Err(MissingValue(name.to_owned()));
                };
                value
            } else if SWITCHES.contains(&name) {
                attached.unwrap_or("true")
            } else {
                flags.unknown.push(word.to_owned());
                if attached.is_none() {
                    // Most likely the value of the unknown flag.
                    words.next_if(|next| !next.starts_with('-'));
                }
                continue;
            };
            flags.values.insert(name.to_owned(), value.to_owned());
        }
        Ok(flags)
    }

    /// The value of a flag; an empty one counts as not given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{Flags, MissingValue};

    fn parse(line: &str) -> Result<Flags, MissingValue> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Flags::parse(&words)
    }

    #[test]
    fn todays_line_of_the_template_is_understood() {
        let flags = parse(
            "sidecar --domain shop.svc.cluster.local --proxyLogLevel=warning \
             --proxyComponentLogLevel=misc:error --log_output_level=default:info --log_as_json",
        )
        .unwrap();
        assert_eq!(flags.role.as_deref(), Some("sidecar"));
        assert_eq!(flags.get("domain"), Some("shop.svc.cluster.local"));
        assert_eq!(flags.get("log_as_json"), Some("true"));
        assert!(flags.unknown.is_empty());
    }

    #[test]
    fn the_line_of_1_5_is_understood() {
        let flags = parse(
            "sidecar --domain shop.svc.cluster.local --configPath /etc/istio/proxy --binaryPath \
             /usr/local/bin/envoy --serviceCluster web.shop --drainDuration 45s --parentShutdownDuration 1m0s \
             --discoveryAddress istio-pilot.istio-system:15010 --zipkinAddress zipkin.istio-system:9411 \
             --proxyLogLevel=warning --proxyComponentLogLevel=misc:error --connectTimeout 10s --proxyAdminPort 15000 \
             --concurrency 2 --controlPlaneAuthPolicy NONE --dnsRefreshRate 300s --statusPort 15020 \
             --trust-domain=cluster.local --controlPlaneBootstrap=false",
        )
        .unwrap();
        assert!(flags.unknown.is_empty(), "{:?}", flags.unknown);
        assert_eq!(
            flags.get("discoveryAddress"),
            Some("istio-pilot.istio-system:15010")
        );
        assert_eq!(flags.get("controlPlaneBootstrap"), Some("false"));
    }

    #[test]
    fn what_is_not_known_is_kept_apart_with_its_value() {
        let flags = parse("--future x sidecar --more=1 --last -z --statusPort 15020 word").unwrap();
        assert_eq!(flags.role.as_deref(), Some("sidecar"));
        assert_eq!(flags.unknown, ["--future", "--more=1", "--last", "-z", "word"]);
        assert_eq!(flags.get("statusPort"), Some("15020"));
    }

    #[test]
    fn a_flag_without_its_value_is_a_mistake() {
        assert_eq!(parse("--domain"), Err(MissingValue("domain".to_owned())));
    }
}
