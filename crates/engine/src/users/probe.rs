//! What this machine can do: found out by doing it.

use super::{UserNamespace, Users};
use crate::container::process::start_without_program;
use crate::container::{Root, Spec, StartError};
use crate::pod::chain;
use crate::sandbox::{Sandbox, SandboxSpec};
use crate::sys;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

/// Of the container that is tried; no pod has it.
const NAME: &str = "users";

/// Prepares a container with users of its own, up to the point where its program would be executed.
pub(super) async fn look(users: &Users, images: &Path, run: &Path) -> Result<(), String> {
    let dir = run.join(NAME);
    let tried = attempt(users, images, &dir).await;
    let removed = std::fs::remove_dir_all(&dir);
    tried.map_err(|error| {
        let text = chain(&error);
        let told = text.strip_prefix(&format!("container {NAME}: "));
        told.unwrap_or(&text).to_owned()
    })?;
    removed.map_err(|error| format!("remove {}: {error}", dir.display()))
}

async fn attempt(users: &Users, images: &Path, dir: &Path) -> Result<(), StartError> {
    let step = |step: String| {
        let id = NAME.to_owned();
        move |source: io::Error| StartError::Step { id, step, source }
    };
    let path = |name: &str| dir.join(name);
    for name in ["lower", "upper", "work"] {
        let made = std::fs::create_dir_all(path(name));
        made.map_err(step(format!("make {}", path(name).display())))?;
    }
    let own = UserNamespace::create(users.ids()?, NAME, &[]).await?;
    let mapped = sys::can_map(images, own.as_fd());
    mapped.map_err(step(format!("mount {} with mapped ids", images.display())))?;
    let sandbox = Sandbox::create(&SandboxSpec {
        network: Some(own.network().clone()),
        users: Some(own),
        ..SandboxSpec::default()
    })
    .await?;
    let root = Root::Overlay {
        lower: vec![path("lower")],
        upper: path("upper"),
        work: path("work"),
    };
    start_without_program(&Spec::new(NAME, root, &["-"], sandbox))
        .await
        .map(drop)
}
