//! `remora check`: will this pod start and stop, and why not?
//!
//! Every pod of every document is checked on its own and told at once; memory is needed for one document. Errors of
//! all files are reported. Output waits until everything has been read, so that a page or a document for programs is
//! never cut off. Nothing is decided here about pods: the model is `remora-startup`.

mod args;
mod assume;
mod explain;
mod fix;
mod html;
mod json;
mod lanes;
mod live;
mod markup;
pub(crate) mod measured;
mod page;
mod policies;
mod sarif;
mod scale;
mod snippet;
mod subject;
mod svg;
mod text;
mod told;
mod words;

pub(crate) use args::{ABOUT, AFTER, Args};
pub(crate) use told::{Told, told};
pub(crate) use words::tame;

use crate::commands::inject::{self, chain, counted};
use crate::input::{Input, Source};
use crate::out;
use crate::progress::Progress;
use crate::spool::Spool;
use anyhow::bail;
use args::FormatChoice;
use assume::Assumptions;
use fix::Fixes;
use policies::Policy;
use remora_inject::{Inventory, Settings, inject_object};
use remora_pod::workload::{self, Shape};
use remora_pod::yaml::{self, Document, Limits, Place, RawDocument};
use remora_pod::{Path, object};
use remora_startup::findings::{Options, Severity};
use remora_startup::mesh::Mode;
use serde_json::Value;
use std::process::ExitCode;
use subject::{Origin, Subject};

/// Could not check.
const UNCHECKED: u8 = 2;

/// Runs the command; whatever kept it from checking ends in an exit code of its own.
pub(crate) fn run(args: &Args) -> ExitCode {
    match checked(args) {
        Ok(code) => code,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::error(&error);
            ExitCode::from(UNCHECKED)
        }
    }
}

fn checked(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(code) = &args.explain {
        out::styled(&explain::page(code)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    args.consistent()?;
    let mut options = options(args)?;
    let assumptions = args.assume.as_deref().map(Assumptions::read).transpose()?;
    let settings = args
        .inject
        .then(|| inject::settings(&args.injection()))
        .transpose()?;
    let input = if args.is_live() {
        let found = live::find(args)?;
        options.kubelet = options.kubelet.or(found.kubelet);
        found.input
    } else {
        Input::find(&args.filename, args.recursive)?
    };
    let injection = settings.map(|settings| Injection {
        inventory: inject::survey(&input, args.namespace.as_deref()),
        settings,
    });
    let mut work = Work::new(args, &options, injection.as_ref(), assumptions, input.bytes());
    for source in &input.sources {
        work.source(source)?;
    }
    work.finish()
}

fn options(args: &Args) -> anyhow::Result<Options> {
    if let Some(version) = &args.kubelet
        && remora_inject::native::minor(version).is_none()
    {
        bail!("--kubelet: {version:?} is not a version such as 1.33");
    }
    Ok(Options {
        mode: args.mode.map(args::ModeChoice::mode),
        kubelet: args.kubelet.clone(),
        strict: args.strict_mtls,
    })
}

/// What `--inject` needs.
struct Injection {
    settings: Settings,
    inventory: Inventory,
}

/// How many of everything.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    pods: usize,
    clean: usize,
    /// Pods that are in a mesh.
    meshed: usize,
    errors: usize,
    warnings: usize,
    notes: usize,
    /// Policies, which are no pods.
    policies: usize,
    /// Errors and warnings about them, which are among those above.
    policy_findings: usize,
    /// Files, documents and objects that could not be checked.
    unchecked: usize,
    worst: Option<Severity>,
}

impl Totals {
    fn count(&mut self, subject: &Subject<'_>) {
        self.pods += 1;
        self.clean += usize::from(subject.is_clean());
        self.meshed += usize::from(subject.report.analysis.setup.mode != Mode::None);
        self.errors += subject.count(Severity::Error);
        self.warnings += subject.count(Severity::Warning);
        self.notes += subject.count(Severity::Note);
        self.worst = [self.worst, subject.report.worst()].into_iter().flatten().min();
    }

    fn count_policy(&mut self, policy: &Policy<'_>) {
        self.policies += 1;
        self.policy_findings += policy.findings.len();
        self.errors += policy.count(Severity::Error);
        self.warnings += policy.count(Severity::Warning);
        self.worst = [self.worst, policy.worst()].into_iter().flatten().min();
    }

    /// Whether something was found in pods, which `--fix` may mend.
    fn is_mendable(&self) -> bool {
        self.errors + self.warnings > self.policy_findings
    }

    /// `3 pods and 1 policy checked: 2 errors, 1 warning`.
    fn sentence(&self) -> String {
        let counts = [
            (self.errors, "error"),
            (self.warnings, "warning"),
            (self.notes, "note"),
        ];
        let found: Vec<String> = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, word)| counted(*n, word))
            .collect();
        let found = if found.is_empty() {
            "nothing wrong".to_owned()
        } else {
            found.join(", ")
        };
        let mut subjects = Vec::new();
        if self.pods > 0 || self.policies == 0 {
            subjects.push(counted(self.pods, "pod"));
        }
        match self.policies {
            0 => {}
            1 => subjects.push("1 policy".to_owned()),
            many => subjects.push(format!("{many} policies")),
        }
        format!("{} checked: {found}", subjects.join(" and "))
    }
}

