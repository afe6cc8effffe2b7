//! Tables and a chart of what was found.

use crate::cases::Effort;
use crate::chart::{self, Group};
use crate::table::Numbers;
use std::fmt::Write as _;
use std::path::Path;

/// Everything.
#[derive(Debug, Default)]
pub struct Results {
    /// Under load.
    pub steady: Numbers,
    /// From the start to the first answer.
    pub start: Numbers,
    /// Memory for connections.
    pub connections: Numbers,
    /// Growth with services.
    pub services: Numbers,
    /// Growth with connections.
    pub open: Numbers,
}

const STEADY: [(&str, &str, usize); 10] = [
    ("rps", "requests/s", 0),
    ("cpu_request", "CPU µs/request", 1),
    ("kernel", "kernel's part", 2),
    ("p50", "p50 µs at 2,000/s", 0),
    ("p99", "p99 µs at 2,000/s", 0),
    ("connections", "new connections/s", 0),
    ("cpu_connection", "CPU µs/connection", 0),
    ("gbit", "Gbit/s", 1),
    ("cpu_gb", "CPU s/GB", 2),
    ("failed", "failed", 0),
];
const START: [(&str, &str, usize); 4] = [
    ("first", "start → first answer, ms", 1),
    ("first_cpu", "its CPU until then, ms", 1),
    ("idle", "memory after a second, MB", 1),
    ("idle_dirty", "of that its own, MB", 1),
];
const CONNECTIONS: [(&str, &str, usize); 2] = [
    ("kb_client", "KB/connection, client's side", 1),
    ("kb_server", "KB/connection, server's side", 1),
];
const SERVICES: [(&str, &str, usize); 3] = [
    ("idle", "memory, MB", 1),
    ("cpu_request", "CPU µs/request", 1),
    ("update", "CPU µs for a changed service", 0),
];
const OPEN: [(&str, &str, usize); 3] = [
    ("client", "memory, client's side, MB", 1),
    ("server", "memory, server's side, MB", 1),
    ("cpu_request", "CPU µs/request of 32 others", 1),
];
/// What is compared, and in which table's words.
const COMPARED: [(&str, &str); 6] = [
    ("cpu_request", "CPU for a request"),
    ("p50", "p50 at 2,000 requests/s"),
    ("p99", "p99 at 2,000 requests/s"),
    ("cpu_connection", "CPU for a new connection"),
    ("connections", "new connections/s (more is better)"),
    ("cpu_gb", "CPU for a GB"),
];

fn name_of(row: &str) -> &str {
    row.split(' ').next().unwrap_or(row)
}

/// Every row by Envoy's of the same way.
fn ratios(numbers: &Numbers, columns: &[(&'static str, &str)]) -> String {
    let headings: Vec<&str> = columns.iter().map(|(_, heading)| *heading).collect();
    let mut text = format!(
        "| ÷ Envoy | {} |\n|---{}|\n",
        headings.join(" | "),
        "|---".repeat(columns.len())
    );
    for row in numbers.rows() {
        let base = row.replacen(name_of(row), "Envoy", 1);
        if name_of(row) == "Envoy" || numbers.values(&base, columns[0].0).is_empty() {
            continue;
        }
        let cells: Vec<String> = columns
            .iter()
            .map(|(column, _)| {
                numbers
                    .ratio(row, &base, column)
                    .map_or(String::new(), |summary| summary.text(2))
            })
            .collect();
        let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
    }
    text
}

fn groups(results: &Results) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut group = |title: String, numbers: &Numbers, base: &str, column: &'static str| {
        let bars = numbers.rows().iter().filter_map(|row| {
            let way = base.trim_start_matches("Envoy");
            let ratio = row.ends_with(way).then(|| numbers.ratio(row, base, column))??;
            (name_of(row) != "direct").then(|| (name_of(row).to_owned(), ratio.median))
        });
        let bars: Vec<_> = bars.collect();
        if bars.len() > 1 {
            groups.push(Group { title, bars });
        }
    };
    for (way, words) in [("Envoy plain", "plain"), ("Envoy mTLS", "mTLS")] {
        for (column, title) in [
            ("cpu_request", "CPU for a request"),
            ("p50", "median latency at 2,000 requests/s"),
            ("cpu_connection", "CPU for a new connection"),
            ("cpu_gb", "CPU for a GB"),
        ] {
            group(format!("{title}, {words}"), &results.steady, way, column);
        }
    }
    let services = "Envoy mTLS, 100 services";
    group(
        "start to first mTLS answer".to_owned(),
        &results.start,
        services,
        "first",
    );
    group(
        "idle memory, 100 services".to_owned(),
        &results.start,
        services,
        "idle",
    );
    group(
        "memory for an idle mTLS connection".to_owned(),
        &results.connections,
        "Envoy mTLS",
        "kb_client",
    );
    groups
}

/// Writes `results.md` and `results.svg`.
pub fn write(directory: &Path, words: &str, realtime: bool, effort: Effort, results: &Results) {
    let mut text = format!(
        "# Results\n\n{words}\n\nBoth proxies on one CPU with one worker, load and application on another. {} repetitions of \
         {} s for each load, all contenders one after the other in each; median (least–most). Scheduling: {}. `direct` has \
         no proxy but the capture rules; nginx is dialled, not captured, and does not check the server.\n",
        effort.repetitions,
        effort.seconds,
        if realtime { "SCHED_RR for all" } else { "as usual" }
    );
    let mut part = |title: &str, table: String| {
        // A heading and a line alone are no table.
        if table.lines().count() > 2 {
            let _ = write!(text, "\n## {title}\n\n{table}");
        }
    };
    part("Two hops", results.steady.markdown(&STEADY));
    part(
        "Ratios, each within one repetition",
        ratios(&results.steady, &COMPARED),
    );
    part("Start and idle memory", results.start.markdown(&START));
    let start = [("first", "start → first answer"), ("idle", "memory")];
    part("Ratios of these", ratios(&results.start, &start));
    part(
        "Idle connections (100 → 1,000)",
        results.connections.markdown(&CONNECTIONS),
    );
    part(
        "Growth with services (remora)",
        results.services.markdown(&SERVICES),
    );
    part(
        "Growth with open connections (remora)",
        results.open.markdown(&OPEN),
    );
    std::fs::create_dir_all(directory).expect("directory of results");
    std::fs::write(directory.join("results.md"), &text).expect("results.md");
    let groups = groups(results);
    if !groups.is_empty() {
        let picture = chart::draw("Cost compared with Envoy (1 = Envoy, shorter is better)", &groups);
        std::fs::write(directory.join("results.svg"), picture).expect("results.svg");
    }
    println!("{text}");
}
