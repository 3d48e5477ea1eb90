//! Numbers out of samples.

/// Mean, spread and order statistics of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Number of samples.
    pub samples: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Stats {
    /// Of samples in any order; all zero without any.
    pub fn of(samples: &[f64]) -> Stats {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Stats::default();
        };
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let squares: f64 = sorted.iter().map(|x| (x - mean) * (x - mean)).sum();
        Stats {
            samples: sorted.len(),
            mean,
            stddev: if sorted.len() > 1 {
                (squares / (n - 1.0)).sqrt()
            } else {
                0.0
            },
            p50: percentile(&sorted, 0.5),
            p99: percentile(&sorted, 0.99),
            min: *min,
            max: *max,
        }
    }

    /// Of the samples that lie within 1.5 interquartile ranges of the quartiles.
    pub fn without_outliers(samples: &[f64]) -> Stats {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (percentile(&sorted, 0.25), percentile(&sorted, 0.75));
        let reach = 1.5 * (high - low);
        sorted.retain(|x| (low - reach..=high + reach).contains(x));
        Stats::of(&sorted)
    }
}

/// The value below which that part of the sorted samples lies, between two where need be.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = part * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    let value = |i: usize| sorted.get(i.min(last)).copied().unwrap_or(0.0);
    value(below) + (value(above) - value(below)) * at.fract()
}

/// Geometric mean; 0 of nothing.
pub fn geometric_mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let stats = Stats::of(&[4.0, 1.0, 3.0, 2.0, 5.0]);
        assert_eq!((stats.p50, stats.min, stats.max), (3.0, 1.0, 5.0));
        assert_eq!((stats.mean, stats.samples), (3.0, 5));
        assert!((stats.stddev - 2.5f64.sqrt()).abs() < 1e-12);
        assert!((stats.p99 - 4.96).abs() < 1e-12);
        assert_eq!(Stats::of(&[]), Stats::default());
        assert_eq!(Stats::of(&[7.0]).stddev, 0.0);
    }

    #[test]
    fn outliers_go() {
        let mut samples: Vec<f64> = (0..100).map(f64::from).collect();
        samples.push(10_000.0);
        let stats = Stats::without_outliers(&samples);
        assert_eq!((stats.samples, stats.max), (100, 99.0));
    }

    #[test]
    fn geometric() {
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), 0.0);
    }
}
