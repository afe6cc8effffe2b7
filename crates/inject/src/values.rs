//! The `values` document: the settings of an installation, as Istio's charts spell them.

use remora_pod::{merge, view};
use serde_json::{Value, json};

/// Values with the chart's defaults underneath. Missing and null both mean "default".
#[derive(Debug, Clone, PartialEq)]
pub struct Values(Value);

impl Default for Values {
    fn default() -> Self {
        Self(defaults())
    }
}

impl Values {
    /// Lays a user's document over the defaults.
    pub fn new(overlay: &Value) -> Self {
        Self(overlay_maps(defaults(), overlay))
    }

    /// The whole document.
    pub fn document(&self) -> &Value {
        &self.0
    }

    /// The value at a path of keys.
    pub fn at(&self, path: &[&str]) -> &Value {
        view::at(&self.0, path).unwrap_or(&Value::Null)
    }

    /// `global.proxy.KEY`.
    pub fn proxy(&self, key: &str) -> &Value {
        self.at(&["global", "proxy", key])
    }

    /// `global.KEY`.
    pub fn global(&self, key: &str) -> &Value {
        self.at(&["global", key])
    }

    /// The scalar at a path, as text.
    pub fn text(&self, path: &[&str]) -> String {
        view::scalar(self.at(path))
    }

    /// The flag at a path; false unless it is `true` or `"true"`.
    pub fn flag(&self, path: &[&str]) -> bool {
        truthy(self.at(path))
    }
}

/// `true`, or the text `true`.
pub(crate) fn truthy(value: &Value) -> bool {
    value.as_bool() == Some(true) || value.as_str() == Some("true")
}

/// Maps merge, everything else replaces; null removes the default (that is how users drop a limit).
fn overlay_maps(base: Value, overlay: &Value) -> Value {
    match (base, overlay) {
        (Value::Object(mut base), Value::Object(overlay)) => {
            for (key, value) in overlay {
                // Limits and requests are taken as a whole: leaving one out is how a file says "none".
                if key == "limits" || key == "requests" {
                    base.insert(key.clone(), value.clone());
                    continue;
                }
                let merged = overlay_maps(base.remove(key).unwrap_or(Value::Null), value);
                base.insert(key.clone(), merged);
            }
            Value::Object(base)
        }
        // An empty document or section says nothing; a null scalar removes its default.
        (base @ Value::Object(_), Value::Null) => base,
        (_, overlay) => overlay.clone(),
    }
}

/// Drops null entries of a resource map, so that `cpu: null` means "no limit".
pub(crate) fn without_nulls(value: &Value) -> Value {
    merge::merge(json!({}), value.clone())
}

/// The defaults of an installation without any configuration.
fn defaults() -> Value {
    json!({
        "global": {
            "hub": "docker.io/istio",
            "tag": "1.28.0",
            "variant": "",
            "caAddress": "",
            "caName": "",
            "imagePullPolicy": "",
            "imagePullSecrets": [],
            "istioNamespace": "istio-system",
            "logAsJson": false,
            "logging": {"level": "default:info"},
            "meshID": "",
            "mountMtlsCerts": false,
            "multiCluster": {"clusterName": ""},
            "nativeNftables": false,
            "network": "",
            "pilotCertProvider": "istiod",
            "proxy": {
                "autoInject": "enabled",
                "clusterDomain": "cluster.local",
                "componentLogLevel": "misc:error",
                "excludeIPRanges": "",
                "excludeInboundPorts": "",
                "excludeOutboundPorts": "",
                "image": "proxyv2",
                "includeIPRanges": "*",
                "includeInboundPorts": "*",
                "includeOutboundPorts": "",
                "logLevel": "warning",
                "outlierLogPath": "",
                "privileged": false,
                "readinessFailureThreshold": 4,
                "readinessInitialDelaySeconds": 0,
                "readinessPeriodSeconds": 15,
                "resources": {
                    "limits": {"cpu": "2000m", "memory": "1024Mi"},
                    "requests": {"cpu": "100m", "memory": "128Mi"}
                },
                "seccompProfile": {},
                "startupProbe": {"enabled": true, "failureThreshold": 600},
                "statusPort": 15020,
                "tracer": "none"
            },
            "proxy_init": {"forceApplyIptables": false, "image": "proxyv2"},
            "sds": {"token": {"aud": "istio-ca"}},
            "sts": {"servicePort": 0}
        },
        "pilot": {"cni": {"enabled": false, "provider": "default"}, "env": {}},
        "revision": "",
        "sidecarInjectorWebhook": {
            "alwaysInjectSelector": [],
            "neverInjectSelector": [],
            "defaultTemplates": [],
            "injectedAnnotations": {},
            "rewriteAppHTTPProbe": true,
            "templates": {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::Values;
    use serde_json::{Value, json};

    #[test]
    fn an_empty_document_leaves_the_defaults() {
        for empty in [
            Value::Null,
            json!({}),
            json!({"global": null}),
            json!({"global": {"proxy": null}}),
        ] {
            assert_eq!(Values::new(&empty), Values::default(), "{empty}");
        }
    }

    #[test]
    fn limits_are_taken_whole_and_other_maps_merge() {
        let values = Values::new(&json!({"global": {"proxy": {"resources": {"limits": {"cpu": "1"}}}}}));
        assert_eq!(values.proxy("resources")["limits"], json!({"cpu": "1"}));
        assert_eq!(values.proxy("resources")["requests"]["cpu"], "100m");
        assert_eq!(values.proxy("image"), "proxyv2");
    }
}
