//! The bootstrap file for proxyless gRPC applications, in gRPC's format.

use super::{Description, node};
use serde_json::{Value, json};
use std::path::Path;

/// The file. `socket` is where discovery is answered; `certificates` where the pod's certificate is written, if it is.
// istio: the names, and how listeners of servers are called.
pub fn grpc(description: &Description, socket: &Path, certificates: Option<&Path>) -> Value {
    let mut node = node::node(description);
    node["metadata"]["GENERATOR"] = json!("grpc");
    let mut file = json!({
        "xds_servers": [{
            "server_uri": format!("unix://{}", socket.display()),
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        "node": {"id": node["id"], "locality": node["locality"], "metadata": node["metadata"]},
        "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
    });
    if let Some(directory) = certificates {
        let path = |name: &str| directory.join(name).display().to_string();
        file["certificate_providers"] = json!({"default": {
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": path("cert-chain.pem"),
                "private_key_file": path("key.pem"),
                "ca_certificate_file": path("root-cert.pem"),
                "refresh_interval": "900s",
            },
        }});
    }
    file
}
