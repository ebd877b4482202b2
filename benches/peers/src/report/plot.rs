//! The plot: cycles a second by callers, both on a logarithmic scale, so that an
//! engine that shares syncs rises and one that does not lies flat.

use super::Run;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// Told apart by people who do not see all colours, on white; the first is for keyonce.
const COLOURS: [RGBColor; 9] = [
    RGBColor(213, 62, 0),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
];

pub(crate) fn write(run: &Run, path: &Path) -> Result<()> {
    draw(run, path).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw(run: &Run, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let rates = || run.cells.iter().map(|cell| cell.cycles_per_second);
    let lowest = rates().fold(f64::INFINITY, f64::min).max(1.0) / 1.5;
    let highest = rates().fold(1.0, f64::max) * 1.5;
    let fewest = run.callers.iter().copied().min().unwrap_or(1) as f64 / 1.2;
    let most = run.callers.iter().copied().max().unwrap_or(1) as f64 * 1.2;

    let root = SVGBackend::new(path, (960, 600)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, legend) = root.split_horizontally(720);
    let mut chart = ChartBuilder::on(&left)
        .caption("Durable claim, then durable 250-byte answer", ("sans-serif", 24))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(
            (fewest..most).log_scale().with_key_points(run.callers.iter().map(|&n| n as f64).collect()),
            (lowest..highest).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("callers")
        .axis_desc_style(("sans-serif", 18))
        .label_style(("sans-serif", 16))
        .y_desc("cycles a second")
        .x_label_formatter(&|callers| format!("{callers:.0}"))
        .y_label_formatter(&|rate| thousands(*rate))
        .light_line_style(WHITE)
        .draw()?;

    let label = ("sans-serif", 18).into_font();
    for (place, &engine) in run.engines.iter().enumerate() {
        let style = COLOURS[place % COLOURS.len()].stroke_width(if place == 0 { 4 } else { 2 });
        let rate = |callers| run.median(engine, callers, |cell| Some(cell.cycles_per_second));
        let points: Vec<_> = run.callers.iter().filter_map(|&n| Some((n as f64, rate(n)?))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, style.filled())))?;

        let y = 60 + 28 * i32::try_from(place)?;
        legend.draw(&PathElement::new([(0, y), (24, y)], style))?;
        legend.draw(&Text::new(engine, (32, y - 8), label.clone()))?;
    }
    root.present()?;
    Ok(())
}

fn thousands(rate: f64) -> String {
    if rate < 1000.0 { format!("{rate:.0}") } else { format!("{:.0},000", rate / 1000.0) }
}
