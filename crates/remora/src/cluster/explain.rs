//! What went wrong with a cluster, in words for a person.
//!
//! The texts of the client name its own types, repeat their causes and show the environment of credential plugins,
//! which may hold secrets. None of that reaches a person from here.

use super::CONNECT;
use kube::client::AuthError;
use kube::config::ExecConfig;
use std::error::Error;
use std::io;

/// Longest text of a server or plugin that is shown.
const LONGEST: usize = 300;

/// The program that gets credentials.
pub(super) struct Plugin {
    command: String,
    install_hint: Option<String>,
}

impl Plugin {
    pub(super) fn of(exec: &ExecConfig) -> Self {
        Self {
            command: exec.command.clone().unwrap_or_default(),
            install_hint: exec.install_hint.clone(),
        }
    }
}

/// The error as the last link of a chain.
pub(super) fn failure(error: &kube::Error, plugin: Option<&Plugin>) -> anyhow::Error {
    anyhow::Error::msg(text(error, plugin))
}

fn text(error: &kube::Error, plugin: Option<&Plugin>) -> String {
    match error {
        kube::Error::Api(status) => match short(&status.message) {
            message if message.is_empty() => format!("the server answered {}", status.code),
            message => format!("the server answered {}: {message}", status.code),
        },
        kube::Error::Auth(error) => credentials(error, plugin),
        kube::Error::Service(error) => match error.downcast_ref::<AuthError>() {
            Some(error) => credentials(error, plugin),
            None if is_connect_timeout(error.as_ref()) => {
                format!("no connection within {} s", CONNECT.as_secs())
            }
            None => causes(error.as_ref()),
        },
        kube::Error::HyperError(error) => causes(error),
        kube::Error::RustlsTls(error) => causes(error),
        kube::Error::SerdeError(error) => {
            format!("the answer is not what a Kubernetes API server says: {error}")
        }
        kube::Error::InferKubeconfig(error) => error.to_string(),
        other => short(&other.to_string()),
    }
}

fn credentials(error: &AuthError, plugin: Option<&Plugin>) -> String {
    let command = plugin.map_or("", |plugin| &plugin.command);
    match error {
        AuthError::AuthExecStart(error) => {
            let hint = plugin.and_then(|plugin| plugin.install_hint.as_deref());
            let hint = hint.map(|hint| format!("; {}", short(hint))).unwrap_or_default();
            format!("cannot run the credential plugin {command:?}: {error}{hint}")
        }
        AuthError::AuthExecRun { out, .. } => {
            let said = short(&String::from_utf8_lossy(&out.stderr));
            format!(
                "the credential plugin {command:?} failed with {}: {said}",
                out.status
            )
        }
        // Its output is a credential, or most of one.
        AuthError::AuthExecParse(_) => {
            format!("the credential plugin {command:?} printed something that is no ExecCredential")
        }
        other => other.to_string(),
    }
}

/// Whether our own bound was reached, which has no error number; that of the system has one.
fn is_connect_timeout(error: &(dyn Error + 'static)) -> bool {
    anyhow::Chain::new(error)
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none())
}

/// The error and its causes in one line, each said once.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for said in anyhow::Chain::new(error).map(ToString::to_string) {
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
    }
    short(&text)
}

/// Foreign text in one line of bearable length, without control characters.
pub(super) fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut printable = line.chars().filter(|c| !c.is_control());
    let mut short: String = printable.by_ref().take(LONGEST).collect();
    if printable.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn foreign_text_stays_in_its_line() {
        assert_eq!(short("  a\n\tb\u{1b}[31m "), "a b[31m");
        assert_eq!(short(&"x".repeat(400)).chars().count(), 301);
        assert_eq!(short(""), "");
    }
}
