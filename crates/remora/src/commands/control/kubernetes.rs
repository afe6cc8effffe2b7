//! The mesh of a cluster.

use crate::{cluster, out, settings};
use anyhow::{Context as _, bail};
use remora_control::kubernetes::{Cluster, Notice, Settings};
use remora_control::{plane, status};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Which cluster, and where to listen.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig of the cluster; without it, the cluster this runs in
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Discovery and certificates
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:15012")]
    discovery_address: SocketAddr,
    /// Webhooks
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:15017")]
    webhook_address: SocketAddr,
    /// Health and metrics
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:15014")]
    status_address: SocketAddr,
}

pub(super) async fn serve(args: &ClusterArgs, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let client = client(args).await?;
    let settings = settings_of_environment()?;
    let listen = async |address: SocketAddr| {
        let listener = TcpListener::bind(address).await;
        listener.with_context(|| format!("listen on {address}"))
    };
    let discovery = listen(args.discovery_address).await?;
    let webhooks = listen(args.webhook_address).await?;
    let health = std::net::TcpListener::bind(args.status_address)
        .with_context(|| format!("listen on {}", args.status_address))?;
    let cluster = Cluster::open(client, settings, |notice: &Notice| {
        if notice.is_trouble() {
            out::warning(notice);
        } else {
            out::note(notice);
        }
    })
    .await?;
    let metrics = Arc::clone(cluster.webhook());
    let metrics = Arc::new(move || metrics.counts().render());
    status::serve_apart(health, cluster.ready(), metrics).context("answer health checks")?;
    let (stopping, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let hooks = Arc::clone(cluster.webhook()).serve(
        webhooks,
        cluster.plane().server_config(),
        until(stopped.clone()),
    );
    let hooks = tokio::spawn(hooks);
    let serving = cluster.plane().serve(discovery, until(stopped));
    tokio::pin!(serving, stop);
    tokio::select! {
        ended = &mut serving => ended?,
        () = cluster.follow() => {}
        () = &mut stop => {}
    }
    stopping.send_replace(true);
    // Questions that were put are answered.
    hooks.await.context("end the webhooks")?;
    Ok(())
}

async fn client(args: &ClusterArgs) -> anyhow::Result<kube::Client> {
    if cluster::is_chosen(args.kubeconfig.as_deref(), args.context.as_deref()) {
        return cluster::client(args.kubeconfig.as_deref(), args.context.as_deref()).await;
    }
    let config = kube::Config::incluster().context(
        "find the cluster: this does not run in one. Name it by --kubeconfig or --context, or describe a mesh of \
         files by --config",
    )?;
    kube::Client::try_from(config).context("prepare to talk to the API server")
}

fn settings_of_environment() -> anyhow::Result<Settings> {
    let variable = |name: &str, default: &str| settings::variable(name).unwrap_or_else(|| default.to_owned());
    let namespace = variable("POD_NAMESPACE", "istio-system");
    let revision = variable("REVISION", "");
    let service = if revision.is_empty() || revision == "default" {
        "istiod".to_owned()
    } else {
        format!("istiod-{revision}")
    };
    let name = |suffix: &str| format!("{service}.{namespace}{suffix}");
    Ok(Settings {
        revision: if revision == "default" {
            String::new()
        } else {
            revision.clone()
        },
        cluster: variable("CLUSTER_ID", "Kubernetes"),
        domain: variable("DOMAIN", "cluster.local"),
        plane: plane::Settings {
            trust_domain: variable("TRUST_DOMAIN", "cluster.local"),
            server_names: vec![
                name(".svc"),
                name(""),
                name(".svc.cluster.local"),
                "localhost".to_owned(),
            ],
            // differs from istio, which gives at most ninety days: there is no revocation, so a workload that was taken
            // over for a minute must not be able to keep a certificate for months.
            certificate_life: life("DEFAULT_WORKLOAD_CERT_TTL", Duration::from_hours(24))?,
            longest_certificate_life: life("MAX_WORKLOAD_CERT_TTL", Duration::from_hours(24))?,
        },
        namespace,
    })
}

/// How long certificates live, as Go writes durations: `24h`.
fn life(variable: &str, usual: Duration) -> anyhow::Result<Duration> {
    let Some(text) = settings::variable(variable) else {
        return Ok(usual);
    };
    let nanos = remora_pod::duration::parse(&text).with_context(|| format!("{variable}={text}"))?;
    match u64::try_from(nanos) {
        Ok(nanos) if nanos > 0 => Ok(Duration::from_nanos(nanos)),
        _ => bail!("{variable}={text}: a certificate must live for some time, as in 24h"),
    }
}
