//! Targets of measurements. A missed target is marked and does not fail the benchmark, because the
//! speed of the machine varies.

/// An upper limit.
pub fn at_most(most: f64, unit: &str, figure: f64) -> String {
    marked(format!("at most {most}{unit}"), figure <= most)
}

/// A lower limit.
pub fn at_least(least: f64, unit: &str, figure: f64) -> String {
    marked(format!("at least {least}{unit}"), figure >= least)
}

fn marked(aim: String, is_met: bool) -> String {
    if is_met { aim } else { format!("{aim}: MISSED") }
}