/// A way of telling.
trait Format {
    /// Tells about one pod.
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()>;

    /// Tells about one policy.
    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()>;

    /// The whole output.
    fn close(self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool>;
}

fn format_of(args: &Args) -> anyhow::Result<Box<dyn Format>> {
    Ok(match args.format {
        FormatChoice::Text => Box::new(text::Text::new(args.verbose, args.output.is_some())),
        FormatChoice::Json => Box::new(json::Json::new()?),
        FormatChoice::Sarif => Box::new(sarif::Sarif::new()?),
        FormatChoice::Html => Box::new(html::Html::new()),
        FormatChoice::Svg => Box::new(svg::Svg::new()),
    })
}

/// The pass over the input.
struct Work<'a> {
    args: &'a Args,
    options: &'a Options,
    injection: Option<&'a Injection>,
    assumptions: Option<Assumptions>,
    format: Option<Box<dyn Format>>,
    fixes: Option<Fixes>,
    totals: Totals,
    progress: Progress,
    documents: usize,
}

impl<'a> Work<'a> {
    fn new(
        args: &'a Args,
        options: &'a Options,
        injection: Option<&'a Injection>,
        assumptions: Option<Assumptions>,
        bytes: u64,
    ) -> Self {
        Self {
            args,
            options,
            injection,
            assumptions,
            format: None,
            fixes: args.fix.map(Fixes::new),
            totals: Totals::default(),
            progress: Progress::new(bytes),
            documents: 0,
        }
    }

    fn source(&mut self, source: &Source) -> anyhow::Result<()> {
        if self.format.is_none() && self.fixes.is_none() {
            self.format = Some(format_of(self.args)?);
        }
        let mut failed = None;
        let read = source.each(|raw| {
            let result = self.document(&source.name, &raw);
            // Errors of reading are the file's, all others end the work.
            result.map_err(|e| {
                failed = Some(e);
                anyhow::anyhow!("stopped")
            })
        });
        match (failed, read) {
            (Some(error), _) => return Err(error),
            (None, Err(error)) => self.error(format!("{error:#}")),
            (None, Ok(())) => {}
        }
        Ok(())
    }

    fn document(&mut self, file: &str, raw: &RawDocument<'_>) -> anyhow::Result<()> {
        self.documents += 1;
        match yaml::parse(raw, Limits::default()) {
            Ok(Some(document)) => self.objects(file, raw, document)?,
            Ok(None) => {}
            Err(error) => {
                let hint = error.hint();
                self.error(error.locate(file, raw.index + 1));
                if let Some(hint) = hint {
                    out::note(hint);
                }
            }
        }
        self.progress.advance(raw.text.len() as u64, self.documents);
        Ok(())
    }

