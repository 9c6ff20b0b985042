//! Plots with the axes of the paper's figures: bandwidth by the size of an access, and by the
//! size of the file.

use std::path::Path;

use dafs_bench::size_text;
use plotters::prelude::*;

use super::row::Row;
use crate::failure::{Cause, Failure};

const PIXELS: (u32, u32) = (800, 500);
const COLOURS: [RGBColor; 4] =
    [RGBColor(200, 30, 30), RGBColor(30, 90, 200), RGBColor(20, 140, 60), RGBColor(150, 60, 170)];

/// One plot.
pub struct Plot {
    pub file: &'static str,
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
}

/// Draws `value` of the rows, by data path, over what `at` says of a row.
///
/// # Errors
/// The file cannot be written.
pub fn draw(
    directory: &Path,
    plot: &Plot,
    rows: &[Row],
    at: impl Fn(&Row) -> u64,
    value: impl Fn(&Row) -> Option<f64>,
) -> Result<(), Failure> {
    let file = directory.join(plot.file);
    let result = draw_in(&file, plot, rows, &at, &value);
    result.map_err(|text| Failure::about(file.display(), Cause::from(text)))
}

fn draw_in(
    file: &Path,
    plot: &Plot,
    rows: &[Row],
    at: &dyn Fn(&Row) -> u64,
    value: &dyn Fn(&Row) -> Option<f64>,
) -> Result<(), String> {
    let mut places: Vec<u64> = rows.iter().map(at).collect();
    places.sort_unstable();
    places.dedup();
    let place = |row: &Row| places.binary_search(&at(row)).unwrap_or(0) as f64;
    let most = rows.iter().filter_map(value).fold(0.0, f64::max);
    let last = places.len().saturating_sub(1) as f64;
    let area = SVGBackend::new(file, PIXELS).into_drawing_area();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    area.fill(&WHITE).map_err(|e| text(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.2..last + 0.2, 0.0..most.max(f64::MIN_POSITIVE) * 1.1)
        .map_err(|e| text(&e))?;
    let name = |x: &f64| match places.get(x.round().max(0.0) as usize) {
        Some(bytes) if (x - x.round()).abs() < 0.01 => size_text(*bytes),
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
    let mut paths: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| value(row).is_some()) {
        if !paths.contains(&row.datapath) {
            paths.push(row.datapath);
        }
    }
    for (path, colour) in paths.into_iter().zip(COLOURS) {
        let of_path = rows.iter().filter(|row| row.datapath == path);
        let points: Vec<(f64, f64)> =
            of_path.filter_map(|row| Some((place(row), value(row)?))).collect();
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(4);
        chart
            .draw_series(line)
            .map_err(|e| text(&e))?
            .label(path)
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
