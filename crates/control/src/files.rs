//! Reads descriptions from files. All or nothing: one bad document and the whole is refused, with its place.

use crate::mesh::Document;
use remora_pod::yaml::{self, Limits, ReadError};
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or directory.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not YAML.
    #[error("read {name} as YAML")]
    Yaml {
        /// Which file.
        name: String,
        /// Where and why.
        #[source]
        source: ReadError,
    },
    /// YAML, but not what is expected.
    #[error("understand the document at line {line} of {name}")]
    Shape {
        /// Which file.
        name: String,
        /// Where the document starts.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Nothing in it.
    #[error("{name} is empty")]
    Empty {
        /// Which file.
        name: String,
    },
}

/// The documents of all files; of directories, those of `*.yaml` and `*.yml` directly in them, in order of name.
pub fn mesh(paths: &[PathBuf]) -> Result<Vec<Document>, LoadError> {
    let mut found = Vec::new();
    for path in paths {
        for file in expand(path)? {
            found.extend(documents(&read(&file)?, &file.display().to_string())?);
        }
    }
    Ok(found)
}

fn expand(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let yaml = file.extension().is_some_and(|e| e == "yaml" || e == "yml");
        // k8s: mounted ConfigMaps have hidden directories beside the links.
        if yaml && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    std::fs::read_to_string(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The documents of one text. `name` is for messages.
pub fn documents(text: &str, name: &str) -> Result<Vec<Document>, LoadError> {
    all(text, name)
}

/// The one document of a file.
pub(crate) fn one<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let name = path.display().to_string();
    let found = all(&read(path)?, &name)?;
    found.into_iter().next().ok_or(LoadError::Empty { name })
}

fn all<T: DeserializeOwned>(text: &str, name: &str) -> Result<Vec<T>, LoadError> {
    let mut found = Vec::new();
    for raw in yaml::split(text) {
        let document = yaml::parse(&raw, Limits::default()).map_err(|source| LoadError::Yaml {
            name: name.to_owned(),
            source,
        })?;
        let Some(document) = document else { continue };
        let typed = serde_json::from_value(document.value).map_err(|source| LoadError::Shape {
            name: name.to_owned(),
            line: raw.line,
            source,
        })?;
        found.push(typed);
    }
    Ok(found)
}
