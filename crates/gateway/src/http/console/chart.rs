//! What was earned by day, as bars: an SVG without scripts, and the same numbers as a table.

use super::html::Plain;
use crate::wire::time::Moment;
use holdfast_domain::{Change, Day, Span, Timestamp};
use std::fmt::Write;

const BAR: u64 = 36;
const STEP: u64 = 46;
const HEIGHT: u64 = 140;
/// Room above the bars for their numbers, and below for the days.
const ABOVE: u64 = 22;
const BELOW: u64 = 24;

/// The chart of some days.
pub(super) fn by_day(days: &[(Day, Change)]) -> String {
    let most = days.iter().map(|(_, earned)| earned.units()).max().unwrap_or(0);
    let width = u64::try_from(days.len()).unwrap_or(0) * STEP;
    let (baseline, bottom) = (ABOVE + HEIGHT, ABOVE + HEIGHT + BELOW);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {width} {bottom}\" role=\"img\" aria-label=\"Revenue by day in credits; the \
         table below has the numbers\"><line x1=\"0\" y1=\"{baseline}\" x2=\"{width}\" y2=\"{baseline}\"/>"
    );
    for (index, (day, earned)) in (0..).zip(days) {
        let (left, middle) = (index * STEP + (STEP - BAR) / 2, index * STEP + STEP / 2);
        let height = scaled(*earned, most, HEIGHT);
        let (top, date) = (baseline - height, date(*day));
        let short = date.get(5..).unwrap_or_default();
        let _written = write!(
            svg,
            "<g><title>{}: {}</title><rect x=\"{left}\" y=\"{top}\" width=\"{BAR}\" height=\"{height}\" rx=\"3\"/>\
             <text x=\"{middle}\" y=\"{}\">{}</text></g>",
            Plain(&date),
            Plain(earned),
            bottom - 6,
            Plain(short),
        );
        if earned.units() > 0 {
            let _written = write!(svg, "<text x=\"{middle}\" y=\"{}\">{}</text>", top - 6, Plain(rounded(*earned)));
        }
    }
    let rows = days.iter().rev().map(|(day, earned)| {
        format!("<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td></tr>", Plain(date(*day)), Plain(earned))
    });
    format!(
        "{svg}</svg><details><summary>As a table</summary><table><thead><tr><th scope=\"col\">Day (UTC)</th>\
         <th scope=\"col\" class=\"n\">Revenue</th></tr></thead><tbody>{}</tbody></table></details>",
        rows.collect::<String>()
    )
}

/// One bar of a row, against the largest.
pub(super) fn bar(amount: Change, most: Change) -> String {
    let width = scaled(amount, most.units(), 100);
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect width=\"{width}\" height=\"8\"/></svg>"
    )
}

/// How long a bar is; what is there at all is seen.
fn scaled(amount: Change, most: i64, length: u64) -> u64 {
    let (amount, most) = (i128::from(amount.units()), i128::from(most));
    if amount <= 0 || most <= 0 {
        return 0;
    }
    u64::try_from(amount * i128::from(length) / most).unwrap_or(length).clamp(1, length)
}

/// An amount in a few letters. The exact one is in the table.
fn rounded(amount: Change) -> String {
    let units = amount.units();
    let whole = units / 1_000_000;
    match whole {
        0 => amount.to_string(),
        1..=99 => format!("{whole}.{}", units / 100_000 % 10),
        100..=9_999 => whole.to_string(),
        10_000..=9_999_999 => format!("{}k", whole / 1_000),
        _ => format!("{}M", whole / 1_000_000),
    }
}

/// A day as `2026-01-31`.
fn date(day: Day) -> String {
    let text = Moment(Timestamp::from_millis(day.number().saturating_mul(Span::DAY.millis()))).to_string();
    text.get(..10).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_numbers_are_short() {
        let units = Change::from_units;
        assert_eq!(scaled(units(50), 100, 140), 70);
        assert_eq!(scaled(units(1), i64::MAX, 140), 1);
        assert_eq!((scaled(units(0), 100, 140), scaled(units(-5), 100, 140), scaled(units(5), 0, 140)), (0, 0, 0));
        assert_eq!(scaled(units(i64::MAX), i64::MAX, 140), 140);
        for (amount, text) in [
            (1_500, "0.0015"),
            (12_340_000, "12.3"),
            (123_456_789, "123"),
            (12_345_000_000, "12k"),
            (12_345_000_000_000, "12M"),
        ] {
            assert_eq!(rounded(units(amount)), text);
        }
        assert_eq!(date(Day::from_number(19_723)), "2024-01-01");
    }

    #[test]
    fn every_day_has_its_number_and_none_is_a_chart_too() {
        let days =
            [(Day::from_number(19_723), Change::from_units(2_500_000)), (Day::from_number(19_724), Change::ZERO)];
        let chart = by_day(&days);
        assert!(chart.contains("<title>2024-01-01: 2.5</title>") && chart.contains("<title>2024-01-02: 0</title>"));
        assert!(chart.contains(">2.5</td>") && chart.matches("<rect").count() == 2, "{chart}");
        assert!(by_day(&[]).starts_with("<svg"));
    }
}
