//! What was earned by day and model, as bars: an SVG without scripts, and the same numbers as a table.

use super::html::Plain;
use crate::wire::time::Moment;
use holdfast_domain::{Change, CreditUnit, Day, Span, Timestamp};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;

const BAR: u64 = 36;
const STEP: u64 = 46;
const HEIGHT: u64 = 140;
/// Room above the bars for their numbers, and below for the days.
const ABOVE: u64 = 22;
const BELOW: u64 = 24;

/// The models that have a colour of their own; the others are the rest.
const COLOURS: usize = 5;
const REST: &str = "everything else";

/// A day, and what came of each charted model, with the rest last.
struct Stack {
    day: Day,
    earned: Change,
    parts: Vec<Change>,
}

/// The chart of some days: what the books say was earned, coloured by what is known of models.
pub(super) fn by_day(days: &[(Day, Change)], by_model: &[(Day, String, CreditUnit)]) -> String {
    let models = largest(by_model);
    let stacks: Vec<Stack> = days.iter().map(|(day, earned)| stack(*day, *earned, &models, by_model)).collect();
    let most = days.iter().map(|(_, earned)| earned.units()).max().unwrap_or(0);
    let width = u64::try_from(days.len()).unwrap_or(0) * STEP;
    let (baseline, bottom) = (ABOVE + HEIGHT, ABOVE + HEIGHT + BELOW);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {width} {bottom}\" role=\"img\" aria-label=\"Revenue by day and model in credits; \
         the table below has the numbers\"><line x1=\"0\" y1=\"{baseline}\" x2=\"{width}\" y2=\"{baseline}\"/>"
    );
    for (index, stack) in (0..).zip(&stacks) {
        let (date, middle) = (date(stack.day), index * STEP + STEP / 2);
        let bars = bars(stack, &models, most, index * STEP + (STEP - BAR) / 2);
        let short = date.get(5..).unwrap_or_default();
        let _written = write!(
            svg,
            "<g><title>{}: {}</title>{bars}<text x=\"{middle}\" y=\"{}\">{}</text></g>",
            Plain(&date),
            Plain(stack.earned),
            bottom - 6,
            Plain(short),
        );
        if stack.earned.units() > 0 {
            let top = baseline - scaled(stack.earned, most, HEIGHT);
            let _written =
                write!(svg, "<text x=\"{middle}\" y=\"{}\">{}</text>", top - 6, Plain(rounded(stack.earned)));
        }
    }
    format!("{svg}</svg>{}{}", legend(&models), table(&stacks, &models))
}

