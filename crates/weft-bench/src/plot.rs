//! Bar charts as SVG, written here: one function is less than a plotting library.

use std::fmt::Write as _;

/// A group of bars for each label, one bar for each series.
#[derive(Debug, Clone)]
pub struct Bars<'a> {
    pub title: &'a str,
    pub y_label: &'a str,
    pub labels: &'a [String],
    /// Names with their values, one value for each label.
    pub series: &'a [(String, Vec<f64>)],
}

/// Colours that are distinguishable in print and for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 52.0;

impl Bars<'_> {
    /// The chart as an SVG document.
    pub fn svg(&self) -> String {
        let mut s = String::new();
        let _ = writeln!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>",
            escape(self.title)
        );
        self.legend(&mut s);
        let top = self.series.iter().flat_map(|(_, v)| v).copied().fold(0.0, f64::max);
        let step = tick(top);
        let ticks = (top / step).ceil().max(1.0);
        let full = ticks * step;
        let plot_height = HEIGHT - TOP - BOTTOM;
        let y = |value: f64| TOP + plot_height * (1.0 - value / full);
        let mut at = 0.0;
        while at <= ticks {
            let (value, right) = (at * step, WIDTH - RIGHT);
            let line = y(value);
            let _ = writeln!(
                s,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{line:.1}\" y2=\"{line:.1}\" \
                 stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                line + 4.0,
                number(value)
            );
            at += 1.0;
        }
        let _ = writeln!(
            s,
            "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            TOP + plot_height / 2.0,
            escape(self.y_label)
        );
        self.bars(&mut s, &y);
        s.push_str("</svg>\n");
        s
    }

    fn bars(&self, s: &mut String, y: &dyn Fn(f64) -> f64) {
        let group = (WIDTH - LEFT - RIGHT) / self.labels.len().max(1) as f64;
        let bar = group * 0.8 / self.series.len().max(1) as f64;
        let base = y(0.0);
        for (i, label) in self.labels.iter().enumerate() {
            let x = LEFT + group * i as f64;
            let _ = writeln!(
                s,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x + group / 2.0,
                base + 18.0,
                escape(label)
            );
            for (j, (name, values)) in self.series.iter().enumerate() {
                let value = values.get(i).copied().unwrap_or(0.0);
                if value > 0.0 {
                    let top = y(value).min(base - 1.0);
                    let _ = writeln!(
                        s,
                        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                         fill=\"{}\"><title>{}, {}: {}</title></rect>",
                        x + group * 0.1 + bar * j as f64,
                        bar.max(1.0),
                        base - top,
                        COLOURS[j % COLOURS.len()],
                        escape(name),
                        escape(label),
                        number(value)
                    );
                }
            }
        }
    }

    fn legend(&self, s: &mut String) {
        let mut x = LEFT;
        for (j, (name, _)) in self.series.iter().enumerate() {
            let _ = writeln!(
                s,
                "<rect x=\"{x:.1}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"45\">{}</text>",
                COLOURS[j % COLOURS.len()],
                x + 18.0,
                escape(name)
            );
            x += 36.0 + 7.0 * name.len() as f64;
        }
    }
}

/// A round distance between grid lines: 1, 2 or 5 times a power of ten, for about five lines.
fn tick(top: f64) -> f64 {
    if top <= 0.0 {
        return 1.0;
    }
    let raw = top / 5.0;
    let power = 10.0_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= raw).unwrap_or(10.0);
    factor * power
}

fn number(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_for_what_is_there() {
        let chart = Bars {
            title: "a < b",
            y_label: "n",
            labels: &["x".into(), "y".into()],
            series: &[("s".into(), vec![1.0, 0.0]), ("t".into(), vec![2.0, 4.0])],
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b"));
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn ticks_are_round() {
        for (top, expected) in [(10.0, 2.0), (4382.0, 1000.0), (0.9, 0.2), (0.0, 1.0)] {
            assert!((tick(top) - expected).abs() < 1e-9, "{top}: {}", tick(top));
        }
    }
}
