//! Words for people: times, wrapped lines, text that cannot harm a terminal.

use remora_startup::kubelet::Millis;
use remora_startup::network::NetState;

/// Columns of a terminal that everybody has.
pub(super) const COLUMNS: usize = 80;

/// A text over several lines, the first behind one indent and the others behind another.
pub(super) fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut out = String::from(first);
    let mut column = first.chars().count();
    let mut fresh = true;
    for word in glued(text) {
        let width = word.chars().count();
        if !fresh && column + 1 + width > COLUMNS {
            out.push('\n');
            out.push_str(others);
            column = others.chars().count();
            fresh = true;
        }
        if !fresh {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += width;
        fresh = false;
    }
    out
}

/// The words of a text; a number and its unit are one.
fn glued(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let unit = word.trim_end_matches([',', ';', '.', ':']) == "s";
        match words.last_mut() {
            Some(last) if unit && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Text of a document, without anything a terminal would obey.
pub(crate) fn tame(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if harmless(c) => c,
            _ => '\u{fffd}',
        })
        .collect()
}

/// A name that fits, with its middle left out if need be.
pub(super) fn fitted(name: &str, width: usize) -> String {
    let letters: Vec<char> = tame(name).chars().collect();
    if letters.len() <= width {
        return letters.into_iter().collect();
    }
    let tail = width / 2 - 1;
    let head = width - 1 - tail;
    let first = letters.iter().take(head);
    let last = letters.iter().skip(letters.len() - tail);
    first.chain(&['…']).chain(last).collect()
}

/// A time with as many digits as matter: `0.6s`, `12s`, `2m05s`.
pub(super) fn time(at: Millis) -> String {
    match at {
        0 => "0".to_owned(),
        1..10_000 => format!("{}.{}s", at / 1000, at % 1000 / 100),
        10_000..120_000 => format!("{}s", at / 1000),
        _ => format!("{}m{:02}s", at / 60_000, at % 60_000 / 1000),
    }
}

/// What connections meet, in words.
pub(super) fn network(state: &NetState) -> String {
    match state {
        NetState::Direct => "direct: nothing is captured, no mesh identity".to_owned(),
        NetState::Broken => "refused: captured, and no proxy listens".to_owned(),
        NetState::Proxied => "through the proxy".to_owned(),
        NetState::Excluded(why) => format!("not captured: {why}"),
    }
}
