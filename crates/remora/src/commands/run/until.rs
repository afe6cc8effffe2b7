//! When a run is over, and whether it went well.

use super::pods::PodLine;
use remora_startup::kubelet::Phase;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// For ever, as far as a run is concerned.
const LONG: Duration = Duration::from_hours(24 * 365);

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Interrupted,
    Ready,
    Complete,
    After(Duration),
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "interrupted" => Self::Interrupted,
            "ready" => Self::Ready,
            "complete" => Self::Complete,
            other => Self::After(
                time(other)
                    .map_err(|_| format!("{other:?} is neither ready nor complete nor a time such as 30s"))?,
            ),
        })
    }
}

/// A time as Go writes it: `30s`, `5m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let nanos = remora_pod::duration::parse(text).map_err(|e| e.to_string())?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| format!("{text} is no time that could pass"))
}

/// How a run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything was as it should be.
    Well,
    /// Something was not.
    Badly,
    /// The run itself broke.
    Broken,
}

impl Verdict {
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Well => ExitCode::SUCCESS,
            Self::Badly | Self::Broken => ExitCode::FAILURE,
        }
    }
}

impl Until {
    pub(crate) fn deadline(self, timeout: Duration) -> Duration {
        match self {
            Self::Interrupted => LONG,
            Self::Ready | Self::Complete => timeout,
            Self::After(time) => time,
        }
    }

    /// Whether it is time to stop.
    pub(crate) fn reached(self, pods: &[PodLine]) -> Option<Verdict> {
        let wanted = match self {
            Self::Interrupted | Self::After(_) => return None,
            Self::Ready => pods.iter().all(|p| p.is_ready() || p.has_ended()),
            Self::Complete => pods
                .iter()
                .filter(|p| p.is_meant_to_end())
                .all(PodLine::has_ended),
        };
        (wanted && !pods.is_empty()).then(|| at_the_end(pods))
    }

    /// The verdict when the time is up.
    pub(crate) fn late(self, pods: &[PodLine]) -> Verdict {
        match self {
            Self::Ready | Self::Complete => Verdict::Badly,
            Self::Interrupted | Self::After(_) => at_the_end(pods),
        }
    }
}

/// The verdict over pods as they are now.
pub(crate) fn at_the_end(pods: &[PodLine]) -> Verdict {
    let fine = |pod: &PodLine| match pod.phase() {
        Phase::Succeeded => true,
        Phase::Failed => pod.was_replaced || pod.is_gone(),
        // What somebody deleted is as it should be.
        Phase::Pending | Phase::Running => pod.is_gone() || pod.is_ready() || pod.is_meant_to_end(),
    };
    if pods.iter().all(fine) {
        Verdict::Well
    } else {
        Verdict::Badly
    }
}
