//! `remora inject`: manifests in, injected manifests out.
//!
//! Two passes over the input: the first learns about Namespaces and Instrumentations, the second injects. Output
//! leaves only when every document went well.

mod args;
pub(crate) mod diff;
mod mode;
mod options;

pub(crate) use args::{ABOUT, Args, InjectorChoice, NativeChoice, OrderChoice};
pub(crate) use options::{document, settings};

use crate::input::{Input, Source};
use crate::out;
use crate::progress::Progress;
use crate::spool::Spool;
use anyhow::bail;
use diff::Diff;
use remora_inject::{Inventory, ObjectReport, Settings, Skip, inject_object};
use remora_pod::Path;
use remora_pod::yaml::{self, Document, Limits, Place, RawDocument};
use std::process::ExitCode;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.filename.is_empty() {
        bail!("filename not specified (see --filename or -f)");
    }
    let settings = settings(args)?;
    let input = Input::find(&args.filename, args.recursive)?;
    let inventory = survey(&input, args.namespace.as_deref());
    let mut work = Work::new(args, &settings, &inventory, input.bytes());
    for source in &input.sources {
        work.source(source)?;
    }
    work.finish()
}

/// What the documents say about each other. Unreadable ones are reported by the second pass.
pub(crate) fn survey(input: &Input, namespace: Option<&str>) -> Inventory {
    let mut inventory = Inventory::default();
    if let Some(namespace) = namespace {
        inventory.set_default_namespace(namespace);
    }
    for source in &input.sources {
        // A file that cannot be read is reported by the second pass, together with all other errors.
        let _ = source.each(|raw| {
            if is_telling(&raw)
                && let Ok(Some(document)) = yaml::parse(&raw, Limits::default())
            {
                inventory.add(&document.value);
            }
            Ok(())
        });
    }
    inventory.finish();
    inventory
}

/// Whether a document may be of a kind the inventory keeps; spares most workloads a second parse.
fn is_telling(raw: &RawDocument<'_>) -> bool {
    [
        "Instrumentation",
        "Namespace",
        "Secret",
        "ConfigMap",
        "ReplicaSet",
        "Job",
        "List",
    ]
    .iter()
    .any(|kind| raw.text.contains(kind))
}

/// The second pass.
struct Work<'a> {
    args: &'a Args,
    settings: &'a Settings,
    inventory: &'a Inventory,
    spool: Spool,
    progress: Progress,
    documents: usize,
    errors: usize,
    warnings: usize,
    diff: Diff,
}

impl<'a> Work<'a> {
    fn new(args: &'a Args, settings: &'a Settings, inventory: &'a Inventory, bytes: u64) -> Self {
        Self {
            args,
            settings,
            inventory,
            spool: Spool::new(),
            progress: Progress::new(bytes),
            documents: 0,
            errors: 0,
            warnings: 0,
            diff: Diff::default(),
        }
    }

    fn source(&mut self, source: &Source) -> anyhow::Result<()> {
        let result = source.each(|raw| self.document(&source.name, &raw));
        match result {
            Err(error) if !out::is_broken_pipe(&error) => {
                self.error(format!("{error:#}"));
                Ok(())
            }
            other => other,
        }
    }

    fn document(&mut self, file: &str, raw: &RawDocument<'_>) -> anyhow::Result<()> {
        self.documents += 1;
        match yaml::parse(raw, Limits::default()) {
            Ok(Some(document)) => self.object(file, raw, document)?,
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

    fn object(&mut self, file: &str, raw: &RawDocument<'_>, document: Document) -> anyhow::Result<()> {
        let Document { mut value, marks } = document;
        let before = self.args.diff.then(|| value.clone());
        let report = inject_object(&mut value, self.settings, self.inventory);
        let place = |path: &Path| Place {
            file: file.to_owned(),
            document: raw.index + 1,
            mark: Some(marks.nearest(path).key()),
            path: path.clone(),
        };
        for error in &report.errors {
            self.error(format!(
                "{}: {}: {}",
                place(&error.path),
                error.workload,
                chain(&error.error)
            ));
        }
        self.warn(&report, place);
        if let Some(before) = before {
            for pod in &report.pods {
                self.diff.add(&pod.workload, &pod.path, &before, &value);
            }
        } else if report.changed() {
            self.spool.push(&yaml::write(&value))?;
            self.spool.push("---\n")?;
        } else {
            self.spool.push(raw.body().trim_end_matches(['\n', '\r']))?;
            self.spool.push("\n---\n")?;
        }
        Ok(())
    }

    fn warn(&mut self, report: &ObjectReport, place: impl Fn(&Path) -> Place) {
        for pod in &report.pods {
            if let Some(skip) = pod.skipped.filter(|skip| *skip != Skip::NotAsked) {
                self.warnings += 1;
                out::warning(format!(
                    "{}: Skipping injection because {} {skip}",
                    place(&pod.path),
                    pod.workload
                ));
            }
            for warning in &pod.warnings {
                self.warnings += 1;
                out::warning(format!("{}: {}: {warning}", place(&pod.path), pod.workload));
            }
        }
    }

    fn error(&mut self, text: impl std::fmt::Display) {
        self.errors += 1;
        out::error_text(text);
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        self.progress.finish();
        if self.errors > 0 {
            out::note(format!("{}; nothing was written", counted(self.errors, "error")));
            return Ok(ExitCode::FAILURE);
        }
        if self.args.strict && self.warnings > 0 {
            let count = counted(self.warnings, "warning");
            out::error_text(format!(
                "{count}, which --strict treats as errors; nothing was written"
            ));
            return Ok(ExitCode::FAILURE);
        }
        if self.args.diff {
            self.diff.print()?;
        } else {
            self.spool.release(self.args.output.as_deref())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
