//! Turns a pod into an injected pod: mesh, OpenTelemetry, planned order.

pub mod otel;
