//! Entry point for fuzzing: arbitrary bytes through everything an injection does.

use crate::{InjectConfig, Inventory, Order, Settings, Values, inject_object};
use remora_pod::yaml::{self, Limits};
use remora_pod::{Path, validate, workload};
use serde_json::{Value, json};

/// Reads the bytes as manifests and injects every one; for valid pods twice must be once.
///
/// The first byte chooses the settings, the rest is the text. Panics only where a promise is broken.
pub fn inject(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let settings = settings(*choice);
    let documents: Vec<_> = yaml::split(text)
        .filter_map(|raw| yaml::parse(&raw, Limits::default()).ok().flatten())
        .collect();
    let mut inventory = Inventory::default();
    for document in &documents {
        inventory.add(&document.value);
    }
    inventory.finish();
    for document in documents {
        let mut once = document.value;
        let valid = is_valid(&once);
        // A status that lies about what an earlier injection added is believed once, then replaced.
        let claims = text.contains(crate::names::annotation::STATUS);
        let report = inject_object(&mut once, &settings, &inventory);
        if claims {
            inject_object(&mut once, &settings, &inventory);
        }
        if !valid || !report.errors.is_empty() || !report.changed() {
            continue;
        }
        let mut twice = once.clone();
        inject_object(&mut twice, &settings, &inventory);
        assert!(
            once == twice,
            "not idempotent:\n{}\n{}",
            yaml::write(&once),
            yaml::write(&twice)
        );
    }
}

/// Whether an API server would take every pod of a document; for others nothing is promised but no panic.
fn is_valid(document: &Value) -> bool {
    workload::workloads(document).iter().all(|found| {
        let part = |path: Path| path.get(document).cloned().unwrap_or_default();
        validate::pod(&part(found.metadata()), &part(found.spec())).is_empty()
    })
}

fn settings(choice: u8) -> Settings {
    let values = Values::new(&json!({"pilot": {"cni": {"enabled": choice & 4 != 0}}}));
    Settings {
        config: InjectConfig::from_values(&values).unwrap_or_default(),
        values,
        native: choice & 1 != 0,
        order: if choice & 2 != 0 {
            Order::Istio
        } else {
            Order::Safe
        },
        ..Settings::default()
    }
}
