//! Tokens in volumes do not live for ever: they are written anew in time.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use remora_pod::object;
use serde_json::Value;

use super::{File, Source, Volume, VolumeError};
use crate::environment::service_account;
use crate::objects::Objects;

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// For whom it is; empty for the cluster itself.
    pub audience: String,
    /// For how long.
    pub life: Duration,
}

/// How long tokens of these volumes stay as they are: a part of the shortest life among them.
// k8s: a kubelet renews a token when 80 % of its life are over.
pub fn life(volumes: &[Volume]) -> Option<Duration> {
    tokens(volumes).map(|(_, _, grant)| grant.life * 4 / 5).min()
}

/// Writes all tokens anew. Whoever reads one meanwhile gets the old one or the new one.
pub fn renew(
    pod: &Value,
    volumes: &[Volume],
    objects: &Objects,
    base: &Path,
    now: SystemTime,
) -> Result<(), VolumeError> {
    for (volume, file, grant) in tokens(volumes) {
        let (namespace, account) = (object::namespace(pod), service_account(pod));
        let Some(token) = objects.token(namespace, account, grant, now) else {
            continue;
        };
        let path = base.join(&volume.name).join(&file.path);
        let new = path.with_extension("new");
        let written = fs::write(&new, token)
            .and_then(|()| match fs::metadata(&path) {
                Ok(old) => {
                    std::os::unix::fs::chown(&new, None, Some(std::os::unix::fs::MetadataExt::gid(&old)))?;
                    fs::set_permissions(&new, old.permissions())
                }
                Err(_) => fs::set_permissions(&new, Permissions::from_mode(file.mode)),
            })
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| VolumeError::Write { path, source })?;
    }
    Ok(())
}

fn tokens(volumes: &[Volume]) -> impl Iterator<Item = (&Volume, &File, &Grant)> {
    volumes.iter().flat_map(|volume| {
        let files: &[File] = match &volume.source {
            Source::Files(files) => files,
            _ => &[],
        };
        let granted = files.iter().filter_map(|file| Some((file, file.token.as_ref()?)));
        granted.map(move |(file, grant)| (volume, file, grant))
    })
}
