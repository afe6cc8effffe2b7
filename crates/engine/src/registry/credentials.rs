//! Credentials in Docker's form: the file people have, and the secrets pods name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// Names, passwords and programs that know them, by registry.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    known: BTreeMap<String, Secret>,
    /// A program for one registry.
    helpers: BTreeMap<String, String>,
    /// A program for all others.
    helper: Option<String>,
}

/// Who asks. Shown without the secret part.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    Password {
        user: String,
        password: String,
    },
    /// To be exchanged for a token.
    Identity(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => write!(f, "Password of {user:?}"),
            Self::Identity(_) => f.write_str("Identity"),
        }
    }
}

/// Why credentials could not be had.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Not Docker's form.
    #[error("read the registry credentials")]
    Json(#[from] serde_json::Error),
    /// The entry of a registry.
    #[error("the credentials for {0} are not user:password in base64")]
    Entry(String),
    /// A helper program.
    #[error("run docker-credential-{helper}")]
    Helper {
        /// Which.
        helper: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// What a helper program may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl Credentials {
    /// Reads `config.json` of Docker, as the operator of this machine has it. Helpers that it names are run.
    pub fn from_json(text: &str) -> Result<Self, CredentialsError> {
        let file: File = serde_json::from_str(text)?;
        let mut known = BTreeMap::new();
        for (registry, entry) in &file.auths {
            if let Some(secret) = entry.read(registry)? {
                known.insert(host(registry), secret);
            }
        }
        let helpers = file.cred_helpers.into_iter().map(|(r, h)| (host(&r), h));
        Ok(Self {
            known,
            helpers: helpers.collect(),
            helper: file.creds_store.filter(|h| !h.is_empty()),
        })
    }

    /// Reads what is under `.dockerconfigjson` in a pull Secret, and names the helpers that are ignored.
    ///
    /// A Secret comes with a manifest, which another person may have written. Helpers are programs of this machine, so
    /// only the operator's own configuration may choose them. A kubelet ignores them in Secrets as well.
    pub fn from_secret(text: &str) -> Result<(Self, Vec<String>), CredentialsError> {
        let mut credentials = Self::from_json(text)?;
        let one = std::mem::take(&mut credentials.helpers).into_values();
        let mut ignored: Vec<String> = one.chain(credentials.helper.take()).collect();
        ignored.sort();
        ignored.dedup();
        Ok((credentials, ignored))
    }

    /// Adds others; where both know a registry, the others win.
    pub fn extend(&mut self, others: Self) {
        // What a Secret has for a host is used instead of a helper, because known passwords are looked at first.
        self.known.extend(others.known);
        self.helpers.extend(others.helpers);
        self.helper = others.helper.or(self.helper.take());
    }

    /// Whether programs of this machine may be run for them.
    pub(crate) fn has_helpers(&self) -> bool {
        self.helper.is_some() || !self.helpers.is_empty()
    }

    /// The credential of a host, written as in [`Reference::registry`](crate::image::Reference::registry).
    pub(super) async fn find(&self, registry: &str) -> Result<Option<Secret>, CredentialsError> {
        let registry = &host(registry);
        if let Some(secret) = self.known.get(registry) {
            return Ok(Some(secret.clone()));
        }
        let helper = self.helpers.get(registry).or(self.helper.as_ref());
        match helper {
            None => Ok(None),
            Some(helper) => ask(helper, registry)
                .await
                .map_err(|source| CredentialsError::Helper {
                    helper: helper.clone(),
                    source,
                }),
        }
    }
}

impl Entry {
    fn read(&self, registry: &str) -> Result<Option<Secret>, CredentialsError> {
        let wrong = || CredentialsError::Entry(registry.to_owned());
        if let Some(token) = self.identitytoken.as_ref().filter(|t| !t.is_empty()) {
            return Ok(Some(Secret::Identity(token.clone())));
        }
        if let Some(auth) = self.auth.as_ref().filter(|a| !a.is_empty()) {
            let bytes = STANDARD.decode(auth.trim()).map_err(|_| wrong())?;
            let text = String::from_utf8(bytes).map_err(|_| wrong())?;
            let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or_else(wrong)?;
            return Ok(Some(Secret::Password {
                user: user.to_owned(),
                password: password.to_owned(),
            }));
        }
        Ok(match (&self.username, &self.password) {
            (Some(user), Some(password)) => Some(Secret::Password {
                user: user.clone(),
                password: password.clone(),
            }),
            // Docker leaves an empty entry when a helper keeps the secret.
            _ => None,
        })
    }
}

/// The registry an entry is for: people write whole addresses.
fn host(entry: &str) -> String {
    let bare = entry.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.split('/').next().unwrap_or(bare);
    let bare = bare.to_ascii_lowercase();
    match bare.as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        _ => bare,
    }
}

/// Helper programs are named in a file; only a plain name is taken for one.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

