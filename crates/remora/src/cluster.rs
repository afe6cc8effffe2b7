//! The cluster a command was pointed at: `--kubeconfig`, `--context` or the variable `KUBECONFIG`.
//!
//! Promises: nothing is read and nobody is asked unless one of the three was given (see [`is_chosen`]); every
//! question is answered or fails within a bounded time; a failure says which server, which context and why. It does
//! not decide what an answer means, nor what to do without one: that is the command's.

mod explain;
mod kubeconfig;
mod objects;
mod proxy;
mod runtime;

pub(crate) use objects::Kind;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, ObjectList};
use kube::config::ExecInteractiveMode;
use runtime::Runtime;
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

/// For name lookup, TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(5);
/// For the whole answer to one question, however many pages it has.
const ANSWER: Duration = Duration::from_secs(10);
/// For a credential plugin, which may have to fetch a token from far away, or ask a person.
const CREDENTIALS: Duration = Duration::from_secs(30);
/// Nodes a page; what kubectl asks for.
const PAGE: u32 = 500;
/// Waits between attempts when a server says that it is busy.
const BUSY: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// Whether a cluster was pointed at. A `~/.kube/config` that merely exists does not count.
pub(crate) fn is_chosen(kubeconfig: Option<&Path>, context: Option<&str>) -> bool {
    kubeconfig.is_some() || context.is_some() || kubeconfig::is_in_environment()
}

/// A cluster that can be asked. Connections are made with the first question.
pub(crate) struct Cluster {
    client: kube::Client,
    runtime: Runtime,
    /// Server, context and file, as errors name it.
    name: String,
    plugin: Option<explain::Plugin>,
}

impl Cluster {
    /// Reads the kubeconfig (the file given, else those of `KUBECONFIG`, else `~/.kube/config`), chooses the context
    /// (the one given, else the current one) and gets its credentials ready.
    pub(crate) fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
        let runtime = Runtime::new().context("start an event loop")?;
        let prepared = runtime.within(2 * CREDENTIALS, prepared(kubeconfig, context));
        let (client, name, plugin) = prepared.context("get credentials in time")??;
        Ok(Self {
            client,
            runtime,
            name,
            plugin,
        })
    }

    /// The same, and without any of these the cluster this runs in.
    pub(crate) fn connect_or_own(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
        if is_chosen(kubeconfig, context) || kubeconfig::is_there() {
            return Self::connect(kubeconfig, context);
        }
        let config = kube::Config::incluster().context(
            "find a cluster: there is no ~/.kube/config, and this does not run in one; name it by --kubeconfig or \
             KUBECONFIG",
        )?;
        let runtime = Runtime::new().context("start an event loop")?;
        let name = format!("{} (the cluster this runs in)", config.cluster_url);
        let client = runtime.within(CREDENTIALS, async { kube::Client::try_from(config) });
        Ok(Self {
            client: client
                .context("get credentials in time")?
                .context("prepare to talk to the API server")?,
            runtime,
            name,
            plugin: None,
        })
    }

    /// Name and kubelet version of every node. A node that has not said its version yet has an empty one.
    pub(crate) fn kubelet_versions(&self) -> anyhow::Result<Vec<(String, String)>> {
        match self.runtime.within(ANSWER, self.nodes()) {
            None => Err(anyhow::anyhow!("no answer within {} s", ANSWER.as_secs())),
            Some(Err(error)) => Err(explain::failure(&error, self.plugin.as_ref())),
            Some(Ok(nodes)) => Ok(nodes),
        }
        .with_context(|| format!("list the nodes of {}", self.name))
    }

    async fn nodes(&self) -> Result<Vec<(String, String)>, kube::Error> {
        let api = Api::<Node>::all(self.client.clone());
        let mut wanted = ListParams::default().limit(PAGE);
        let mut versions = Vec::new();
        loop {
            let page = page(&api, &wanted).await?;
            versions.extend(page.items.into_iter().map(kubelet_version));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => wanted = wanted.continue_token(&token),
                None => return Ok(versions),
            }
        }
    }
}

