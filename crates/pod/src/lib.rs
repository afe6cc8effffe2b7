//! Kubernetes documents: YAML as Go reads and writes it, pod views, annotations.
