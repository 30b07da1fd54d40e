//! Values over time as a line of bars.

/// Returns a bar for each value, as high as a part of the highest one, and a dot for 0.
///
/// ```text
/// sparkline(&[0.0, 1.0, 4.0, 8.0], 8.0) == ".▁▄█"
/// ```
pub fn sparkline(values: &[f64], highest: f64) -> String {
    let bar = |value: &f64| match (value / highest * BARS.len() as f64).ceil() as usize {
        0 => '.',
        eighths => BARS[eighths.min(BARS.len()) - 1],
    };
    let chunks = values.chunks(seconds_per_bar(values.len()));
    let means = chunks.map(|values| values.iter().sum::<f64>() / values.len() as f64);
    means.map(|mean| bar(&mean)).collect()
}

/// Returns a line under the bars that marks an event.
pub fn ruler(seconds: usize, is_during: impl Fn(f64) -> bool) -> String {
    let step = seconds_per_bar(seconds);
    let mark = |second: usize| match is_during(second as f64 + 0.5) {
        true => '^',
        false => ' ',
    };
    (0..seconds).step_by(step).map(mark).collect()
}

/// Returns how many values a bar stands for, so that a line fits on a screen.
pub fn seconds_per_bar(values: usize) -> usize {
    values.div_ceil(WIDTH).max(1)
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const WIDTH: usize = 120;
