//! Text inside HTML and SVG.

use std::fmt::{self, Display, Write as _};

/// Text that stays text, whatever is in it: in content and in quoted attributes, in HTML and in XML.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' => f.write_char('\n')?,
                // XML has no room for these, and a reversed text lies about its neighbours.
                c if c.is_control()
                    || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}') =>
                {
                    f.write_char('\u{fffd}')?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Escaped;

    #[test]
    fn nothing_gets_out() {
        let hostile = "</text><script>alert('x')</script>\" onload=\"y&\u{1b}[31m\u{202e}";
        let shown = Escaped(hostile).to_string();
        assert!(
            !shown.contains(['<', '>', '"', '\'', '\u{1b}', '\u{202e}']),
            "{shown}"
        );
        assert!(shown.ends_with("y&amp;\u{fffd}[31m\u{fffd}"), "{shown}");
    }
}
