//! Ratios as bars.

use std::fmt::Write as _;

/// A group of bars: what was measured, and each contender's part of Envoy's.
pub struct Group {
    /// Above the bars.
    pub title: String,
    /// Name and ratio.
    pub bars: Vec<(String, f64)>,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 110.0;
const BAR: f64 = 18.0;

fn colour(name: &str) -> &'static str {
    match name {
        "remora" => "#0f766e",
        "nginx" => "#94a3b8",
        _ => "#c2410c",
    }
}

/// An SVG picture. Envoy is 1; shorter is better.
pub fn draw(title: &str, groups: &[Group]) -> String {
    let scale = (WIDTH - LEFT - 90.0) / 1.5;
    let mut body = String::new();
    let mut y = 52.0;
    for group in groups {
        let _ = writeln!(
            body,
            "<text x=\"12\" y=\"{}\" font-weight=\"600\">{}</text>",
            y + 4.0,
            group.title
        );
        y += 14.0;
        for (name, ratio) in &group.bars {
            let length = (ratio.min(1.5) * scale).max(1.0);
            let _ = writeln!(
                body,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>",
                LEFT - 8.0,
                y + 13.0,
                BAR - 4.0,
                colour(name),
                LEFT + length + 6.0,
                y + 12.0,
            );
            y += BAR;
        }
        y += 16.0;
    }
    let one = LEFT + scale;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"#1f2937\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"600\">{title}</text>\n\
         <line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"38\" y2=\"{}\" stroke=\"#9ca3af\" stroke-dasharray=\"3 3\"/>\n{body}</svg>\n",
        y - 10.0
    )
}
