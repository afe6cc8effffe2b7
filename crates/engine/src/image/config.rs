//! What an image says about how to run it.

use super::digest::Digest;
use serde::Deserialize;

/// The part of an image's configuration that matters for running it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// Comes before the arguments (k8s: `command` replaces it).
    pub entrypoint: Vec<String>,
    /// Arguments (k8s: `args`, or a `command`, replaces them).
    pub cmd: Vec<String>,
    /// `NAME=value` pairs.
    pub env: Vec<(String, String)>,
    /// Working directory; empty is `/`.
    pub working_dir: String,
    /// Name or number, perhaps with a group; empty is root.
    pub user: String,
    /// Which signal asks it to stop.
    pub stop_signal: Option<String>,
    /// Machine it is for.
    pub architecture: String,
    /// Digests of the unpacked layers, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not the JSON expected.
    #[error("read the configuration of the image")]
    Json(#[from] serde_json::Error),
    /// A layer has no proper digest.
    #[error("read the configuration of the image")]
    Digest(#[from] super::digest::DigestError),
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    architecture: String,
    config: Option<Inner>,
    rootfs: Option<RootFs>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Inner {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Config {
    /// Reads the JSON document of an image.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let document: Document = serde_json::from_slice(json)?;
        let inner = document.config.unwrap_or_default();
        let diff_ids = document.rootfs.map(|r| r.diff_ids).unwrap_or_default();
        let pair = |text: String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (text, String::new()),
        };
        Ok(Self {
            entrypoint: inner.entrypoint.unwrap_or_default(),
            cmd: inner.cmd.unwrap_or_default(),
            env: inner.env.unwrap_or_default().into_iter().map(pair).collect(),
            working_dir: inner.working_dir.unwrap_or_default(),
            user: inner.user.unwrap_or_default(),
            stop_signal: inner.stop_signal.filter(|s| !s.is_empty()),
            architecture: document.architecture,
            diff_ids: diff_ids
                .iter()
                .map(|d| Digest::parse(d))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Program and arguments for what a pod says. k8s: a `command` without `args` drops the image's arguments too.
    pub fn args(&self, command: &[String], args: &[String]) -> Vec<String> {
        let (first, rest) = match (command.is_empty(), args.is_empty()) {
            (true, true) => (&self.entrypoint[..], &self.cmd[..]),
            (true, false) => (&self.entrypoint[..], args),
            (false, _) => (command, args),
        };
        first.iter().chain(rest).cloned().collect()
    }

    /// The signal that asks it to stop: SIGTERM unless the image names another.
    pub fn stop_signal(&self) -> i32 {
        let name = self.stop_signal.as_deref().unwrap_or("SIGTERM");
        signal_number(name).unwrap_or(libc::SIGTERM)
    }
}

/// `SIGTERM`, `TERM` or `15`.
pub fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    Some(match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "HUP" => libc::SIGHUP,
        "INT" => libc::SIGINT,
        "QUIT" => libc::SIGQUIT,
        "ABRT" => libc::SIGABRT,
        "KILL" => libc::SIGKILL,
        "USR1" => libc::SIGUSR1,
        "USR2" => libc::SIGUSR2,
        "PIPE" => libc::SIGPIPE,
        "ALRM" => libc::SIGALRM,
        "TERM" => libc::SIGTERM,
        "CONT" => libc::SIGCONT,
        "STOP" => libc::SIGSTOP,
        "WINCH" => libc::SIGWINCH,
        "PWR" => libc::SIGPWR,
        "RTMIN+3" => 37,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn read_and_combined_with_a_pod() {
        let digest = Digest::of(b"layer");
        let json = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Entrypoint":["/e"],"Cmd":["c"],"Env":["A=1=2","B"],
               "WorkingDir":"/w","User":"app","StopSignal":"SIGQUIT","Labels":null}},
               "rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        assert_eq!(
            config.env,
            [("A".into(), "1=2".into()), ("B".into(), String::new())]
        );
        assert_eq!(config.diff_ids, [digest]);
        assert_eq!(config.stop_signal(), libc::SIGQUIT);
        let cases: [(&[&str], &[&str], &[&str]); 4] = [
            (&[], &[], &["/e", "c"]),
            (&[], &["x"], &["/e", "x"]),
            (&["r"], &[], &["r"]),
            (&["r"], &["x"], &["r", "x"]),
        ];
        for (command, args, result) in cases {
            assert_eq!(config.args(&list(command), &list(args)), list(result));
        }
    }

    #[test]
    fn little_is_needed_and_nonsense_refused() {
        assert_eq!(Config::parse(b"{}").unwrap(), Config::default());
        assert_eq!(
            Config::parse(br#"{"config":null}"#).unwrap().stop_signal(),
            libc::SIGTERM
        );
        assert!(Config::parse(b"[]").is_err());
        assert!(Config::parse(br#"{"rootfs":{"diff_ids":["../x"]}}"#).is_err());
    }
}
