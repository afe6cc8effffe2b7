//! A mesh that files describe.

use crate::out;
use anyhow::Context as _;
use remora_control::{Config, Notice, Plane};
use std::path::Path;
use tokio::net::TcpListener;

pub(super) async fn serve(config: &Path, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let config = Config::read(config)?;
    let listen = config.listen;
    let plane = Plane::open(config, |notice: &Notice| match notice {
        Notice::Mesh { .. } => out::note(notice),
        Notice::Kept(_) | Notice::Policy(_) | Notice::Refused { .. } => out::warning(notice),
    })?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("listen on {listen}"))?;
    out::note(format_args!("listening on {}", listener.local_addr()?));
    plane.serve(listener, stop).await?;
    Ok(())
}
