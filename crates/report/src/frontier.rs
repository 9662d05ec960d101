//! The frontier: protection against throughput kept.
//!
//! Throttling to nothing always protects. So mechanisms are compared at the same rate kept, never
//! at the same cap. Between two caps of the reference its figure and its interval are interpolated
//! linearly. Beyond its caps nothing is claimed.

use quell_record::result::{CompareResult, ConfigurationResult, Subset};
use quell_types::mechanism::Mechanism;
use quell_types::stats::Interval;

use crate::text::{Style, Table, TableCell, Tone, percent};
use crate::view::{Spread, View, median_kept, tail_kept};

/// A mechanism at one cap.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) name: String,
    /// The cap, as in the configuration's name.
    pub(crate) label: String,
    pub(crate) kept: f64,
    pub(crate) median: Spread,
    pub(crate) tail: Option<Spread>,
}

/// A mechanism at all its caps.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Whether this is the remedy that Linux has without Quell: the CPU-time quota.
    pub(crate) reference: bool,
    pub(crate) points: Vec<Point>,
}

/// How a figure compares with the reference at the same rate kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Better,
    Worse,
    /// The intervals overlap, or one of the figures has none.
    Same,
    /// The reference was not measured around this rate.
    Beyond,
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Beyond => "–",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Better => Tone::Good,
            Self::Worse => Tone::Bad,
            Self::Same => Tone::Plain,
            Self::Beyond => Tone::Faint,
        }
    }
}

/// A point, compared with the reference.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub(crate) name: String,
    pub(crate) median: (Standing, Option<f64>),
    pub(crate) tail: (Standing, Option<f64>),
}

/// The frontier of a result: all mechanisms, and their points compared.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) protected: String,
    pub(crate) pays: String,
    pub(crate) series: Vec<Series>,
    pub(crate) compared: Vec<Compared>,
}

impl Data {
    pub(crate) fn reference(&self) -> Option<&Series> {
        self.series.iter().find(|s| s.reference)
    }

    /// The frontier over a subset of rounds. `None` unless some mechanism was measured at two or
    /// more caps.
    pub(crate) fn new(result: &CompareResult, subset: Subset) -> Option<Self> {
        let view = View::new(result, subset)?;
        let pays = view.pays?;
        let mut series: Vec<Series> = Vec::new();
        for configuration in &result.configurations {
            let (Some(base), Some(point)) =
                (configuration.family.as_deref(), point(&view, configuration))
            else {
                continue;
            };
            let quota = configuration.mechanisms.contains(&Mechanism::CpuMax)
                && !configuration.mechanisms.contains(&Mechanism::Bandwidth);
            match series.iter_mut().find(|s| s.name == base) {
                Some(found) => {
                    found.reference &= quota;
                    found.points.push(point);
                }
                None => series.push(Series {
                    name: base.to_owned(),
                    reference: quota,
                    points: vec![point],
                }),
            }
        }
        series.retain(|s| s.points.len() > 1);
        if series.is_empty() {
            return None;
        }
        for one in &mut series {
            one.points.sort_by(|a, b| a.kept.total_cmp(&b.kept));
        }
        let reference = series.iter().find(|s| s.reference).cloned();
        let compared = series
            .iter()
            .filter(|s| !s.reference)
            .flat_map(|s| &s.points)
            .filter_map(|point| Some(compare(point, reference.as_ref()?)))
            .collect();
        Some(Self {
            protected: view.protected.to_owned(),
            pays: pays.to_owned(),
            series,
            compared,
        })
    }

    /// The points with this standing, at p99 or at the median.
    pub(crate) fn standing(&self, standing: Standing, at_p99: bool) -> Vec<String> {
        self.compared
            .iter()
            .filter(|c| if at_p99 { c.tail.0 } else { c.median.0 } == standing)
            .map(|c| c.name.clone())
            .collect()
    }
}

fn point(view: &View<'_>, configuration: &ConfigurationResult) -> Option<Point> {
    let figures = view.protected(configuration)?;
    Some(Point {
        name: configuration.name.clone(),
        label: configuration.label().to_owned(),
        kept: view.kept(configuration)?,
        median: median_kept(figures)?,
        tail: tail_kept(figures),
    })
}

