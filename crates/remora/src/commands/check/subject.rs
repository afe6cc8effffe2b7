//! One checked pod, and where in the user's file things about it are written.

use crate::commands::run::Course;
use remora_pod::yaml::{Marks, RawDocument};
use remora_pod::{Path, Segment, object};
use remora_startup::findings::{self, Options, Report, Severity};
use remora_startup::kubelet::Config;
use remora_startup::sim::{self, Scenario, Trace};
use remora_startup::timeline::Timeline;
use serde_json::Value;

/// The text a pod comes from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    /// As the user named it.
    pub(super) file: &'a str,
    pub(super) raw: &'a RawDocument<'a>,
    pub(super) marks: &'a Marks,
    /// The document as it was read, when an injection changed it since.
    pub(super) written: Option<&'a Value>,
}

impl Origin<'_> {
    /// Where a part of the document is written, or the nearest part around it.
    pub(super) fn spot(&self, path: &Path) -> Spot {
        let mark = self.marks.nearest(path).key();
        let index = usize::try_from(mark.line)
            .unwrap_or(0)
            .saturating_sub(self.raw.line);
        let text = self.raw.text.lines().nth(index).unwrap_or_default();
        Spot {
            line: mark.line,
            column: mark.column,
            text: text.to_owned(),
        }
    }
}

/// A place in a file, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) text: String,
}

/// A simulation of a pod.
pub(super) struct Play {
    pub(super) scenario: Scenario,
    pub(super) trace: Trace,
    pub(super) timeline: Timeline,
}

impl Play {
    pub(super) fn of(scenario: Scenario) -> Self {
        let trace = sim::simulate(&scenario);
        let timeline = Timeline::of(&scenario, &trace);
        Self {
            scenario,
            trace,
            timeline,
        }
    }
}

/// A checked pod.
pub(super) struct Subject<'a> {
    pub(super) origin: Origin<'a>,
    /// `Deployment "shop/cart"`.
    pub(super) name: String,
    /// The object that holds the pod.
    pub(super) object: &'a Value,
    /// Where that object is in its document.
    pub(super) at: Path,
    pub(super) options: &'a Options,
    pub(super) report: Report,
    /// What the user's assumptions lead to.
    pub(super) assumed: Option<Play>,
    /// What happened when it ran.
    pub(super) measured: Option<&'a Course>,
}

impl<'a> Subject<'a> {
    pub(super) fn check(origin: Origin<'a>, document: &'a Value, at: Path, options: &'a Options) -> Self {
        let object = at.get(document).unwrap_or(&Value::Null);
        Self {
            origin,
            name: object::display_name(object),
            object,
            at,
            options,
            report: findings::check(object, options),
            assumed: None,
            measured: None,
        }
    }

    /// Whether there is nothing to say but notes.
    pub(super) fn is_clean(&self) -> bool {
        self.report.worst().is_none_or(|worst| worst == Severity::Note)
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        let findings = &self.report.findings;
        findings.iter().filter(|f| f.severity == severity).count()
    }

    /// The usual course of the pod's life.
    pub(super) fn usual(&self) -> Play {
        usual(&self.report, self.options)
    }

    /// Where something in the object is written, by JSON pointer.
    pub(super) fn spot(&self, pointer: &str) -> Spot {
        let below = steps(self.object, pointer);
        let path = match self.origin.written {
            Some(written) => self.at.concat(&self.before_injection(written, &below)),
            None => self.at.concat(&below),
        };
        self.origin.spot(&path)
    }

    /// JSON pointer in the whole document of a pointer in the object.
    pub(super) fn pointer(&self, below: &str) -> String {
        pointer(&self.at) + below
    }

    /// Injection moves containers; their names tell where they were written.
    fn before_injection(&self, written: &Value, path: &Path) -> Path {
        let is_list =
            |s: &Segment| matches!(s, Segment::Key(k) if k == "initContainers" || k == "containers");
        let steps = path.segments();
        let Some(list) = steps.iter().position(is_list) else {
            return path.clone();
        };
        let spec: Path = steps.iter().take(list).cloned().collect();
        let container: Path = steps.iter().take(list + 2).cloned().collect();
        let name = container.get(self.object).map(|c| &c["name"]);
        let written = self.at.get(written).unwrap_or(&Value::Null);
        for key in ["initContainers", "containers"] {
            let place = spec.join(key);
            let items = place.get(written).and_then(Value::as_array);
            let found = items.and_then(|items| items.iter().position(|c| Some(&c["name"]) == name));
            if let Some(index) = found {
                let rest: Path = steps.iter().skip(list + 2).cloned().collect();
                return place.join(index).concat(&rest);
            }
        }
        spec
    }
}

/// A path as a JSON pointer.
pub(super) fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for step in path.segments() {
        pointer.push('/');
        match step {
            Segment::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
            Segment::Index(index) => pointer.push_str(&index.to_string()),
        }
    }
    pointer
}

pub(super) fn usual(report: &Report, options: &Options) -> Play {
    let mut scenario = Scenario::life(&report.analysis);
    set_kubelet(&mut scenario, options);
    Play::of(scenario)
}

/// The kubelet of the version the user named.
pub(super) fn set_kubelet(scenario: &mut Scenario, options: &Options) {
    if let Some(version) = &options.kubelet {
        let pass_delay = scenario.kubelet.pass_delay;
        scenario.kubelet = Config {
            pass_delay,
            ..Config::for_version(version)
        };
    }
}

/// A JSON pointer as a path in this value.
fn steps(value: &Value, pointer: &str) -> Path {
    let mut at = Some(value);
    let mut path = Path::root();
    for token in pointer.split('/').skip(1) {
        let key = token.replace("~1", "/").replace("~0", "~");
        let index = at
            .filter(|v| v.is_array())
            .and_then(|_| key.parse::<usize>().ok());
        at = match index {
            Some(index) => at.and_then(|v| v.get(index)),
            None => at.and_then(|v| v.get(key.as_str())),
        };
        path.push(index.map_or(Segment::Key(key), Segment::Index));
    }
    path
}
