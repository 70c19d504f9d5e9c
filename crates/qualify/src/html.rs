//! Reports for people, as one HTML page: the table of the text, and a plot of the ratio for each
//! context with its interval, every pair a point. Nothing is fetched from anywhere.

use std::fmt::Write;

use crate::render;
use crate::report::Report;
use crate::stats::ONE;
use crate::verdict::{observe, points};

const WIDTH: u64 = 720;
const ROW: u64 = 48;
const LEFT: u64 = 90;
const RIGHT: u64 = 20;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{name} {id}</title>\n\
         <style>body{{font:14px sans-serif;margin:2em}}pre{{white-space:pre-wrap}}</style>\n\
         <h1>{name}: {status} [{label}]</h1>\n{plot}<pre>{text}</pre>\n",
        name = escape(&report.profile.name),
        id = render::short(&report.report_id),
        status = report.status.to_uppercase(),
        label = render::label(report),
        plot = plot(report),
        text = escape(&render::text(report)),
    )
}

/// The range of the axis: all points, all intervals and 1, with some room.
fn range(rows: &[Row]) -> (u64, u64) {
    let all = rows
        .iter()
        .flat_map(|r| r.points.iter().copied().chain([r.low, r.high]));
    let all: Vec<u64> = all.filter(|v| *v > 0).chain([ONE]).collect();
    let low = all.iter().min().copied().unwrap_or(ONE);
    let high = all.iter().max().copied().unwrap_or(ONE);
    let room = (high - low) / 10 + 10_000;
    (low.saturating_sub(room), high + room)
}

struct Row {
    name: String,
    points: Vec<u64>,
    median: u64,
    low: u64,
    high: u64,
}

/// The plot as inline SVG.
#[must_use]
pub fn plot(report: &Report) -> String {
    let Some(comparison) = &report.profile.comparison else {
        return String::new();
    };
    let row = |cell| {
        let seen = observe(cell, comparison.metric);
        Row {
            name: cell.context.clone(),
            points: points(cell, comparison.metric),
            median: seen.b_over_a_median_ppm,
            low: seen.b_over_a_low_ppm,
            high: seen.b_over_a_high_ppm,
        }
    };
    let rows: Vec<Row> = report.cells.iter().map(row).collect();
    let (low, high) = range(&rows);
    let x = |v: u64| LEFT + (WIDTH - LEFT - RIGHT) * (v.clamp(low, high) - low) / (high - low);
    let height = ROW * rows.len() as u64 + 50;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <line x1=\"{one}\" x2=\"{one}\" y1=\"10\" y2=\"{end}\" stroke=\"#888\" stroke-dasharray=\"4\"/>\n",
        one = x(ONE),
        end = height - 40
    );
    for (at, row) in rows.iter().enumerate() {
        let y = 10 + ROW * at as u64 + ROW / 2;
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{}\">{}</text>",
            y + 5,
            escape(&row.name)
        );
        if row.points.is_empty() {
            let _ = writeln!(
                svg,
                "<text x=\"{LEFT}\" y=\"{}\" fill=\"#a00\">no runs</text>",
                y + 5
            );
            continue;
        }
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#06c\" stroke-width=\"3\"/>",
            x(row.low),
            x(row.high)
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"4\" height=\"14\" fill=\"#06c\"/>",
            x(row.median) - 2,
            y - 7
        );
        for point in &row.points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"#c60\" fill-opacity=\"0.6\"/>",
                x(*point),
                y + 12
            );
        }
    }
    svg += &axis(report, (low, high), x(ONE), height);
    svg
}

/// What stands below the plot: the ends of the axis, 1, and what it shows.
fn axis(report: &Report, (low, high): (u64, u64), one: u64, height: u64) -> String {
    let text = |x: u64, y: u64, what: &str| format!("<text x=\"{x}\" y=\"{y}\">{what}</text>\n");
    let what = format!(
        "rate of B over rate of A: bar = median and 95 % interval, points = pairs [{}]",
        render::label(report)
    );
    let y = height - 24;
    text(LEFT, y, &render::factor(low))
        + &text(WIDTH - 60, y, &render::factor(high))
        + &text(one.saturating_sub(3), y, "1")
        + &text(LEFT, height - 6, &what)
        + "</svg>\n"
}
