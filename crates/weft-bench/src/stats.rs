//! Medians and spreads: on a shared machine a single time means nothing.

/// Several times of the same work, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn push(&mut self, seconds: f64) {
        self.0.push(seconds);
    }

    pub fn median(&self) -> f64 {
        median(&self.0)
    }

    /// Formats the median and the range: `1.23 (1.19 to 1.40)`, or `0.123 (0.119 to 0.140)`
    pub fn show(&self) -> String {
        if self.0.is_empty() {
            return "-".into();
        }
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(0.0, f64::max);
        let digits = if max < 1.0 { 3 } else { 2 };
        format!("{:.digits$} ({min:.digits$} to {max:.digits$})", self.median())
    }

    /// The median of the ratios of each pair: drift during the run affects both of a pair.
    pub fn ratio_to(&self, other: &Self) -> Option<f64> {
        let ratios: Vec<f64> =
            self.0.iter().zip(&other.0).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }
}

/// Returns the median; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Formats a number with separators: `537,989`
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes in MB of 10^6, as the papers do that are compared with.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(values: &[f64]) -> Times {
        Times(values.to_vec())
    }

    #[test]
    fn medians_and_ratios() {
        assert!((times(&[3.0, 1.0, 2.0]).median() - 2.0).abs() < 1e-9);
        assert!((times(&[4.0, 1.0, 2.0, 3.0]).median() - 2.5).abs() < 1e-9);
        let slow = times(&[2.0, 20.0, 6.0]);
        let fast = times(&[1.0, 10.0, 2.0]);
        assert!((slow.ratio_to(&fast).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(times(&[]).ratio_to(&fast), None);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(thousands(5), "5");
        assert_eq!(thousands(1234), "1,234");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(megabytes(1_240_000), "1.24 MB");
        assert_eq!(times(&[1.0, 2.0, 3.0]).show(), "2.00 (1.00 to 3.00)");
        assert_eq!(times(&[0.012, 0.014, 0.999]).show(), "0.014 (0.012 to 0.999)");
    }
}
