//! A record as one line of JSON.

use super::{Direction, Reason, Record};
use serde::{Serialize, Serializer};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// In the order of the line.
// istio: names as in ztunnel's access log in JSON; `response_flags` as in metrics.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(serialize_with = "as_time")]
    time: SystemTime,
    level: &'static str,
    scope: &'static str,
    message: &'static str,
    #[serde(rename = "src.addr")]
    source: SocketAddr,
    #[serde(rename = "src.workload", skip_serializing_if = "Option::is_none")]
    source_workload: Option<&'a str>,
    #[serde(rename = "src.namespace", skip_serializing_if = "Option::is_none")]
    source_namespace: Option<&'a str>,
    #[serde(rename = "src.identity", skip_serializing_if = "Option::is_none")]
    source_id: Option<&'a str>,
    #[serde(rename = "dst.addr")]
    destination: SocketAddr,
    #[serde(rename = "dst.chosen", skip_serializing_if = "Option::is_none")]
    chosen: Option<SocketAddr>,
    #[serde(rename = "dst.service", skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(rename = "dst.workload", skip_serializing_if = "Option::is_none")]
    destination_workload: Option<&'a str>,
    #[serde(rename = "dst.namespace", skip_serializing_if = "Option::is_none")]
    destination_namespace: Option<&'a str>,
    #[serde(rename = "dst.identity", skip_serializing_if = "Option::is_none")]
    destination_id: Option<&'a str>,
    direction: &'static str,
    bytes_sent: u64,
    bytes_recv: u64,
    duration: String,
    response_flags: &'static str,
    #[serde(rename = "policy.dry_run", skip_serializing_if = "Option::is_none")]
    on_trial: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl Record {
    /// The line, with its end.
    pub fn json(&self) -> String {
        let failed = self.error.is_some();
        let (bytes_sent, bytes_recv) = self.sent_and_received();
        let line = Line {
            time: self.began + self.duration,
            level: if failed { "error" } else { "info" },
            scope: "access",
            message: if failed {
                "connection failed"
            } else {
                "connection complete"
            },
            source: self.source,
            source_workload: self.source_party.workload.as_deref(),
            source_namespace: self.source_party.namespace.as_deref(),
            source_id: self.source_id.as_ref().map(remora_mtls::SpiffeId::as_str),
            destination: self.destination,
            // On the way in it is the same.
            chosen: self.chosen.filter(|_| self.direction == Direction::Outbound),
            service: self.service.as_deref(),
            destination_workload: self.destination_party.workload.as_deref(),
            destination_namespace: self.destination_party.namespace.as_deref(),
            destination_id: self.destination_id.as_ref().map(remora_mtls::SpiffeId::as_str),
            direction: self.direction.word(),
            bytes_sent,
            bytes_recv,
            duration: format!("{}ms", self.duration.as_millis()),
            response_flags: self.reason.map_or("-", Reason::flag),
            on_trial: self.on_trial.as_deref(),
            reason: self.reason.map(Reason::code),
            error: self.error.as_deref(),
        };
        // A structure of texts and numbers can always be written.
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn as_time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp(*time))
}

/// In UTC with microseconds, as RFC 3339 has it.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

/// The date so many days after 1970 began. Years are counted from March, so that the day that comes and goes is the
/// last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    // From March of the year 0 on, in spans of 400 years, which are all alike.
    let days = days + 719_468;
    let (span, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (span * 400 + year + next, month, of_month)
}
