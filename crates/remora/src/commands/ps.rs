//! `remora ps`: the pods of runs that go on.

use super::instance::{self, Instance, Where};
use crate::out;
use remora_engine::door::PodInfo;
use serde_json::{Value, json};
use std::process::ExitCode;

/// How pods are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table of pods
    Table,
    /// A table of pods and their containers
    Wide,
    /// Everything, for programs
    Json,
}

/// The flags of `remora ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// How to show them
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,

    #[command(flatten)]
    place: Where,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let instances = args.place.running()?;
    let runtime = instance::runtime()?;
    let all = runtime.block_on(collect(&instances, args.namespace.as_deref()))?;
    match args.output {
        Format::Json => out::stdout(json_of(&all).as_bytes())?,
        _ if instances.is_empty() => out::note(instance::nothing_runs()),
        _ if all.is_empty() => out::note("there is no such pod"),
        Format::Table | Format::Wide => {
            let wide = args.output == Format::Wide;
            out::stdout(table(&all, instances.len() > 1, wide).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn collect(instances: &[Instance], namespace: Option<&str>) -> anyhow::Result<Vec<(String, PodInfo)>> {
    let mut all = Vec::new();
    for instance in instances {
        let pods = instance.pods().await?.into_iter();
        let wanted = pods.filter(|p| namespace.is_none_or(|n| n == p.namespace));
        all.extend(wanted.map(|pod| (instance.id.clone(), pod)));
    }
    Ok(all)
}

fn json_of(all: &[(String, PodInfo)]) -> String {
    let one = |(run, pod): &(String, PodInfo)| {
        let mut value = serde_json::to_value(pod).unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.remove("id");
            map.insert("run".to_owned(), json!(run));
        }
        value
    };
    let list = Value::Array(all.iter().map(one).collect());
    format!("{list:#}\n")
}

fn table(all: &[(String, PodInfo)], runs: bool, wide: bool) -> String {
    let mut rows = vec![row(
        runs.then_some("RUN"),
        [
            "NAMESPACE",
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "NETWORK",
            "IP",
            "AGE",
        ],
    )];
    for (run, pod) in all {
        let (ready, total) = pod.readiness();
        let cells = [
            pod.namespace.as_str(),
            &pod.name,
            &format!("{ready}/{total}"),
            &pod.status,
            &pod.restarts.to_string(),
            &pod.network,
            &pod.address.map_or("-".to_owned(), |a| a.to_string()),
            &age(pod.age_millis),
        ];
        rows.push(row(runs.then_some(run.as_str()), cells));
        let containers = pod.containers.iter().filter(|_| wide);
        for container in containers {
            let name = format!("  {} ({})", container.name, container.kind);
            let ready = if container.ready { "yes" } else { "no" };
            let restarts = container.restarts.to_string();
            let cells = ["", &name, ready, &container.state, &restarts, "", "", ""];
            rows.push(row(runs.then_some(""), cells));
        }
    }
    aligned(&rows)
}

fn row(run: Option<&str>, cells: [&str; 8]) -> Vec<String> {
    run.into_iter().chain(cells).map(str::to_owned).collect()
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells.map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(line.join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// As kubectl writes ages.
fn age(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{age, aligned};

    #[test]
    fn tables_are_aligned_and_ages_are_short() {
        let rows = [
            vec!["A".to_owned(), "B".to_owned()],
            vec!["long".to_owned(), "x".to_owned()],
        ];
        assert_eq!(aligned(&rows), "A      B\nlong   x\n");
        assert_eq!([age(5_999), age(125_000), age(7_260_000)], ["5s", "2m5s", "2h1m"]);
    }
}