/// A client of the cluster that was pointed at, for a command that is asynchronous itself.
pub(crate) async fn client(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<kube::Client> {
    let (client, ..) = prepared(kubeconfig, context).await?;
    Ok(client)
}

/// A client, the name of its cluster, and the plugin its credentials come from.
async fn prepared(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> anyhow::Result<(kube::Client, String, Option<explain::Plugin>)> {
    let access = kubeconfig::read(kubeconfig, context)?;
    let name = access.to_string();
    let config = configured(access).with_context(|| format!("use {name}"))?;
    let plugin = config.auth_info.exec.as_ref().map(explain::Plugin::of);
    // Reading credentials blocks while a plugin runs.
    let ready = tokio::task::spawn_blocking(move || kube::Client::try_from(config));
    let client = match tokio::time::timeout(CREDENTIALS, ready).await {
        Err(_) => Err(anyhow::anyhow!(
            "no credentials within {} s",
            CREDENTIALS.as_secs()
        )),
        Ok(Err(crash)) => Err(crash.into()),
        Ok(Ok(Err(error))) => Err(explain::failure(&error, plugin.as_ref())),
        Ok(Ok(Ok(client))) => Ok(client),
    }
    .with_context(|| format!("prepare to ask {name}"))?;
    Ok((client, name, plugin))
}

/// One page. A server that is busy is asked again; kube's own way of doing so could outlast every bound and hide why.
async fn page<K>(api: &Api<K>, wanted: &ListParams) -> Result<ObjectList<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    for wait in BUSY {
        match api.list(wanted).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503 | 504) => {
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
    api.list(wanted).await
}

fn kubelet_version(node: Node) -> (String, String) {
    let version = node
        .status
        .and_then(|status| status.node_info)
        .map(|info| info.kubelet_version);
    (
        node.metadata.name.unwrap_or_default(),
        version.unwrap_or_default(),
    )
}

/// How to talk to the server, with our bounds, the right proxy, and a plugin that leaves our input alone.
fn configured(access: kubeconfig::Access) -> anyhow::Result<kube::Config> {
    let through = access.proxy_url().map(str::to_owned);
    let mut config = access.into_config()?;
    let server = &config.cluster_url;
    let (Some(scheme @ ("http" | "https")), Some(host)) = (server.scheme_str(), server.host()) else {
        bail!("its server is not an http:// or https:// address");
    };
    let through = through.or_else(|| proxy::of_environment(scheme, host, server.port_u16()));
    config.proxy_url = match through.as_deref().map(proxy::address) {
        // Not in words: it may hold a password.
        Some(proxy) => Some(proxy.parse().context("its proxy is not an address")?),
        None => None,
    };
    // kube wants the machine's certificate store before it knows whether it will need one, and a bare image has none.
    let verifies = (scheme == "https" || config.proxy_url.is_some()) && !config.accept_invalid_certs;
    if !verifies && config.root_cert.is_none() {
        config.root_cert = Some(Vec::new());
    }
    config.connect_timeout = Some(CONNECT);
    config.default_retry = false;
    // kube panics on a token that cannot be a header.
    if let Some(token) = &config.auth_info.token
        && token.expose_secret().bytes().any(|b| b.is_ascii_control())
    {
        bail!("its user's token has characters no token can have, perhaps a line break");
    }
    if let Some(exec) = &mut config.auth_info.exec
        && !std::io::stdin().is_terminal()
    {
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            let command = exec.command.as_deref().unwrap_or_default();
            bail!("its credential plugin {command:?} wants a terminal as standard input");
        }
        // Standard input may hold the manifests: a plugin must not read them.
        exec.interactive_mode = Some(ExecInteractiveMode::Never);
    }
    Ok(config)
}