fn compare(point: &Point, reference: &Series) -> Compared {
    let against = |mine: Option<Spread>, pick: fn(&Point) -> Option<Spread>| {
        let Some(mine) = mine else {
            return (Standing::Beyond, None);
        };
        let Some(theirs) = at(reference, point.kept, pick) else {
            return (Standing::Beyond, None);
        };
        let standing = match (mine.ci, theirs.ci) {
            (Some(a), Some(b)) if !a.overlaps(&b) => {
                if mine.value > theirs.value {
                    Standing::Better
                } else {
                    Standing::Worse
                }
            }
            _ => Standing::Same,
        };
        (standing, Some(theirs.value))
    };
    Compared {
        name: point.name.clone(),
        median: against(Some(point.median), |p| Some(p.median)),
        tail: against(point.tail, |p| p.tail),
    }
}

/// The reference's figure where it keeps `kept`. `None` beyond its caps.
fn at(reference: &Series, kept: f64, pick: fn(&Point) -> Option<Spread>) -> Option<Spread> {
    reference.points.windows(2).find_map(|pair| {
        let [below, above] = pair else { return None };
        if !(below.kept <= kept && kept <= above.kept) {
            return None;
        }
        let (low, high) = (pick(below)?, pick(above)?);
        let width = above.kept - below.kept;
        let weight = if width > 0.0 {
            (kept - below.kept) / width
        } else {
            0.5
        };
        let mix = |a: f64, b: f64| a + (b - a) * weight;
        Some(Spread {
            value: mix(low.value, high.value),
            ci: low.ci.zip(high.ci).map(|(a, b)| Interval {
                low: mix(a.low, b.low),
                high: mix(a.high, b.high),
            }),
        })
    })
}

/// The frontier as a table and a chart, for a terminal.
pub(crate) fn text(data: &Data, style: Style) -> String {
    let mut out = style.wrap(
        "",
        "",
        &format!(
            "Frontier: the part of its solo speed that {} keeps, against the part of its rate that {} keeps.",
            data.protected, data.pays
        ),
    );
    let tail = data
        .series
        .iter()
        .flat_map(|s| &s.points)
        .any(|p| p.tail.is_some());
    let reference = data.reference().map(|r| r.name.clone());
    let mut head = vec![
        String::new(),
        format!("{} kept", data.pays),
        format!("{} p50", data.protected),
    ];
    if tail {
        head.push("p99".to_owned());
    }
    if let Some(reference) = &reference {
        head.push(format!("{reference} p50 there"));
        if tail {
            head.push("p99 there".to_owned());
        }
    }
    let left = (head.len()
        - if reference.is_some() {
            1 + usize::from(tail)
        } else {
            0
        }..head.len())
        .collect();
    let mut table = Table {
        head,
        rows: Vec::new(),
        left,
    };
    for point in data.series.iter().flat_map(|s| &s.points) {
        let mut row = vec![
            TableCell::new(&point.name),
            TableCell::new(percent(point.kept)),
            TableCell::new(spread(Some(point.median))),
        ];
        if tail {
            row.push(TableCell::new(spread(point.tail)));
        }
        let compared = data.compared.iter().find(|c| c.name == point.name);
        if let Some(compared) = compared {
            let cell = |(standing, there): (Standing, Option<f64>)| {
                let text = match there {
                    Some(there) => format!("{there:.2}: {}", standing.word()),
                    None => standing.word().to_owned(),
                };
                TableCell::tone(text, standing.tone())
            };
            row.push(cell(compared.median));
            if tail {
                row.push(cell(compared.tail));
            }
        }
        table.rows.push(row);
    }
    out.push_str(&table.render(style));
    out.push('\n');
    out.push_str(&scatter(data));
    out
}

fn spread(spread: Option<Spread>) -> String {
    crate::text::normalized(spread.map(|s| s.value), spread.and_then(|s| s.ci))
}

