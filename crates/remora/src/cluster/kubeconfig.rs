//! Which cluster a kubeconfig means.
//!
//! k8s: a file named by flag stands alone; files listed in `KUBECONFIG` are merged, the first to say something wins,
//! and those that do not exist are passed over as long as one does.

use super::explain::short;
use crate::settings;
use anyhow::{Context as _, bail};
use kube::config::{Kubeconfig, KubeconfigError};
use std::fmt;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "KUBECONFIG";

/// A context of a kubeconfig.
pub(super) struct Access {
    config: Kubeconfig,
    files: Files,
    context: String,
    cluster: String,
}

/// Shows what an error about it must name.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.cluster().and_then(|c| c.server.as_deref());
        let server = server.unwrap_or("the cluster");
        write!(f, "{server} (context {:?} of {})", self.context, self.files)
    }
}

impl Access {
    fn cluster(&self) -> Option<&kube::config::Cluster> {
        let named = self.config.clusters.iter().find(|c| c.name == self.cluster)?;
        named.cluster.as_ref()
    }

    /// The proxy the file wants for this cluster.
    pub(super) fn proxy_url(&self) -> Option<&str> {
        self.cluster()?.proxy_url.as_deref().filter(|url| !url.is_empty())
    }

    /// What the client needs. Reads the certificates and keys the file names.
    pub(super) fn into_config(mut self) -> anyhow::Result<kube::Config> {
        self.config.current_context = Some(self.context);
        kube::Config::try_from(self.config).map_err(|error| anyhow::Error::msg(short(&error.to_string())))
    }
}

/// Whether the environment points at a cluster.
pub(super) fn is_in_environment() -> bool {
    !settings::paths(VARIABLE).is_empty()
}

/// Whether there is a file where everybody looks.
pub(super) fn is_there() -> bool {
    Files::chosen(None).is_ok_and(|files| files.0.iter().any(|path| path.exists()))
}

/// Reads the files and finds the context.
pub(super) fn read(given: Option<&Path>, context: Option<&str>) -> anyhow::Result<Access> {
    let files = Files::chosen(given)?;
    let config = files.read()?;
    choose(config, files, context)
}

fn choose(config: Kubeconfig, files: Files, context: Option<&str>) -> anyhow::Result<Access> {
    let current = config.current_context.as_deref().filter(|name| !name.is_empty());
    let contexts = listed(config.contexts.iter().map(|c| c.name.as_str()));
    let Some(name) = context.or(current) else {
        bail!("{files}: no current context; name one with --context, there {contexts}");
    };
    let found = config.contexts.iter().find(|c| c.name == name);
    let Some(context) = found.and_then(|c| c.context.as_ref()) else {
        bail!("{files}: no context {name:?}; there {contexts}");
    };
    let cluster = &context.cluster;
    if !config
        .clusters
        .iter()
        .any(|c| c.name == *cluster && c.cluster.is_some())
    {
        let clusters = listed(config.clusters.iter().map(|c| c.name.as_str()));
        bail!("{files}: context {name:?} is of cluster {cluster:?}, which is not there; there {clusters}");
    }
    let (context, cluster) = (name.to_owned(), cluster.clone());
    Ok(Access {
        config,
        files,
        context,
        cluster,
    })
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => "are none".to_owned(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.join(", ")),
    }
}

/// The files that make up a kubeconfig.
struct Files(Vec<PathBuf>);

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(|file| file.display().to_string()).collect();
        write!(f, "{}", names.join(", "))
    }
}

impl Files {
    fn chosen(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(file) = given {
            return Ok(Self(vec![file.to_owned()]));
        }
        let listed = settings::paths(VARIABLE);
        if listed.is_empty() {
            let home =
                settings::variable("HOME").context("no kubeconfig: neither KUBECONFIG nor HOME is set")?;
            return Ok(Self(vec![Path::new(&home).join(".kube").join("config")]));
        }
        // k8s: files of the list that do not exist are passed over.
        let there: Vec<PathBuf> = listed.iter().filter(|file| file.exists()).cloned().collect();
        Ok(Self(if there.is_empty() { listed } else { there }))
    }

