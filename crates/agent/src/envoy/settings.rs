//! Settings for an Envoy as the proxy.

use super::launch::Launch;
use crate::bootstrap::{Description, Ports};
use crate::health::Schedule;
use crate::settings::{Environment, Inputs, Node, ProxyConfig, SettingsError};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

// istio: the default of drainDuration.
const DEFAULT_DRAIN_DURATION: Duration = Duration::from_secs(45);
// istio: applications look for the socket there, too.
const SDS_DIRECTORY: &str = "./var/run/secrets/workload-spiffe-uds";

/// Settings for an Envoy.
#[derive(Debug, Clone)]
pub struct EnvoySettings {
    /// Command line.
    pub launch: Launch,
    /// Inputs of the generated bootstrap.
    pub description: Description,
    /// A bootstrap supplied by the user, used instead.
    pub custom_config: Option<PathBuf>,
    /// Directory of the sockets and the configuration.
    pub config_path: PathBuf,
    /// Runs everything except Envoy itself.
    pub disabled: bool,
    /// A template of the bootstrap.
    pub template: Option<PathBuf>,
    /// Whether the control plane sends configuration for the agent itself.
    pub follow_config: bool,
    /// Health check of the application, reported to the control plane.
    pub health: Option<Schedule>,
    /// Where programs that speak discovery themselves find what they need.
    pub grpc_bootstrap: PathBuf,
}

/// Whether an Envoy is wanted, and how. `None`: the built-in proxy.
// differs from istio: the template of 1.5 names /usr/local/bin/envoy always, so the flag alone is no wish; without the
// file there the built-in proxy does the work.
pub(crate) fn resolve(
    inputs: &Inputs,
    config: &ProxyConfig,
    node: &Node,
    addresses: &[IpAddr],
    warnings: &mut Vec<String>,
) -> Result<Option<EnvoySettings>, SettingsError> {
    let named = inputs.flags.get("binaryPath");
    let disabled = Environment(&inputs.env).switch("DISABLE_ENVOY", false)?;
    let wanted = match inputs.flags.get("proxy") {
        // istio: the agent alone, for programs that speak discovery themselves.
        _ if disabled => true,
        Some("envoy") => true,
        Some("remora" | "builtin" | "built-in") => false,
        Some(other) => {
            return Err(SettingsError::Value {
                name: "--proxy".to_owned(),
                value: other.to_owned(),
                expected: "envoy or remora",
            });
        }
        None => match named {
            Some(path) if inputs.binary => {
                warnings.push(format!("{path} is there and named: it is the proxy"));
                true
            }
            Some(path) => {
                warnings.push(format!("{path} is not there: the built-in proxy is used"));
                false
            }
            None => false,
        },
    };
    if !wanted {
        return Ok(None);
    }
    let env = Environment(&inputs.env);
    // istio: the flag counts for less than the other two.
    let template = [
        env.text("ISTIO_BOOTSTRAP"),
        config.text("proxyBootstrapTemplatePath"),
        inputs.flags.get("templateFile"),
    ];
    let config_path: PathBuf = config.text("configPath").unwrap_or("./etc/istio/proxy").into();
    Ok(Some(EnvoySettings {
        launch: launch(inputs, config, addresses)?,
        description: description(inputs, config, node, addresses)?,
        custom_config: config.text("customConfigFile").map(PathBuf::from),
        config_path,
        disabled,
        template: template.into_iter().flatten().next().map(PathBuf::from),
        follow_config: env.switch("PROXY_CONFIG_XDS_AGENT", false)?,
        health: config
            .fields
            .get("readinessProbe")
            .map(Schedule::parse)
            .transpose()?,
        grpc_bootstrap: env
            .text("GRPC_XDS_BOOTSTRAP")
            .unwrap_or("./etc/istio/proxy/grpc-bootstrap.json")
            .into(),
    }))
}

fn launch(inputs: &Inputs, config: &ProxyConfig, addresses: &[IpAddr]) -> Result<Launch, SettingsError> {
    let env = Environment(&inputs.env);
    let flag = |name, default: &str| inputs.flags.get(name).unwrap_or(default).to_owned();
    let concurrency = match inputs.flags.get("concurrency").filter(|text| *text != "0") {
        Some(text) => Some(number("--concurrency", text)?),
        None => match config.scalar("concurrency") {
            Some(text) => Some(number("concurrency", &text)?),
            None => env
                .text("ISTIO_CPU_LIMIT")
                .map(|text| number("ISTIO_CPU_LIMIT", text))
                .transpose()?,
        },
    };
    Ok(Launch {
        binary: config.text("binaryPath").unwrap_or("/usr/local/bin/envoy").into(),
        drain: config
            .duration("drainDuration")?
            .unwrap_or(DEFAULT_DRAIN_DURATION),
        ipv6: !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6),
        log_level: flag("proxyLogLevel", "warning"),
        component_log_level: flag("proxyComponentLogLevel", ""),
        skip_deprecated_logs: env.switch("ENVOY_SKIP_DEPRECATED_LOGS", true)?,
        core_dump: env.switch("ISTIO_ENVOY_ENABLE_CORE_DUMP", false)?,
        // Envoy reads 0 as one thread. Istio's 0 means one per CPU, which is Envoy's default without the flag.
        concurrency: concurrency.filter(|count| *count > 0),
        override_file: env.text("ISTIO_BOOTSTRAP_OVERRIDE").map(PathBuf::from),
    })
}

fn number(name: &str, text: &str) -> Result<usize, SettingsError> {
    text.parse().map_err(|_| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: "a number of workers",
    })
}

fn description(
    inputs: &Inputs,
    config: &ProxyConfig,
    node: &Node,
    addresses: &[IpAddr],
) -> Result<Description, SettingsError> {
    let env = Environment(&inputs.env);
    let file = env.text("WORKLOAD_IDENTITY_SOCKET_FILE").unwrap_or("socket");
    if file.contains('/') {
        return Err(SettingsError::Value {
            name: "WORKLOAD_IDENTITY_SOCKET_FILE".to_owned(),
            value: file.to_owned(),
            expected: "a file name without directories",
        });
    }
    let config_path = config.text("configPath").unwrap_or("./etc/istio/proxy");
    Ok(Description {
        node: node.clone(),
        addresses: addresses.to_vec(),
        proxy_config: config.fields.clone(),
        ports: Ports {
            admin: config.port("proxyAdminPort")?,
            status: config.port("statusPort")?,
            readiness: env.port("ENVOY_STATUS_PORT", 15021)?,
            prometheus: env.port("ENVOY_PROMETHEUS_PORT", 15090)?,
        },
        xds_socket: format!("{config_path}/XDS"),
        sds_socket: format!("{SDS_DIRECTORY}/{file}"),
        delta: env.switch("ISTIO_DELTA_XDS", true)?,
        outlier_log_path: inputs.flags.get("outlierLogPath").unwrap_or_default().to_owned(),
        exit_on_zero_active_connections: env.switch("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)?,
        log_as_json: inputs.flags.get("log_as_json") == Some("true"),
    })
}