/// Marks of the mechanisms in the chart: the reference is hollow, all others are full.
const MARKS: [char; 4] = ['●', '▲', '■', '◆'];
const HOLLOW: char = '○';
const COLUMNS: usize = 51;
const ROWS: usize = 11;

#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "held between zero and the last place"
)]
fn place(value: f64, last: usize) -> usize {
    ((value.clamp(0.0, 1.0) * last as f64).round() as usize).min(last)
}

/// The medians in a chart of 51 by 11 places.
fn scatter(data: &Data) -> String {
    let mut grid = vec![vec![' '; COLUMNS]; ROWS];
    let mut marks = MARKS.iter();
    let mut legend = Vec::new();
    for series in &data.series {
        let mark = if series.reference {
            HOLLOW
        } else {
            *marks.next().unwrap_or(&'+')
        };
        legend.push(format!("{mark} {}", series.name));
        for point in &series.points {
            let row = ROWS - 1 - place(point.median.value, ROWS - 1);
            let column = place(point.kept, COLUMNS - 1);
            if let Some(slot) = grid.get_mut(row).and_then(|r| r.get_mut(column)) {
                *slot = if *slot == ' ' || *slot == mark {
                    mark
                } else {
                    '*'
                };
            }
        }
    }
    let mut out = format!(
        "  {} p50, solo = 1        {}\n",
        data.protected,
        legend.join("   ")
    );
    for (index, row) in grid.iter().enumerate() {
        let label = match index {
            0 => " 1.0",
            5 => " 0.5",
            10 => " 0.0",
            _ => "    ",
        };
        let line: String = row.iter().collect();
        out.push_str(&format!("{label} │{}\n", line.trim_end()));
    }
    out.push_str(&format!("     └{}\n", "─".repeat(COLUMNS)));
    out.push_str(&format!("      0 %{:>21}{:>24}\n", "50 %", "100 %"));
    out.push_str(&format!(
        "      rate {} keeps{}\n",
        data.pays,
        overlap(&grid)
    ));
    out
}

fn overlap(grid: &[Vec<char>]) -> &'static str {
    if grid.iter().flatten().any(|c| *c == '*') {
        "   (* several)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn data() -> Data {
        Data::new(&sample::result(), Subset::All).unwrap()
    }

    fn standing(data: &Data, name: &str) -> Standing {
        data.compared
            .iter()
            .find(|c| c.name == name)
            .unwrap()
            .median
            .0
    }

    #[test]
    fn mechanisms_are_compared_at_equal_rate_kept() {
        let data = data();
        assert_eq!(data.reference().unwrap().name, "cpu-max");
        // 12 % kept lies between the quota's 9 % (0.475) and 29 % (0.149): 0.426 there, 0.64 here.
        let twenty = data
            .compared
            .iter()
            .find(|c| c.name == "regulated@20%")
            .unwrap();
        let (standing_of, there) = twenty.median;
        assert_eq!(standing_of, Standing::Better);
        assert!((there.unwrap() - 0.426).abs() < 0.001);
        assert_eq!(standing(&data, "regulated@30%"), Standing::Same);
        assert_eq!(standing(&data, "regulated@10%"), Standing::Beyond);
    }

    #[test]
    fn a_worse_mechanism_is_called_worse() {
        let mut result = sample::result();
        let victim = &mut result.configurations[6].subjects[0].figures;
        victim.normalized_p50 = Some(0.2);
        victim.normalized_p50_ci95 = Some([0.19, 0.21].into());
        let data = Data::new(&result, Subset::All).unwrap();
        assert_eq!(standing(&data, "regulated@20%"), Standing::Worse);
    }

    #[test]
    fn without_intervals_nothing_is_told_apart() {
        let mut result = sample::result();
        for subject in sample::subjects(&mut result) {
            subject.figures.normalized_p50_ci95 = None;
        }
        let data = Data::new(&result, Subset::All).unwrap();
        assert_eq!(standing(&data, "regulated@20%"), Standing::Same);
    }

    #[test]
    fn without_caps_there_is_no_frontier() {
        let mut result = sample::result();
        result.configurations.truncate(4);
        assert!(Data::new(&result, Subset::All).is_none());
    }
}
