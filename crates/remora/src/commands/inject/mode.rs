//! Whether the proxy is a native sidecar, before a pod has its say.
//!
//! In this order: `--kubelet-min`, `--native on|off`, the variable Istio's injector reads, the nodes of the cluster the
//! command was pointed at, and native when there is none.

use super::args::{Args, NativeChoice};
use crate::cluster::{self, Cluster};
use crate::{out, settings as environment};
use anyhow::{Context as _, bail};
use remora_inject::native;

const VARIABLE: &str = "ENABLE_NATIVE_SIDECARS";
/// Old nodes a note names.
const NAMED: usize = 3;

pub(super) fn is_native(args: &Args) -> anyhow::Result<bool> {
    if let Some(version) = &args.kubelet_min {
        let Some(minor) = native::minor(version) else {
            bail!("--kubelet-min: {version:?} is not a version such as 1.33");
        };
        return Ok(args.native != NativeChoice::Off && minor >= native::NATIVE_SINCE);
    }
    match args.native {
        NativeChoice::On => Ok(true),
        NativeChoice::Off => Ok(false),
        NativeChoice::Auto => match environment::variable(VARIABLE).as_deref() {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            None | Some("auto") => by_nodes(args),
            // differs from istio: an error rather than a warning and classic sidecars, because whoever set it is
            // watching.
            Some(other) => {
                bail!("environment variable {VARIABLE}: {other:?} is none of true, false and auto")
            }
        },
    }
}

fn by_nodes(args: &Args) -> anyhow::Result<bool> {
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    if !cluster::is_chosen(kubeconfig, context) {
        return Ok(true);
    }
    let nodes = Cluster::connect(kubeconfig, context)
        .and_then(|cluster| cluster.kubelet_versions())
        .context(
            "--native auto: the kubelet versions of the cluster are not known; \
             decide without it by --native on, --native off or --kubelet-min VERSION",
        )?;
    let old = too_old(&nodes);
    if !old.is_empty() {
        out::note(classic_because(&old));
    }
    Ok(old.is_empty())
}

fn too_old(nodes: &[(String, String)]) -> Vec<&(String, String)> {
    nodes
        .iter()
        .filter(|(_, version)| !native::supported_by([version.as_str()]))
        .collect()
}

fn classic_because(old: &[&(String, String)]) -> String {
    let named: Vec<String> = old
        .iter()
        .take(NAMED)
        .map(|(node, version)| match version.as_str() {
            "" => format!("{node} (unknown)"),
            version => format!("{node} ({version})"),
        })
        .collect();
    let more = match old.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "classic sidecars, because native ones want kubelet 1.{} or newer on every node, which {}{more} {} not; \
         --native on decides otherwise, as does {}: \"true\" on a pod",
        native::NATIVE_SINCE,
        named.join(", "),
        if old.len() == 1 { "has" } else { "have" },
        remora_inject::names::annotation::NATIVE,
    )
}

#[cfg(test)]
mod tests {
    use super::{classic_because, too_old};

    fn nodes(versions: &[&str]) -> Vec<(String, String)> {
        (1..)
            .zip(versions)
            .map(|(i, v)| (format!("n{i}"), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn old_and_unknown_kubelets_are_named() {
        assert!(too_old(&nodes(&["v1.33.0", "v1.40.1"])).is_empty());
        let nodes = nodes(&["v1.33.0", "v1.30.1", "", "1.28", "garbage"]);
        let text = classic_because(&too_old(&nodes));
        assert!(
            text.contains("which n2 (v1.30.1), n3 (unknown), n4 (1.28) and 1 more have not"),
            "{text}"
        );
    }

    #[test]
    fn one_old_node() {
        let nodes = nodes(&["v1.32.9"]);
        let text = classic_because(&too_old(&nodes));
        assert!(text.contains("which n1 (v1.32.9) has not;"), "{text}");
    }
}
