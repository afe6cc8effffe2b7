//! Health checks of the application for the control plane: for workloads that no kubelet probes, such as VMs.
//!
//! The agent probes the application periodically once the sidecar is ready. The success and failure thresholds count
//! consecutive results. Only changes of the health are reported.
// istio: readinessProbe of the ProxyConfig, with the kubelet's fields and defaults.

use crate::children::Children;
use crate::probes::Probe;
use crate::readiness::Readiness;
use crate::settings::SettingsError;
use crate::xds_proxy::Health;
use remora_net::process;
use serde_json::Value;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::watch;

/// A health check: the probe, its period and its thresholds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    question: Question,
    delay: Duration,
    period: Duration,
    timeout: Duration,
    success: u64,
    failure: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Question {
    Network(Probe),
    Command(Vec<String>),
}

impl Schedule {
    pub(crate) fn parse(value: &Value) -> Result<Self, SettingsError> {
        let number = |field: &str, usual: u64| match value.get(field) {
            None => usual,
            Some(given) => given.as_u64().filter(|number| *number > 0).unwrap_or(usual),
        };
        let timeout = Duration::from_secs(number("timeoutSeconds", 1));
        Ok(Self {
            question: question(value)?,
            delay: Duration::from_secs(number("initialDelaySeconds", 0)),
            period: Duration::from_secs(number("periodSeconds", 10)),
            timeout,
            success: number("successThreshold", 1),
            failure: number("failureThreshold", 1),
        })
    }

    /// Probes indefinitely, once the sidecar is ready.
    pub(crate) async fn follow(
        self,
        at: IpAddr,
        readiness: Readiness,
        children: Children,
        changes: watch::Sender<Option<Health>>,
    ) {
        readiness.settled().await;
        tokio::time::sleep(self.delay).await;
        let mut count = Count::default();
        loop {
            let answer = match tokio::time::timeout(self.timeout, self.ask(at, &children)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer in {} s", self.timeout.as_secs())),
            };
            if let Some(health) = count.next(answer, self.success, self.failure) {
                changes.send_replace(Some(health));
            }
            tokio::time::sleep(self.period).await;
        }
    }

    async fn ask(&self, at: IpAddr, children: &Children) -> Result<(), String> {
        let words = match &self.question {
            Question::Network(probe) => return probe.passes(at).await,
            Question::Command(words) => words,
        };
        let (program, arguments) = words.split_first().ok_or("no command")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        process::kill_with_parent(&mut command);
        let child = children
            .spawn(&mut command)
            .map_err(|error| format!("run {program}: {error}"))?;
        let mut running = Running(child);
        match running.0.ended().await {
            status if status.success() => Ok(()),
            status => Err(format!("{program}: {status}")),
        }
    }
}

/// A running command; it is killed on drop, for example after a timeout.
struct Running(crate::children::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Usually it has exited already.
        let _ = self.0.signal(process::KILL);
    }
}

fn question(value: &Value) -> Result<Question, SettingsError> {
    let wrong = |expected| SettingsError::Value {
        name: "readinessProbe".to_owned(),
        value: value.to_string(),
        expected,
    };
    let Some(exec) = value.get("exec") else {
        return match Probe::parse(value) {
            Ok(probe) => Ok(Question::Network(probe)),
            Err(_) => Err(wrong(
                "a probe with a port and one of httpGet, tcpSocket, grpc and exec",
            )),
        };
    };
    let words = exec
        .get("command")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let words: Vec<String> = words.filter_map(Value::as_str).map(str::to_owned).collect();
    if words.is_empty() {
        return Err(wrong("a command to run"));
    }
    Ok(Question::Command(words))
}

/// Counts consecutive equal results.
#[derive(Debug, Default)]
struct Count {
    healthy: Option<bool>,
    row: u64,
    last: Option<bool>,
}

impl Count {
    /// Adds a result. Returns the health if it changed.
    fn next(&mut self, answer: Result<(), String>, success: u64, failure: u64) -> Option<Health> {
        let good = answer.is_ok();
        self.row = if self.last == Some(good) { self.row + 1 } else { 1 };
        self.last = Some(good);
        let enough = self.row >= if good { success } else { failure };
        if !enough || self.healthy == Some(good) {
            return None;
        }
        self.healthy = Some(good);
        Some(match answer {
            Ok(()) => Health::Healthy,
            Err(why) => Health::Unhealthy(why),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, Schedule};
    use crate::xds_proxy::Health;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn only_lasting_changes_are_reported() {
        let mut count = Count::default();
        let sick = || Err("refused".to_owned());
        assert_eq!(count.next(Ok(()), 2, 3), None);
        assert_eq!(count.next(Ok(()), 2, 3), Some(Health::Healthy));
        assert_eq!(count.next(Ok(()), 2, 3), None, "nothing new");
        assert_eq!(count.next(sick(), 2, 3), None);
        assert_eq!(count.next(sick(), 2, 3), None);
        assert_eq!(count.next(Ok(()), 2, 3), None, "it came back in time");
        for _ in 0..2 {
            assert_eq!(count.next(sick(), 2, 3), None);
        }
        assert_eq!(
            count.next(sick(), 2, 3),
            Some(Health::Unhealthy("refused".to_owned()))
        );
    }

    #[test]
    fn fields_have_the_kubelets_defaults_and_mistakes_are_reported() {
        let schedule = Schedule::parse(&json!({"tcpSocket": {"port": 8080}})).unwrap();
        assert_eq!(
            (
                schedule.delay,
                schedule.period,
                schedule.timeout,
                schedule.success,
                schedule.failure
            ),
            (
                Duration::ZERO,
                Duration::from_secs(10),
                Duration::from_secs(1),
                1,
                1
            )
        );
        assert!(Schedule::parse(&json!({"exec": {"command": ["true"]}})).is_ok());
        for wrong in [json!({}), json!({"httpGet": {"path": "/"}}), json!({"exec": {}})] {
            let error = Schedule::parse(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("readinessProbe is"), "{error}");
        }
    }
}
