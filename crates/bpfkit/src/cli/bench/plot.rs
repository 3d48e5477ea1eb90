//! Bars as SVG: a group for each thing measured, a bar in it for each engine.

use std::fmt::Write as _;

/// A picture of results.
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Groups from top to bottom.
    pub groups: Vec<(String, Vec<Bar>)>,
}

/// A value of a series.
#[derive(Clone)]
pub struct Bar {
    /// Name of the series (the engine).
    pub series: String,
    /// The value.
    pub value: f64,
    /// Standard deviation.
    pub spread: f64,
}

impl Bar {
    /// A value without a spread.
    pub fn exact(series: &str, value: f64) -> Bar {
        Bar {
            series: series.to_owned(),
            value,
            spread: 0.0,
        }
    }
}

const LABELS: f64 = 190.0;
const WIDTH: f64 = 520.0;
const BAR: f64 = 14.0;
const GAP: f64 = 10.0;
/// Colours that the colour-blind tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#e69f00", "#999999", "#009e73", "#d55e00", "#cc79a7",
];

impl Plot {
    /// The picture. Bars are as long as their values.
    pub fn svg(&self) -> String {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let most = bars()
            .map(|bar| bar.value + bar.spread)
            .filter(|value| value.is_finite())
            .fold(f64::MIN_POSITIVE, f64::max);
        let mut series: Vec<&str> = Vec::new();
        for bar in bars() {
            if !series.contains(&bar.series.as_str()) {
                series.push(&bar.series);
            }
        }
        let colour = |name: &str| {
            let at = series.iter().position(|s| *s == name).unwrap_or(0);
            COLOURS[at % COLOURS.len()]
        };
        let (mut body, mut y) = (String::new(), 64.0);
        for (label, bars) in &self.groups {
            let middle = y + bars.len() as f64 * BAR / 2.0 + 4.0;
            let _ = writeln!(
                body,
                r#"<text x="{}" y="{middle:.1}" text-anchor="end">{}</text>"#,
                LABELS - 8.0,
                escape(label)
            );
            for bar in bars {
                let length = (bar.value / most * WIDTH).clamp(0.0, WIDTH);
                let _ = writeln!(
                    body,
                    r#"<rect x="{LABELS}" y="{y:.1}" width="{length:.1}" height="{:.1}" fill="{}"/>"#,
                    BAR - 2.0,
                    colour(&bar.series)
                );
                if bar.spread > 0.0 {
                    let at = |value: f64| LABELS + (value / most * WIDTH).clamp(0.0, WIDTH);
                    let _ = writeln!(
                        body,
                        r#"<path d="M{:.1} {h:.1}H{:.1}" stroke="black"/>"#,
                        at(bar.value - bar.spread),
                        at(bar.value + bar.spread),
                        h = y + BAR / 2.0 - 1.0
                    );
                }
                let _ = writeln!(
                    body,
                    r#"<text x="{:.1}" y="{:.1}" font-size="11">{}</text>"#,
                    LABELS + length + 8.0,
                    y + BAR - 3.5,
                    number(bar.value)
                );
                y += BAR;
            }
            y += GAP;
        }
        let mut legend = String::new();
        for (i, name) in series.iter().enumerate() {
            let x = LABELS + i as f64 * 110.0;
            let _ = writeln!(
                legend,
                r#"<rect x="{x}" y="38" width="12" height="12" fill="{}"/><text x="{}" y="48">{}</text>"#,
                colour(name),
                x + 18.0,
                escape(name)
            );
        }
        let (width, height) = (LABELS + WIDTH + 90.0, y + 10.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LABELS}\" y=\"24\" font-size=\"15\">{} ({})</text>\n{legend}{body}</svg>\n",
            escape(&self.title),
            escape(&self.unit)
        )
    }
}

/// With three digits that count.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |series: &str, value| Bar {
            series: series.to_owned(),
            value,
            spread: 0.0,
        };
        let plot = Plot {
            title: "a < b".to_owned(),
            unit: "ns".to_owned(),
            groups: vec![("x".to_owned(), vec![bar("jit", 10.0), bar("kernel", 20.0)])],
        };
        let svg = plot.svg();
        assert!(svg.contains("a &lt; b (ns)"), "{svg}");
        assert!(svg.contains(r#"width="260.0""#), "{svg}");
        assert!(svg.contains(r#"width="520.0""#), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn nothing_and_nonsense_give_a_picture() {
        let plot = |value| Plot {
            title: String::new(),
            unit: String::new(),
            groups: vec![(
                String::new(),
                vec![Bar {
                    series: String::new(),
                    value,
                    spread: 0.0,
                }],
            )],
        };
        for value in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            assert!(plot(value).svg().contains("</svg>"));
        }
    }
}
