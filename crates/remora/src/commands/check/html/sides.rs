//! Before and after, side by side.

use super::super::markup::Escaped;
use similar::{ChangeTag, TextDiff};
use std::fmt::Write as _;

/// Lines around a change.
const CONTEXT: usize = 2;

pub(super) fn write(out: &mut String, before: &str, after: &str) {
    let diff = TextDiff::from_lines(before, after);
    let (mut left, mut right) = (String::new(), String::new());
    for (number, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if number > 0 {
            for side in [&mut left, &mut right] {
                side.push_str("<i class=\"gap\">⋮</i>");
            }
        }
        for op in group {
            let (mut taken, mut given) = (0_usize, 0_usize);
            for change in diff.iter_changes(op) {
                let line = change.value().trim_end_matches('\n');
                match change.tag() {
                    ChangeTag::Delete => {
                        row(&mut left, "del", line);
                        taken += 1;
                    }
                    ChangeTag::Insert => {
                        row(&mut right, "add", line);
                        given += 1;
                    }
                    ChangeTag::Equal => {
                        row(&mut left, "", line);
                        row(&mut right, "", line);
                    }
                }
            }
            // Both sides stay level.
            for _ in taken..given {
                left.push_str("<i></i>");
            }
            for _ in given..taken {
                right.push_str("<i></i>");
            }
        }
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<div class=\"sides\"><div>before<pre tabindex=\"0\">{left}</pre></div>\
         <div>after<pre tabindex=\"0\">{right}</pre></div></div>"
    );
}

fn row(side: &mut String, class: &str, line: &str) {
    let _ = write!(side, "<i class=\"{class}\">{}</i>", Escaped(line));
}
