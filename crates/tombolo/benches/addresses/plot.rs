//! Line plots as SVG.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 56.0;
const TICKS: u8 = 5;
const COLOURS: [&str; 3] = ["#1f6feb", "#d1570d", "#1a7f37"];

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Draws the lines into `target/bench/<file>.svg`.
pub fn plot(file: &str, title: &str, across: &str, up: &str, lines: &[Line]) -> Result<()> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench"));
    std::fs::create_dir_all(&directory).context("create the directory for plots")?;
    let path = directory.join(file).with_extension("svg");
    std::fs::write(&path, draw(title, across, up, lines)?).context("write the plot")?;
    println!("plot: target/bench/{file}.svg");
    Ok(())
}

fn draw(title: &str, across: &str, up: &str, lines: &[Line]) -> Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let right = all().map(|point| point.0).fold(1e-9, f64::max);
    let top = all().map(|point| point.1).fold(1e-9, f64::max) * 1.1;
    let x = |value: f64| MARGIN + value / right * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - value / top * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='{MARGIN}' y='24' font-size='15'>{title}</text>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, text: &str| {
        writeln!(svg, "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{text}</text>")
    };
    for tick in 0..=TICKS {
        let part = f64::from(tick) / f64::from(TICKS);
        text(x(right * part), HEIGHT - MARGIN + 18.0, "middle", &number(right * part))?;
        text(MARGIN - 6.0, y(top * part) + 4.0, "end", &number(top * part))?;
    }
    text(WIDTH - MARGIN, HEIGHT - 14.0, "end", across)?;
    text(MARGIN, MARGIN - 8.0, "middle", up)?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let points = line.points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b)));
        let points = points.collect::<Vec<_>>().join(" ");
        writeln!(svg, "<polyline points='{points}' fill='none' stroke='{colour}'/>")?;
        if let Some((a, b)) = line.points.last() {
            let (x, y) = (x(*a), y(*b) - 8.0);
            let name = &line.name;
            writeln!(
                svg,
                "<text x='{x:.1}' y='{y:.1}' text-anchor='end' fill='{colour}'>{name}</text>"
            )?;
        }
    }
    let (bottom, end) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    writeln!(
        svg,
        "<path d='M{MARGIN} {MARGIN} V{bottom} H{end}' fill='none' stroke='black'/>\n</svg>"
    )?;
    Ok(svg)
}

fn number(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
