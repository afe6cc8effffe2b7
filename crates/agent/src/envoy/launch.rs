//! Envoy's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How Envoy is started, apart from its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub binary: PathBuf,
    /// Duration of a drain.
    pub drain: Duration,
    /// Whether local addresses are IPv6.
    pub ipv6: bool,
    /// `warning`, or with components: `warning,misc:error`.
    pub log_level: String,
    /// `misc:error`; used where the level names no components.
    pub component_log_level: String,
    /// Suppresses warnings about deprecated fields.
    pub skip_deprecated_logs: bool,
    /// Leaves a core file when it crashes.
    pub core_dump: bool,
    /// Threads; `None` leaves it to Envoy, which takes one for each CPU.
    pub concurrency: Option<usize>,
    /// A file that is merged over the configuration.
    pub override_file: Option<PathBuf>,
}

/// The arguments after the program's name. `overlay` is the content of the override.
// istio: the same arguments in the same order.
pub(super) fn arguments(launch: &Launch, config: &Path, overlay: Option<&str>) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["-c".into(), config.into()];
    let mut say = |text: &str| words.push(text.into());
    say("--drain-time-s");
    say(&launch.drain.as_secs().to_string());
    say("--drain-strategy");
    say("immediate");
    say("--local-address-ip-version");
    say(if launch.ipv6 { "v6" } else { "v4" });
    say("--file-flush-interval-msec");
    say("1000");
    say("--disable-hot-restart");
    say("--allow-unknown-static-fields");
    let (level, components) = levels(launch);
    if !level.is_empty() {
        say("-l");
        say(&level);
    }
    if !components.is_empty() {
        say("--component-log-level");
        say(&components);
    }
    if launch.skip_deprecated_logs {
        say("--skip-deprecated-logs");
    }
    if launch.core_dump {
        say("--enable-core-dump");
    }
    if let Some(overlay) = overlay {
        say("--config-yaml");
        say(overlay);
    }
    if let Some(count) = launch.concurrency {
        say("--concurrency");
        say(&count.to_string());
    }
    words
}

/// The level, and the levels of components. A level may carry components itself.
fn levels(launch: &Launch) -> (String, String) {
    let (components, plain): (Vec<&str>, Vec<&str>) = launch
        .log_level
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .partition(|part| part.contains(':'));
    let level = plain.first().copied().unwrap_or_default().to_owned();
    if components.is_empty() {
        return (level, launch.component_log_level.clone());
    }
    (level, components.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            binary: "/usr/local/bin/envoy".into(),
            drain: Duration::from_secs(45),
            ipv6: false,
            log_level: "warning".to_owned(),
            component_log_level: "misc:error".to_owned(),
            skip_deprecated_logs: true,
            core_dump: false,
            concurrency: Some(2),
            override_file: None,
        }
    }

    fn line(launch: &Launch, overlay: Option<&str>) -> String {
        let words = arguments(launch, Path::new("envoy-rev.json"), overlay);
        let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn the_line_is_istios() {
        assert_eq!(
            line(&launch(), None),
            "-c envoy-rev.json --drain-time-s 45 --drain-strategy immediate --local-address-ip-version v4 \
             --file-flush-interval-msec 1000 --disable-hot-restart --allow-unknown-static-fields -l warning \
             --component-log-level misc:error --skip-deprecated-logs --concurrency 2"
        );
        let mut other = launch();
        other.log_level = "info,upstream:debug,misc:error".to_owned();
        other.ipv6 = true;
        other.skip_deprecated_logs = false;
        other.core_dump = true;
        other.concurrency = None;
        assert_eq!(
            line(&other, Some("{}")),
            "-c envoy-rev.json --drain-time-s 45 --drain-strategy immediate --local-address-ip-version v6 \
             --file-flush-interval-msec 1000 --disable-hot-restart --allow-unknown-static-fields -l info \
             --component-log-level upstream:debug,misc:error --enable-core-dump --config-yaml {}"
        );
    }
}
