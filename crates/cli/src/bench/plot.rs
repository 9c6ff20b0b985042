//! Figures as SVG: lines over places that stand at equal distances, with the axes of the papers'.

use std::path::Path;

use plotters::prelude::*;

use crate::failure::{Cause, Failure};

const PIXELS: (u32, u32) = (800, 500);
const COLOURS: [RGBColor; 6] = [
    RGBColor(200, 30, 30),
    RGBColor(30, 90, 200),
    RGBColor(20, 140, 60),
    RGBColor(150, 60, 170),
    RGBColor(210, 130, 20),
    RGBColor(90, 90, 90),
];

/// One figure.
pub struct Plot<'a> {
    pub file: &'a str,
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// What stands below a place.
    pub label: fn(u64) -> String,
}

/// A line of a figure: its name, and what is where.
pub struct Line {
    pub name: String,
    pub points: Vec<(u64, f64)>,
}

/// Draws lines in a file of this directory.
///
/// # Errors
/// The file cannot be written.
pub fn draw(directory: &Path, plot: &Plot<'_>, lines: &[Line]) -> Result<(), Failure> {
    let file = directory.join(plot.file);
    let result = draw_in(&file, plot, lines);
    result.map_err(|text| Failure::about(file.display(), Cause::from(text)))
}

fn draw_in(file: &Path, plot: &Plot<'_>, lines: &[Line]) -> Result<(), String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut places: Vec<u64> = points().map(|(at, _)| *at).collect();
    places.sort_unstable();
    places.dedup();
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let least = points().map(|(_, value)| *value).fold(0.0, f64::min);
    let last = places.len().saturating_sub(1) as f64;
    let area = SVGBackend::new(file, PIXELS).into_drawing_area();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    area.fill(&WHITE).map_err(|e| text(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.2..last + 0.2, least * 1.1..most.max(f64::MIN_POSITIVE) * 1.1)
        .map_err(|e| text(&e))?;
    let name = |x: &f64| match places.get(x.round().max(0.0) as usize) {
        Some(at) if (x - x.round()).abs() < 0.01 => (plot.label)(*at),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(places.len() * 5)
        .x_label_formatter(&name)
        .x_desc(plot.x)
        .y_desc(plot.y)
        .draw()
        .map_err(|e| text(&e))?;
    let place = |at: &u64| places.binary_search(at).unwrap_or(0) as f64;
    for (line, colour) in lines.iter().filter(|line| !line.points.is_empty()).zip(COLOURS) {
        let points: Vec<(f64, f64)> =
            line.points.iter().map(|(at, value)| (place(at), *value)).collect();
        let series = LineSeries::new(points, colour.stroke_width(2)).point_size(4);
        chart
            .draw_series(series)
            .map_err(|e| text(&e))?
            .label(line.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|e| text(&e))?;
    area.present().map_err(|e| text(&e))
}
