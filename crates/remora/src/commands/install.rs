//! `remora install`: what a cluster needs to run a mesh, for `kubectl apply`.

use crate::out;
use anyhow::{Context as _, bail};
use remora_control::install::{File, Options, chart, objects, pilot};
use remora_pod::yaml;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Prints everything a cluster needs to run a mesh: namespace, rights, config maps, the control plane (discovery,
certificates, webhooks) and the webhook configurations, named so that the API server calls them after all others.

    remora install --image registry.example/mesh/remora:1.0 | kubectl apply -f -
    remora uninstall | kubectl delete -f -

With --chart it writes the same as a Helm chart, whose values are the flags given here:

    remora install --image registry.example/mesh/remora:1.0 --chart remora-chart
    helm install remora ./remora-chart -n istio-system --create-namespace

The image is made by `remora image`. Sidecars run the same one.";

/// What to install.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Namespace of the control plane
    #[arg(long, short, value_name = "NAME", default_value = "istio-system")]
    namespace: String,
    /// Revision, to run several control planes side by side
    #[arg(long, short, value_name = "NAME", default_value = "")]
    revision: String,
    /// Image of the control plane and of the sidecars
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Pull policy of the image
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// Control planes that run at once
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Trust domain of the mesh
    #[arg(long, value_name = "NAME", default_value = "cluster.local")]
    trust_domain: String,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "Kubernetes")]
    cluster: String,
    /// Directory to write a Helm chart to, instead of printing objects; it must be new or empty
    #[arg(long, value_name = "DIR")]
    chart: Option<PathBuf>,
    /// Sets a value of the installation, as `global.proxy.logLevel=debug`; below `meshConfig.` of the mesh
    /// configuration, below `pilot.` of the control plane's pods
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
}

/// Prints the objects.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    match &args.chart {
        Some(directory) => write(directory, &chart(&options)),
        None => print(&objects(&options)),
    }
}

/// Prints them the other way round: what was applied last goes first.
pub(crate) fn run_uninstall(args: &Args) -> anyhow::Result<ExitCode> {
    if args.chart.is_some() {
        bail!("a chart is uninstalled by `helm uninstall`");
    }
    let mut all = objects(&options(args)?);
    all.reverse();
    print(&all)
}

/// Into a directory of its own: what is there already may be somebody's.
fn write(directory: &Path, files: &[File]) -> anyhow::Result<ExitCode> {
    let shown = directory.display();
    let taken = match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("look into {shown}")),
    };
    if taken {
        bail!("{shown} is not empty: a chart is written into a directory of its own");
    }
    std::fs::create_dir_all(directory.join("templates")).with_context(|| format!("make {shown}"))?;
    for file in files {
        let path = directory.join(file.path);
        std::fs::write(&path, &file.text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(objects: &[Value]) -> anyhow::Result<ExitCode> {
    let documents: Vec<String> = objects.iter().map(yaml::write).collect();
    out::stdout(documents.join("---\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let mut values = json!({});
    for assignment in &args.set {
        set(&mut values, assignment).with_context(|| format!("--set {assignment}"))?;
    }
    let mesh = values
        .as_object_mut()
        .and_then(|all| all.remove("meshConfig"))
        .unwrap_or_else(|| json!({}));
    let pilot = take_pilot(&mut values);
    let defaults = Options::default();
    Ok(Options {
        namespace: args.namespace.clone(),
        // istio: the revision `default` is the one without a name.
        revision: Some(args.revision.clone())
            .filter(|name| name != "default")
            .unwrap_or_default(),
        image: args.image.clone().unwrap_or(defaults.image),
        pull_policy: args.image_pull_policy.clone(),
        replicas: args.replicas,
        trust_domain: args.trust_domain.clone(),
        cluster: args.cluster.clone(),
        pilot,
        values,
        mesh,
    })
}

/// Takes out of the values what is about the pods of the control plane. The rest of `pilot`, as `pilot.env` and
/// `pilot.cni`, stays: injection reads it.
fn take_pilot(values: &mut Value) -> Value {
    let mut taken = Map::new();
    let written = values.get_mut("pilot").and_then(Value::as_object_mut);
    if let (Some(written), Value::Object(known)) = (written, pilot()) {
        for key in known.keys() {
            taken.extend(written.remove_entry(key));
        }
    }
    Value::Object(taken)
}

/// `a.b.c=value`; the value is YAML, so that numbers and switches are what they look like.
fn set(values: &mut Value, assignment: &str) -> anyhow::Result<()> {
    let Some((path, text)) = assignment.split_once('=') else {
        bail!("there is no `=`");
    };
    let parsed = yaml::parse_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
    let value = parsed.map(|document| document.value).unwrap_or_default();
    let mut at = values;
    for key in path.split('.') {
        if key.is_empty() {
            bail!("{path:?} has an empty part");
        }
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(map) = at else {
            bail!("{path:?} goes into something that is set to a plain value");
        };
        at = map.entry(key).or_insert(Value::Null);
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{set, take_pilot};
    use serde_json::json;

    #[test]
    fn values_that_injection_reads_stay_below_pilot() {
        let mut values =
            json!({"pilot": {"env": {"ENABLE_NATIVE_SIDECARS": false}, "failurePolicy": "Ignore"}});
        assert_eq!(take_pilot(&mut values), json!({"failurePolicy": "Ignore"}));
        assert_eq!(
            values,
            json!({"pilot": {"env": {"ENABLE_NATIVE_SIDECARS": false}}})
        );
        let mut without = json!({});
        assert_eq!(take_pilot(&mut without), json!({}));
        assert_eq!(without, json!({}));
    }

    #[test]
    fn values_are_set_by_path() {
        let mut values = json!({});
        for assignment in ["a.b=1", "a.c=true", "d=x", "e="] {
            set(&mut values, assignment).unwrap();
        }
        assert_eq!(values, json!({"a": {"b": 1, "c": true}, "d": "x", "e": null}));
        assert!(set(&mut values, "d.x=1").is_err());
        assert!(set(&mut values, "a..b=1").is_err());
        assert!(set(&mut values, "nothing").is_err());
    }
}
