//! From what was typed to the settings of an injection.

use super::args::{Args, InjectorChoice, OrderChoice};
use super::mode;
use crate::{out, settings as environment};
use anyhow::{Context as _, bail};
use remora_inject::{InjectConfig, Injectors, Mesh, Order, Settings, Values, otel};
use remora_pod::merge::overlay;
use remora_pod::yaml;
use serde_json::Value;
use std::path::Path;

pub(crate) fn settings(args: &Args) -> anyhow::Result<Settings> {
    let operator = args.operator_file.as_deref().map(document).transpose()?;
    let spec = |field: &str| {
        operator
            .as_ref()
            .and_then(|o| o.get("spec")?.get(field))
            .filter(|v| !v.is_null())
    };
    let values = overlaid(args.values_file.as_deref(), spec("values"))?;
    let mesh = overlaid(args.mesh_config_file.as_deref(), spec("meshConfig"))?;
    let values = Values::new(&values);
    let mesh = Mesh::new(mesh).with_context(|| named("read", args.mesh_config_file.as_deref()))?;
    for field in &mesh.unknown {
        out::warning(format!(
            "mesh configuration: defaultConfig.{field} is not known and does nothing"
        ));
    }
    let config = match &args.inject_config_file {
        Some(path) => InjectConfig::from_text(&text(path)?).with_context(|| named("read", Some(path)))?,
        None => {
            InjectConfig::from_values(&values).with_context(|| named("read", args.values_file.as_deref()))?
        }
    };
    Ok(Settings {
        mesh,
        values,
        config,
        // istio: the revision `default` is the one without a name.
        revision: args
            .revision
            .clone()
            .filter(|name| name != "default")
            .unwrap_or_default(),
        native: mode::is_native(args)?,
        order: match args.order {
            OrderChoice::Safe => Order::Safe,
            OrderChoice::Istio => Order::Istio,
        },
        injectors: Injectors {
            mesh: args.injectors.contains(&InjectorChoice::Mesh),
            otel: args.injectors.contains(&InjectorChoice::Otel),
        },
        compliance_policy: environment::variable("COMPLIANCE_POLICY").unwrap_or_default(),
        otel: operator_switches(args)?,
        ..Settings::default()
    })
}

fn operator_switches(args: &Args) -> anyhow::Result<otel::Operator> {
    let Some(json) = &args.otel_operator_config else {
        return Ok(otel::Operator::default());
    };
    if let Ok(Value::String(preset)) = serde_json::from_str(json) {
        return preset_switches(&preset);
    }
    otel::Operator::from_json(json).map_err(|error| {
        let hint = error.hint();
        anyhow::anyhow!("--otel-operator-config: {error}; {hint}")
    })
}

/// Two whole configurations have names, of which the first word counts.
fn preset_switches(preset: &str) -> anyhow::Result<otel::Operator> {
    match preset.split_whitespace().next() {
        Some("defaults") => Ok(otel::Operator::default()),
        Some("zero") => Ok(otel::Operator::all_off()),
        _ => {
            bail!("--otel-operator-config: {preset:?} is neither \"defaults\" nor \"zero\" nor a JSON object")
        }
    }
}

/// A file with the operator's part laid over, as Istio does it: the operator wins key by key.
fn overlaid(path: Option<&Path>, over: Option<&Value>) -> anyhow::Result<Value> {
    let mut base = path.map(document).transpose()?.unwrap_or_default();
    if let Some(over) = over {
        overlay(&mut base, over);
    }
    Ok(base)
}

/// A settings file: a map, or nothing.
pub(crate) fn document(path: &Path) -> anyhow::Result<Value> {
    let text = text(path)?;
    let document = yaml::parse_str(&text).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    match document.map(|d| d.value).unwrap_or_default() {
        value @ (Value::Object(_) | Value::Null) => Ok(value),
        _ => bail!("{}: a map is wanted", path.display()),
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("open {}: no such file or directory", path.display()),
        _ => anyhow::anyhow!("open {}: {error}", path.display()),
    })
}

fn named(verb: &str, path: Option<&Path>) -> String {
    match path {
        Some(path) => format!("{verb} {}", path.display()),
        None => format!("{verb} the built-in settings"),
    }
}
