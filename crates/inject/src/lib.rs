//! Turns a pod into an injected pod: mesh sidecar, OpenTelemetry, planned start order.
//!
//! Pure: documents and settings in, documents, warnings and errors out. [`inject_object`] takes a whole document
//! of any kind, [`inject_pod`] one pod. Both are idempotent: injecting an injected pod gives the same pod, also
//! after another webhook added or moved containers in between.
//!
//! Compatible with Istio's injector (names, annotations, templates, output) and with the OpenTelemetry
//! operator's ([`otel`]); where those leave a pod that cannot start, the default order repairs it, and
//! [`Order::Istio`] gives their own output.

mod annotations;
mod decision;
mod error;
pub mod fuzz;
mod image;
mod mesh;
mod multus;
pub mod names;
pub mod native;
mod object;
pub mod otel;
mod overrides;
mod pipeline;
mod probes;
mod prometheus;
mod proxy_config;
mod reorder;
mod settings;
mod sidecar;
mod template;
mod values;
mod warning;
mod workload;

pub use decision::Skip;
pub use error::InjectError;
pub use object::{Inventory, ObjectError, ObjectReport, PodReport, inject_object, patch};
pub use pipeline::{Injected, Subject, inject_pod};
pub use prometheus::PrometheusError;
pub use proxy_config::{ProxyConfig, ProxyConfigError};
pub use settings::{InjectConfig, Injectors, Mesh, Order, Settings, SettingsError};
pub use template::TemplateError;
pub use values::Values;
pub use warning::Warning;
pub use workload::Workload;
