//! `--explain`: the page about a code.

use super::words::wrapped;
use anstyle::Style;
use anyhow::bail;
use remora_startup::findings;
use std::fmt::Write as _;

const HEADING: Style = Style::new().bold();

/// The page, for a terminal.
pub(super) fn page(code: &str) -> anyhow::Result<String> {
    let Some(rule) = findings::rule(code.trim()) else {
        let known: Vec<String> = findings::rules()
            .map(|r| format!("  {} {}", r.code, r.title))
            .collect();
        bail!("there is no code {code:?}; there are\n{}", known.join("\n"));
    };
    let mut text = String::new();
    for line in rule.page().lines() {
        let heading = line.trim_start_matches('#').trim_start();
        if heading.len() < line.len() && line.starts_with('#') {
            // Writing to a String cannot fail.
            let _ = write!(text, "{HEADING}{heading}{HEADING:#}");
        } else {
            text.push_str(&wrapped(line, "", ""));
        }
        text.push('\n');
    }
    Ok(text)
}
