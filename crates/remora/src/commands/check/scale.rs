//! From times to places on a line.
//!
//! A pod does much in its first two seconds and then nothing for a long time. So the line is not even: a stretch in
//! which nothing happens counts in full up to a limit and for little beyond it. Order is kept, and equal distances on
//! the line mean equal times only between neighbouring events; whoever draws it labels the events with their times.

use remora_startup::kubelet::Millis;
use remora_startup::timeline::Timeline;

/// Every two events are at least so far apart.
const LEAST: f64 = 90.0;
/// Quiet time that counts in full.
const FULL: Millis = 1200;
/// What a millisecond beyond that counts.
const BEYOND: f64 = 0.06;

/// A line with places for times.
pub(super) struct Scale {
    /// Times at which something happens, in order, with their places from 0 to 1.
    stops: Vec<(Millis, f64)>,
}

impl Scale {
    pub(super) fn of(timeline: &Timeline) -> Self {
        let mut times: Vec<Millis> = vec![0, timeline.end];
        times.extend(timeline.marks.iter().map(|m| m.from));
        for lane in &timeline.lanes {
            times.extend(lane.segments.iter().map(|s| s.from));
        }
        times.sort_unstable();
        times.dedup();
        let mut stops = Vec::with_capacity(times.len());
        let (mut place, mut before) = (0.0, None);
        for time in times {
            if let Some(before) = before {
                place += weight(time - before);
            }
            before = Some(time);
            stops.push((time, place));
        }
        if place > 0.0 {
            for stop in &mut stops {
                stop.1 /= place;
            }
        }
        Self { stops }
    }

    /// The place of a time, from 0 to 1.
    pub(super) fn place(&self, time: Millis) -> f64 {
        let after = self.stops.partition_point(|(t, _)| *t <= time);
        let Some((from, start)) = after.checked_sub(1).and_then(|i| self.stops.get(i)).copied() else {
            return 0.0;
        };
        let Some((to, end)) = self.stops.get(after).copied() else {
            return 1.0;
        };
        start + (end - start) * as_float(time - from) / as_float((to - from).max(1))
    }

    /// Times to label, not closer together than a part of the line.
    pub(super) fn ticks(&self, apart: f64) -> Vec<Millis> {
        let mut out: Vec<Millis> = Vec::new();
        let mut last = f64::NEG_INFINITY;
        for (time, place) in &self.stops {
            if place - last >= apart {
                out.push(*time);
                last = *place;
            }
        }
        out
    }
}

fn weight(gap: Millis) -> f64 {
    LEAST + as_float(gap.min(FULL)) + as_float(gap.saturating_sub(FULL)) * BEYOND
}

/// Times in a simulation are far below what a float holds exactly.
#[expect(
    clippy::cast_precision_loss,
    reason = "a picture needs no more than 52 bits of milliseconds"
)]
fn as_float(time: Millis) -> f64 {
    time as f64
}

#[cfg(test)]
mod tests {
    use super::Scale;
    use remora_startup::timeline::Timeline;

    fn scale(end: u64) -> Scale {
        Scale::of(&Timeline {
            end,
            lanes: Vec::new(),
            marks: Vec::new(),
            status: String::new(),
        })
    }

    #[test]
    fn later_is_never_further_left() {
        for end in [0, 1, 500, 30_000, u64::MAX] {
            let scale = scale(end);
            let mut last = 0.0;
            for step in 0..=100_u64 {
                let place = scale.place(end / 100 * step);
                assert!((0.0..=1.0).contains(&place) && place >= last, "{end}: {place}");
                last = place;
            }
        }
    }
}
