//! What figures should be. One that is missed is marked: how fast a machine is at the moment is no
//! reason to fail.

/// A figure that should be this or less.
pub fn at_most(most: f64, unit: &str, figure: f64) -> String {
    marked(format!("at most {most}{unit}"), figure <= most)
}

/// A figure that should be this or more.
pub fn at_least(least: f64, unit: &str, figure: f64) -> String {
    marked(format!("at least {least}{unit}"), figure >= least)
}

fn marked(aim: String, is_met: bool) -> String {
    if is_met { aim } else { format!("{aim}: MISSED") }
}
