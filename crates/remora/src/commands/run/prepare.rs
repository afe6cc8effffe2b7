//! From manifests to what is run: injected, as a cluster would have done it.

use super::args::{Args, InjectChoice};
use crate::commands::inject::OrderChoice;
use crate::input::Input;
use crate::out;
use anyhow::{Context as _, bail};
use remora_engine::manifest::{Manifest, Reading};
use remora_inject::{InjectConfig, Injectors, Inventory, Mesh, Order, Settings, Values, inject_object};
use remora_pod::yaml::{self, Limits};
use remora_pod::{object, workload};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn manifest(args: &Args, input: &Input, inventory: &Inventory) -> anyhow::Result<Manifest> {
    let mut documents = read(input)?;
    let namespace = default_namespace(args, &documents);
    let settings = settings(args)?;
    let asked = Asked::new(args.inject, &documents, &namespace);
    let mut failed = 0;
    for document in &mut documents {
        failed += inject(document, &settings, inventory, &asked);
    }
    if failed > 0 {
        bail!("{failed} pods cannot be injected");
    }
    let reading = Reading {
        namespace: &namespace,
        cron_now: args.now,
    };
    Ok(Manifest::read(&documents, reading))
}

fn read(input: &Input) -> anyhow::Result<Vec<Value>> {
    let mut documents = Vec::new();
    for source in &input.sources {
        source.each(|raw| {
            match yaml::parse(&raw, Limits::default()) {
                Ok(Some(document)) => documents.push(document.value),
                Ok(None) => {}
                Err(error) => bail!("{}", error.locate(&source.name, raw.index + 1)),
            }
            Ok(())
        })?;
    }
    // Lists are taken apart, so that each item is injected or not for itself.
    let mut flat = Vec::new();
    for document in documents {
        flatten(document, &mut flat);
    }
    Ok(flat)
}

fn flatten(document: Value, flat: &mut Vec<Value>) {
    match workload::items(&document) {
        Some(items) => {
            for item in items.clone() {
                flatten(item, flat);
            }
        }
        None => flat.push(document),
    }
}

fn default_namespace(args: &Args, documents: &[Value]) -> String {
    if let Some(namespace) = &args.namespace {
        return namespace.clone();
    }
    let mut named = documents.iter().filter(|d| object::kind(d) == "Namespace");
    match (named.next(), named.next()) {
        (Some(only), None) => object::name(only).to_owned(),
        _ => "default".to_owned(),
    }
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    // The mode says whether classic sidecars are waited for; pods that are classic against it do as in a cluster.
    let mesh = if args.mode.is_native() {
        json!({})
    } else {
        json!({"defaultConfig": {"holdApplicationUntilProxyStarts": args.mode.is_held()}})
    };
    let values = Values::new(&json!({"pilot": {"cni": {"enabled": args.mode.is_cni()}}}));
    Ok(Settings {
        mesh: Mesh::new(mesh).context("make the settings of the mesh")?,
        config: InjectConfig::from_values(&values).context("make the settings of the injection")?,
        values,
        native: args.mode.is_native(),
        order: match args.order {
            OrderChoice::Safe => Order::Safe,
            OrderChoice::Istio => Order::Istio,
        },
        injectors: Injectors {
            mesh: args.inject != InjectChoice::Never,
            otel: args.inject != InjectChoice::Never,
        },
        ..Settings::default()
    })
}

/// Injects a document; how many pods of it could not be.
fn inject(document: &mut Value, settings: &Settings, inventory: &Inventory, asked: &Asked) -> usize {
    if !asked.wants(document) {
        return 0;
    }
    let report = inject_object(document, settings, inventory);
    for error in &report.errors {
        out::error_text(format_args!("{}: {}", error.workload, error.error));
    }
    for pod in &report.pods {
        for warning in &pod.warnings {
            out::warning(format_args!("{}: {warning}", pod.workload));
        }
    }
    report.errors.len()
}

/// Which documents a cluster would have injected.
struct Asked {
    choice: InjectChoice,
    default_namespace: String,
    /// Namespaces among the documents, and whether they ask for injection.
    namespaces: BTreeMap<String, bool>,
}

impl Asked {
    fn new(choice: InjectChoice, documents: &[Value], default_namespace: &str) -> Self {
        let named = documents.iter().filter(|d| object::kind(d) == "Namespace");
        let asks = |d: &Value| {
            // istio: the label, or a revision.
            object::label(d, "istio-injection") == Some("enabled")
                || object::label(d, "istio.io/rev").is_some()
        };
        Self {
            choice,
            default_namespace: default_namespace.to_owned(),
            namespaces: named.map(|d| (object::name(d).to_owned(), asks(d))).collect(),
        }
    }

    fn wants(&self, document: &Value) -> bool {
        match self.choice {
            InjectChoice::Never => return false,
            InjectChoice::Always => return true,
            InjectChoice::Auto => {}
        }
        let mut shapes = workload::workloads(document).into_iter();
        let template = shapes.next().and_then(|w| w.template.get(document).cloned());
        let own = template
            .as_ref()
            .and_then(|t| object::label(t, "sidecar.istio.io/inject"));
        if let Some(own) = own {
            return own == "true";
        }
        let namespace = match object::namespace(document) {
            "" => self.default_namespace.as_str(),
            named => named,
        };
        self.namespaces.get(namespace).copied().unwrap_or(true)
    }
}
