//! Envoy's bootstrap configuration as a file.

use super::{EnvoyError, EnvoySettings};
use crate::bootstrap;
use std::path::{Path, PathBuf};

/// The file Envoy reads at its start.
pub(super) enum Config {
    /// Written by the agent; removed on drop.
    Made(PathBuf),
    /// Supplied by the user.
    Given(PathBuf),
}

impl Config {
    pub(super) fn write(envoy: &EnvoySettings) -> Result<Self, EnvoyError> {
        if let Some(path) = &envoy.custom_config {
            return Ok(Self::Given(path.clone()));
        }
        let bootstrap = match &envoy.template {
            Some(template) => {
                let text = std::fs::read_to_string(template).map_err(|source| EnvoyError::Template {
                    path: template.clone(),
                    source,
                })?;
                bootstrap::from_template(&envoy.description, &text)?
            }
            None => bootstrap::render(&envoy.description)?,
        };
        let path = envoy.config_path.join("envoy-rev.json");
        let write = || {
            std::fs::create_dir_all(&envoy.config_path)?;
            std::fs::write(&path, format!("{bootstrap:#}\n"))
        };
        match write() {
            Ok(()) => Ok(Self::Made(path)),
            Err(source) => Err(EnvoyError::Write { path, source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Made(path) | Self::Given(path) => path,
        }
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        if let Self::Made(path) = self {
            // So that no outdated file remains. A failure is harmless: the next start writes the file again.
            let _ = std::fs::remove_file(path);
        }
    }
}