    fn read(&self) -> anyhow::Result<Kubeconfig> {
        self.0.iter().try_fold(Kubeconfig::default(), |merged, file| {
            let read = read_file(file).with_context(|| format!("read kubeconfig {}", file.display()))?;
            let merged = merged.merge(read);
            merged.with_context(|| format!("merge kubeconfig {} with the files before", file.display()))
        })
    }
}

fn read_file(file: &Path) -> anyhow::Result<Kubeconfig> {
    let bytes = std::fs::read(file)?;
    // kube panics on UTF-16 that ends in the middle of a character.
    if matches!(bytes.as_slice(), [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..]) && bytes.len() % 2 == 1 {
        bail!("broken UTF-16");
    }
    Kubeconfig::read_from(file).map_err(|error| match error {
        KubeconfigError::ReadConfig(error, _) => error.into(),
        KubeconfigError::Parse(error) => anyhow::Error::msg(first_line(&error.to_string())),
        other => anyhow::Error::msg(short(&other.to_string())),
    })
}

/// What is wrong with a file, without the lines of it that the parser quotes, secrets included.
fn first_line(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    short(line.strip_prefix("error: ").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::{Files, choose, read_file};
    use kube::config::Kubeconfig;
    use std::io::Write as _;

    fn chosen(yaml: &str, context: Option<&str>) -> Result<String, String> {
        let config = Kubeconfig::from_yaml(yaml).unwrap();
        choose(config, Files(vec!["kc".into()]), context)
            .map(|access| access.to_string())
            .map_err(|error| error.to_string())
    }

    const TWO: &str = "
clusters: [{name: c1, cluster: {server: 'https://one'}}, {name: c2, cluster: {server: 'https://two'}}]
contexts:
- {name: dev, context: {cluster: c1, user: u}}
- {name: live, context: {cluster: c2, user: u}}
- {name: lost, context: {cluster: gone, user: u}}
";

    #[test]
    fn the_context_given_or_the_current_one() {
        let current = format!("{TWO}current-context: live\n");
        assert_eq!(
            chosen(&current, None).unwrap(),
            "https://two (context \"live\" of kc)"
        );
        assert_eq!(
            chosen(&current, Some("dev")).unwrap(),
            "https://one (context \"dev\" of kc)"
        );
    }

    #[test]
    fn what_is_not_there_is_named_with_what_is() {
        let error = |yaml, context| chosen(yaml, context).unwrap_err();
        assert_eq!(
            error(TWO, Some("nope")),
            "kc: no context \"nope\"; there are dev, live, lost"
        );
        assert_eq!(
            error(TWO, None),
            "kc: no current context; name one with --context, there are dev, live, lost"
        );
        assert_eq!(
            error(TWO, Some("lost")),
            "kc: context \"lost\" is of cluster \"gone\", which is not there; there are c1, c2"
        );
        assert_eq!(error("{}", Some("x")), "kc: no context \"x\"; there are none");
    }

    #[test]
    fn broken_files_are_errors_without_their_secrets() {
        let read = |bytes: &[u8]| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            format!("{:#}", read_file(file.path()).unwrap_err())
        };
        assert_eq!(read(b"\xFF\xFEa"), "broken UTF-16");
        assert_eq!(read(b"\xFF\xFF\xFF"), "Invalid UTF-8");
        let text = read(b"users:\n- name: u\n  user: {token: s3cret\ncontexts: 7\n");
        assert!(text.starts_with("line 4 ") && !text.contains("s3cret"), "{text}");
        let text = read(b"users: s3cret\n");
        assert!(!text.contains("s3cret"), "{text}");
    }
}
