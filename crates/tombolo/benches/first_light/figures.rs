//! Statistics and tables of all benchmarks.

#![allow(dead_code)] // Every benchmark uses a part of it.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

/// The median.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

pub fn worst(all: &[f64]) -> f64 {
    all.iter().copied().fold(0.0, f64::max)
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A table with `names` columns of text, followed by columns of numbers.
pub fn table(names: usize, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub fn print(title: &str, table: &Table) {
    println!("\n{title}\n{table}");
}
