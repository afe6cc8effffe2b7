//! Jobs: pods that follow those that ended, until enough have succeeded or too many have failed.

use std::time::Duration;

use remora_startup::kubelet::{Config, Phase};

use super::Controller;
use crate::manifest::Owner;
use crate::world::PodId;

impl Controller {
    /// Makes the next pod of a Job when one has ended.
    pub(super) async fn follow_job(&mut self, id: PodId) {
        let entry = &self.pods[id];
        if !matches!(entry.planned.owner, Owner::Job(_)) {
            return;
        }
        let phase = entry.status.as_ref().map(|s| s.phase);
        let Some(phase) = phase.filter(|p| p.is_terminal() && !entry.ended) else {
            return;
        };
        self.pods[id].ended = true;
        self.count_job(id, phase == Phase::Succeeded).await;
    }

    /// A pod of a Job has ended: another may have to follow.
    pub(super) async fn count_job(&mut self, id: PodId, succeeded: bool) {
        let planned = self.pods[id].planned.clone();
        let Owner::Job(job) = planned.owner.clone() else {
            return;
        };
        let stopping = self.stopping;
        let progress = self.progress(&planned, &job);
        if succeeded {
            progress.succeeded += 1;
        } else {
            progress.failed += 1;
        }
        let running = progress.made - progress.succeeded - progress.failed;
        let wanted = job.completions.saturating_sub(progress.succeeded);
        let (next, failed) = (progress.made, progress.failed);
        if stopping || progress.failed > job.backoff_limit || wanted <= running || running >= job.parallelism
        {
            return;
        }
        self.add(planned.again(next)).await;
        if let (false, Some(entry)) = (succeeded, self.pods.last_mut()) {
            entry.not_before += backoff(&self.options.kubelet, failed);
        }
        self.start_due();
    }
}

/// How long a Job waits before it makes another pod after so many failures.
// k8s: as long as for containers that crash: 10 s, doubled each time.
fn backoff(kubelet: &Config, failures: u32) -> Duration {
    let doubled = 1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    let wait = kubelet.first_backoff.saturating_mul(doubled);
    Duration::from_millis(wait.min(kubelet.max_backoff))
}

#[cfg(test)]
mod tests {
    use super::backoff;
    use remora_startup::kubelet::Config;

    #[test]
    fn a_job_waits_longer_after_each_failure() {
        let waits = [1, 2, 3, 40, 400].map(|failures| backoff(&Config::default(), failures).as_secs());
        assert_eq!(waits, [10, 20, 40, 300, 300]);
    }
}