/// The models that came to most, most first.
fn largest(by_model: &[(Day, String, CreditUnit)]) -> Vec<&str> {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for (_, model, charged) in by_model {
        let sum = sums.entry(model).or_default();
        *sum = sum.saturating_add(charged.units());
    }
    let mut models: Vec<(&str, u64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
    models.sort_by_key(|(model, sum)| (Reverse(*sum), *model));
    models.into_iter().take(COLOURS).map(|(model, _)| model).collect()
}

/// A day taken apart. What was given back later makes a day's revenue less than its charges, so no part is more than is left.
fn stack(day: Day, earned: Change, models: &[&str], by_model: &[(Day, String, CreditUnit)]) -> Stack {
    let mut left = earned.units().max(0);
    let of_day = |name: &str| by_model.iter().find(|(known, model, _)| *known == day && model == name);
    let mut parts: Vec<Change> = Vec::new();
    for model in models {
        let charged = of_day(model).map_or(0, |(.., charged)| i64::try_from(charged.units()).unwrap_or(i64::MAX));
        let part = charged.min(left);
        left -= part;
        parts.push(Change::from_units(part));
    }
    parts.push(Change::from_units(left));
    Stack { day, earned, parts }
}

/// The bars of one day, one upon the other.
fn bars(stack: &Stack, models: &[&str], most: i64, left: u64) -> String {
    let (mut svg, mut sum, mut below) = (String::new(), 0, 0);
    for (index, part) in stack.parts.iter().enumerate() {
        sum += part.units();
        let height = scaled(Change::from_units(sum), most, HEIGHT);
        if part.units() > 0 && height > below {
            let (top, height) = (ABOVE + HEIGHT - height, height - below);
            let (class, name) = (class(index, models), models.get(index).copied().unwrap_or(REST));
            let title = format!("<title>{}, {}: {}</title>", Plain(date(stack.day)), Plain(name), Plain(part));
            // Where nothing is known of models, the day's own title says all there is.
            let title = if models.is_empty() { "" } else { title.as_str() };
            let _written = write!(
                svg,
                "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{BAR}\" height=\"{height}\">{title}</rect>",
            );
        }
        below = height;
    }
    svg
}

/// The colour of a part. Where nothing is known of models, all has the first one.
fn class(index: usize, models: &[&str]) -> String {
    if index < models.len() || models.is_empty() { format!("m{index}") } else { "rest".to_owned() }
}

fn legend(models: &[&str]) -> String {
    if models.is_empty() {
        return String::new();
    }
    let names = models.iter().copied().chain([REST]).enumerate();
    let item = |(index, name): (usize, &str)| {
        format!(
            "<li><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"{}\" width=\"10\" height=\"10\"/>\
             </svg>{}</li>",
            class(index, models),
            Plain(name)
        )
    };
    format!("<ul class=\"legend\">{}</ul>", names.map(item).collect::<String>())
}

/// The same numbers, newest day first.
fn table(stacks: &[Stack], models: &[&str]) -> String {
    let names: Vec<&str> = if models.is_empty() { Vec::new() } else { models.iter().copied().chain([REST]).collect() };
    let heads = names.iter().map(|name| format!("<th scope=\"col\" class=\"n\">{}</th>", Plain(name)));
    let row = |stack: &Stack| {
        let parts = stack.parts.iter().take(names.len());
        let cells = parts.chain([&stack.earned]).map(|part| format!("<td class=\"n\">{}</td>", Plain(part)));
        format!("<tr><th scope=\"row\">{}</th>{}</tr>", Plain(date(stack.day)), cells.collect::<String>())
    };
    format!(
        "<details><summary>As a table</summary><div class=\"scroll\" tabindex=\"0\"><table><thead><tr>\
         <th scope=\"col\">Day (UTC)</th>{}<th scope=\"col\" class=\"n\">Revenue</th></tr></thead><tbody>{}</tbody></table></div>\
         </details>",
        heads.collect::<String>(),
        stacks.iter().rev().map(row).collect::<String>()
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
        let chart = by_day(&days, &[]);
        assert!(chart.contains("<title>2024-01-01: 2.5</title>") && chart.contains("<title>2024-01-02: 0</title>"));
        assert!(chart.contains(">2.5</td>") && chart.matches("<rect class=\"m0\"").count() == 1, "{chart}");
        assert!(!chart.contains("legend") && !chart.contains(REST), "{chart}");
        assert!(by_day(&[], &[]).starts_with("<svg"));
    }

    #[test]
    fn a_day_is_taken_apart_by_model_and_its_parts_are_never_more_than_it() {
        let day = Day::from_number(19_723);
        let charged = |model: &str, units| (day, model.to_owned(), CreditUnit::new(units).unwrap());
        let known: Vec<_> = (1_u64..=7).map(|number| charged(&format!("m-{number}"), number * 1_000_000)).collect();
        assert_eq!(largest(&known), ["m-7", "m-6", "m-5", "m-4", "m-3"]);
        let models = ["m-7", "m-6"];
        let units = |stack: &Stack| stack.parts.iter().map(|part| part.units()).collect::<Vec<_>>();
        let earned = Change::from_units;
        assert_eq!(units(&stack(day, earned(20_000_000), &models, &known)), [7_000_000, 6_000_000, 7_000_000]);
        assert_eq!(units(&stack(day, earned(8_000_000), &models, &known)), [7_000_000, 1_000_000, 0]);
        assert_eq!(units(&stack(day, earned(-1), &models, &known)), [0, 0, 0]);
        let chart = by_day(&[(day, earned(20_000_000))], &[charged("<b>", 5_000_000)]);
        assert!(chart.contains("<title>2024-01-01, &lt;b&gt;: 5</title>"), "{chart}");
        assert!(chart.contains("2024-01-01, everything else: 15"), "{chart}");
        assert_eq!(
            (chart.matches("<rect class=\"m0\"").count(), chart.matches("<rect class=\"rest\"").count()),
            (2, 2)
        );
    }
}
