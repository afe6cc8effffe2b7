//! Numbers of many repetitions, and what they say.

use std::collections::BTreeMap;

/// Everything that was measured: by row and column, one number a repetition.
#[derive(Debug, Default)]
pub struct Numbers {
    rows: Vec<String>,
    cells: BTreeMap<(String, &'static str), Vec<f64>>,
}

/// Median and spread.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// In the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Summary {
    /// Of these; nothing of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, least, most })
    }

    /// For tables.
    pub fn text(self, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median, self.least, self.most
        )
    }
}

impl Numbers {
    /// Adds what one repetition found.
    pub fn add(&mut self, row: &str, column: &'static str, value: f64) {
        if !self.rows.iter().any(|known| known == row) {
            self.rows.push(row.to_owned());
        }
        self.cells
            .entry((row.to_owned(), column))
            .or_default()
            .push(value);
    }

    /// Rows in the order they came.
    pub fn rows(&self) -> &[String] {
        &self.rows
    }

    /// All numbers of a cell.
    pub fn values(&self, row: &str, column: &'static str) -> &[f64] {
        self.cells
            .get(&(row.to_owned(), column))
            .map_or(&[], Vec::as_slice)
    }

    /// Of a cell.
    pub fn summary(&self, row: &str, column: &'static str) -> Option<Summary> {
        Summary::of(self.values(row, column))
    }

    /// Of one row by another, each within one repetition: what disturbed both cancels.
    pub fn ratio(&self, row: &str, base: &str, column: &'static str) -> Option<Summary> {
        let pairs = self.values(row, column).iter().zip(self.values(base, column));
        Summary::of(&pairs.map(|(value, base)| value / base).collect::<Vec<_>>())
    }

    /// A table with these columns: name, heading, digits.
    pub fn markdown(&self, columns: &[(&'static str, &str, usize)]) -> String {
        let headings: Vec<&str> = columns.iter().map(|(_, heading, _)| *heading).collect();
        let mut text = format!(
            "| | {} |\n|---{}|\n",
            headings.join(" | "),
            "|---".repeat(columns.len())
        );
        for row in &self.rows {
            let cells: Vec<String> = columns
                .iter()
                .map(|(column, _, digits)| {
                    self.summary(row, column)
                        .map_or(String::new(), |summary| summary.text(*digits))
                })
                .collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                text.push_str(&format!("| {row} | {} |\n", cells.join(" | ")));
            }
        }
        text
    }
}
