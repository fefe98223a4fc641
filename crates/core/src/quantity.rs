//! Quantities of resources. The same amount can be written in several ways.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const KIBI: f64 = 1024.0;

/// Bytes in a mebibyte.
pub const MEBI: f64 = KIBI * KIBI;

/// The amount of a quantity in its base unit. `None` if it can't be parsed.
pub fn amount(quantity: &Quantity) -> Option<f64> {
    let text = quantity.0.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => KIBI,
        "Mi" => MEBI,
        "Gi" => MEBI * KIBI,
        "Ti" => MEBI * MEBI,
        "Pi" => MEBI * MEBI * KIBI,
        "Ei" => MEBI * MEBI * MEBI,
        _ => 10f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

/// Whether two quantities are the same amount: the API server rewrites them in canonical form.
pub fn is_equal(one: &Quantity, other: &Quantity) -> bool {
    match (amount(one), amount(other)) {
        (Some(one), Some(other)) => (one - other).abs() <= one.abs() * 1e-9,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_suffixes_are_parsed() {
        for (text, value) in [
            ("4", 4.0),
            ("500m", 0.5),
            ("1Ki", 1024.0),
            ("2e3", 2000.0),
            ("1.5Gi", 1_610_612_736.0),
        ] {
            assert_eq!(amount(&Quantity(text.into())), Some(value), "{text}");
        }
        assert_eq!(amount(&Quantity("many".into())), None);
    }

    #[test]
    fn quantities_are_compared_by_amount() {
        let same = |a: &str, b: &str| is_equal(&Quantity(a.into()), &Quantity(b.into()));
        for (a, b) in
            [("1024Mi", "1Gi"), ("0.5", "500m"), ("2e3", "2k"), ("0", "0Gi"), ("1E", "1e18")]
        {
            assert!(same(a, b), "{a} {b}");
        }
        assert!(!same("1Gi", "1G"));
        assert!(!same("1001m", "1"));
    }
}