    fn objects(&mut self, file: &str, raw: &RawDocument<'_>, document: Document) -> anyhow::Result<()> {
        let Document { mut value, marks } = document;
        let place = |path: &Path| Place {
            file: file.to_owned(),
            document: raw.index + 1,
            mark: Some(marks.nearest(path).key()),
            path: path.clone(),
        };
        let written = self.inject(&mut value, &place);
        let origin = Origin {
            file,
            raw,
            marks: &marks,
            written: written.as_ref(),
        };
        for policy in policies::check(origin, &value) {
            self.policy(&policy)?;
        }
        let mut found = Vec::new();
        for shape in workload::find(&value) {
            match shape {
                Shape::Workload(workload) => found.push(workload),
                Shape::MissingTemplate(missing) if written.is_none() => {
                    let name = object::display_name(missing.object.get(&value).unwrap_or(&Value::Null));
                    self.error(format!("{}: {name}: {missing}", place(&missing.template)));
                }
                Shape::MissingTemplate(_) | Shape::Other { .. } => {}
            }
        }
        if let Some(fixes) = &mut self.fixes {
            return fixes.document(origin, &value, &found, self.options, &mut self.totals);
        }
        for workload in found {
            let subject = Subject::check(origin, &value, workload.object, self.options);
            self.tell(subject)?;
        }
        Ok(())
    }

    /// Injects a document and keeps it as it was written.
    fn inject(&mut self, value: &mut Value, place: &dyn Fn(&Path) -> Place) -> Option<Value> {
        let injection = self.injection?;
        let written = value.clone();
        let report = inject_object(value, &injection.settings, &injection.inventory);
        for error in &report.errors {
            let at = place(&error.path);
            self.error(format!("{at}: {}: {}", error.workload, chain(&error.error)));
        }
        for pod in &report.pods {
            // A finding says that one better.
            for warning in pod.warnings.iter().filter(|w| w.code != "init-without-network") {
                out::warning(format!("{}: {}: {warning}", place(&pod.path), pod.workload));
            }
            if let Some(skip) = pod.skipped {
                out::note(format!(
                    "{}: {} is not injected: it {skip}",
                    place(&pod.path),
                    pod.workload
                ));
            }
        }
        Some(written)
    }

    fn tell(&mut self, mut subject: Subject<'_>) -> anyhow::Result<()> {
        if let Some(assumptions) = &mut self.assumptions {
            let play = assumptions.play(&subject.report.analysis, self.options)?;
            subject.assumed = Some(play);
        }
        self.totals.count(&subject);
        match &mut self.format {
            Some(format) => format.pod(&subject),
            None => Ok(()),
        }
    }

    /// No fix is known that can be applied by itself, so `--fix` names what is wrong and changes nothing.
    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()> {
        self.totals.count_policy(policy);
        if let Some(format) = &mut self.format {
            return format.policy(policy);
        }
        policy.warn();
        Ok(())
    }

    fn error(&mut self, text: impl std::fmt::Display) {
        self.totals.unchecked += 1;
        out::error_text(text);
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        self.progress.finish();
        if let Some(assumptions) = &self.assumptions {
            assumptions.finish()?;
        }
        let totals = self.totals;
        if let Some(fixes) = self.fixes {
            if totals.unchecked > 0 {
                let count = counted(totals.unchecked, "error");
                out::note(format!("{count}; nothing was written"));
                return Ok(ExitCode::from(UNCHECKED));
            }
            fixes.release(self.args.output.as_deref())?;
        } else if let Some(format) = self.format {
            let spool = format.close(&totals)?;
            match (&self.args.output, self.args.format) {
                (None, FormatChoice::Text) => spool.release_styled()?,
                (target, _) => spool.release(target.as_deref())?,
            }
        }
        hints(&totals, self.options);
        Ok(if totals.unchecked > 0 {
            ExitCode::from(UNCHECKED)
        } else {
            ExitCode::from(u8::from(self.args.fail_on.fails(totals.worst)))
        })
    }
}

fn hints(totals: &Totals, options: &Options) {
    if totals.pods == 0 && totals.unchecked == 0 && totals.policies == 0 {
        out::note("there is no pod in the input");
    } else if totals.pods > 0 && totals.meshed == 0 && options.mode.is_none() {
        out::note(
            "no pod is in a mesh; --inject checks what an injection makes of them, --mode what a mesh would",
        );
    }
}