async fn ask(helper: &str, registry: &str) -> io::Result<Option<Secret>> {
    if !is_plain(helper) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut child = tokio::process::Command::new(format!("docker-credential-{helper}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(stored_name(registry).as_bytes()).await?;
    }
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    helped(output.status, &output.stdout)
}

/// The name under which Docker stores the credential of a registry.
fn stored_name(registry: &str) -> &str {
    if registry == "docker.io" {
        "https://index.docker.io/v1/"
    } else {
        registry
    }
}

/// What a helper says.
fn helped(status: ExitStatus, output: &[u8]) -> io::Result<Option<Secret>> {
    if !status.success() {
        let text = String::from_utf8_lossy(output).to_lowercase();
        // Not an error: nothing is stored for this registry.
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    let answer: Helped = serde_json::from_slice(output)?;
    Ok(Some(if answer.username == "<token>" {
        Secret::Identity(answer.secret)
    } else {
        Secret::Password {
            user: answer.username,
            password: answer.secret,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_usual_file() {
        let auth = STANDARD.encode("me:se:cret");
        let text = format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}}, "ghcr.io": {{"identitytoken": "t"}},
                "localhost:5000": {{"username": "u", "password": "p"}}, "empty.example": {{}}}},
                "credHelpers": {{"gcr.io": "no/such"}}, "HttpHeaders": {{}}}}"#
        );
        let credentials = Credentials::from_json(&text).unwrap();
        let password = |user: &str, password: &str| {
            Some(Secret::Password {
                user: user.into(),
                password: password.into(),
            })
        };
        assert_eq!(
            credentials.find("docker.io").await.unwrap(),
            password("me", "se:cret")
        );
        assert_eq!(
            credentials.find("localhost:5000").await.unwrap(),
            password("u", "p")
        );
        assert_eq!(
            credentials.find("ghcr.io").await.unwrap(),
            Some(Secret::Identity("t".into()))
        );
        assert_eq!(credentials.find("empty.example").await.unwrap(), None);
        // Not a plain name of a program.
        assert!(credentials.find("gcr.io").await.is_err());
        assert!(!format!("{credentials:?}").contains("cret"), "{credentials:?}");
        for bad in [
            "",
            "[]",
            r#"{"auths":{"x":{"auth":"%%"}}}"#,
            r#"{"auths":{"x":{"auth":"bm9jb2xvbg=="}}}"#,
        ] {
            assert!(Credentials::from_json(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_plain_name_is_the_name_of_a_helper() {
        for name in ["pass", "ecr-login", "a_b.c", "X9", "-", "_", "."] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "a/b", "../x", "a b", "a;b", "ä", "a\0", "/bin/sh"] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_helper_with_another_name_is_not_run() {
        let error = ask("no/such", "x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        // A plain name is looked for.
        let error = ask("remora-has-no-such-helper", "x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn later_credentials_win_and_the_rest_stays() {
        let read = |text: &str| Credentials::from_json(text).unwrap();
        let mut all = read(
            r#"{"auths": {"a.example": {"username": "a", "password": "1"},
                "b.example": {"username": "b", "password": "1"}}, "credsStore": "one",
                "credHelpers": {"c.example": "c"}}"#,
        );
        all.extend(read(
            r#"{"auths": {"https://B.example/v2/": {"username": "b", "password": "2"}}}"#,
        ));
        let password = |text: &str| match &all.known[text] {
            Secret::Password { password, .. } => password.clone(),
            Secret::Identity(_) => panic!("a password"),
        };
        assert_eq!(
            (password("a.example"), password("b.example")),
            ("1".into(), "2".into())
        );
        assert_eq!((all.helper.as_deref(), all.helpers.len()), (Some("one"), 1));
        all.extend(read(r#"{"credsStore": "two"}"#));
        assert_eq!(all.helper.as_deref(), Some("two"));
        assert!(all.has_helpers());
        assert!(!Credentials::default().has_helpers());
        assert!(read(r#"{"credsStore": "one"}"#).has_helpers());
        assert!(read(r#"{"credHelpers": {"c.example": "c"}}"#).has_helpers());
    }

    #[test]
    fn a_registry_is_known_by_its_host_however_it_is_written() {
        for (entry, expected) in [
            ("https://index.docker.io/v1/", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
            ("http://Localhost:5000/v2/", "localhost:5000"),
            ("ghcr.io", "ghcr.io"),
        ] {
            assert_eq!(host(entry), expected, "{entry}");
        }
    }

    #[test]
    fn a_helper_says_a_password_a_token_or_nothing() {
        use std::os::unix::process::ExitStatusExt as _;
        let [done, failed] = [0, 1 << 8].map(ExitStatus::from_raw);
        let password = Secret::Password {
            user: "me".into(),
            password: "p".into(),
        };
        let said = |text: &str| helped(done, text.as_bytes());
        assert_eq!(
            said(r#"{"Username": "me", "Secret": "p"}"#).unwrap(),
            Some(password)
        );
        assert_eq!(
            said(r#"{"Username": "<token>", "Secret": "t"}"#).unwrap(),
            Some(Secret::Identity("t".into()))
        );
        assert!(said("noise").is_err());
        let nothing = b"Credentials not found in native keychain";
        assert_eq!(helped(failed, nothing).unwrap(), None);
        assert!(helped(failed, br#"{"Username": "me", "Secret": "p"}"#).is_err());
        assert!(helped(done, nothing).is_err());
        assert_eq!(stored_name("docker.io"), "https://index.docker.io/v1/");
        assert_eq!(stored_name("ghcr.io"), "ghcr.io");
    }
}
