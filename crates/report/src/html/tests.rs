use std::collections::BTreeSet;

use quell_plan::{Promise, Setting};
use quell_record::events::{Event, MemoryPoint, MemorySeries, Record, Stamped, Steering};
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::units::{Lines, Nanos, Rate, Share};

use super::*;
use crate::sample;

/// Checks that every element is closed in order. Returns the names of all elements.
fn balanced(page: &str) -> BTreeSet<String> {
    const VOID: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    let (mut open, mut seen): (Vec<&str>, BTreeSet<String>) = (Vec::new(), BTreeSet::new());
    for part in page.split('<').skip(1) {
        let tag = part.split('>').next().unwrap();
        let name = tag
            .split(|c: char| c.is_whitespace() || c == '/')
            .find(|n| !n.is_empty())
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes another element");
        } else {
            seen.insert(name.to_owned());
            if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    seen
}

/// The values of an attribute, wherever it occurs.
fn values<'p>(page: &'p str, attribute: &str) -> Vec<&'p str> {
    let begin = format!(" {attribute}=\"");
    page.split(&begin)
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect()
}

/// Checks that a browser shows the page as meant, whatever the record.
fn sound(page: &str) {
    balanced(page);
    for foreign in [
        "<script",
        "http:",
        "https:",
        "url(",
        "@import",
        "src=",
        "<link",
        "<iframe",
        "javascript:",
    ] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let ids = values(page, "id");
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "an id twice: {ids:?}");
    for reference in values(page, "href") {
        assert!(
            unique.contains(reference.strip_prefix('#').unwrap()),
            "{reference}"
        );
    }
    for names in values(page, "aria-labelledby") {
        assert!(names.split(' ').all(|n| unique.contains(n)), "{names}");
    }
    for attribute in [
        "d",
        "x",
        "y",
        "cx",
        "cy",
        "r",
        "width",
        "height",
        "viewBox",
        "transform",
    ] {
        for value in values(page, attribute) {
            assert!(
                !value.contains("NaN") && !value.contains("inf"),
                "{attribute}={value}"
            );
            if ["width", "height", "r"].contains(&attribute) {
                assert!(
                    value.parse::<f64>().map_or(true, |v| v >= 0.0),
                    "{attribute}={value}"
                );
            }
        }
    }
    assert_eq!(
        page.matches("<svg ").count(),
        page.matches("</desc>").count()
    );
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
}

#[test]
fn the_page_is_whole_loads_nothing_and_names_everything_once() {
    let page = html(&sample::record());
    sound(&page);
    for needed in [
        "prefers-color-scheme: dark",
        "@media print",
        "max-width: 640px",
        "name=\"viewport\"",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
}

#[test]
fn it_shows_all_that_a_reader_needs_to_judge() {
    let page = html(&sample::record());
    for needed in [
        "Beside neighbour, victim keeps 9.1 %",
        "<title id=\"fig-frontier-wide-t\">",
        "<title id=\"fig-bars-narrow-t\">",
        "<title id=\"fig-tails-wide-t\">",
        "<title id=\"fig-causes-wide-t\">",
        "<title id=\"fig-series-wide-t\">",
        "<title id=\"fig-whole-wide-t\">",
        "<b>regulated@10%</b>: level estimated",
        "refused</span>. group.neighbour.limit.bandwidth: 70% cannot be metered here",
        "shared a cache in all rounds",
        "% of CPU 1 (60 % between the worst two samples)",
        "A virtual machine (KVM)",
        "No memory traffic counter counts here",
        "AMD EPYC",
        "fnv1a64:0123456789abcdef",
        "--seed 1 --rounds 15",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
}

#[test]
fn every_figure_says_what_it_shows_and_how_to_read_it() {
    let page = html(&sample::record());
    let figures: Vec<&str> = page.split("<figure ").skip(1).collect();
    assert_eq!(figures.len(), 6);
    for figure in figures {
        let caption = figure.split("</figcaption>").next().unwrap();
        assert_eq!(caption.matches("<p").count(), 2, "{caption}");
        assert!(figure.contains("class=\"wide\"") && figure.contains("class=\"narrow\""));
    }
}

#[test]
fn an_axis_of_sizes_is_a_figure_of_curves() {
    let mut record = sample::record();
    assert!(!html(&record).contains("fig-curve"), "caps are no sizes");
    record.result = Some(sample::paging());
    let page = html(&record);
    sound(&page);
    let drawn = page.split("id=\"fig-curve-narrow-t\"").nth(1).unwrap();
    let drawn = drawn.split("</svg>").next().unwrap();
    assert!(drawn.contains("<title>victim 2MiB, 0.5LLC: 30.0</title>"));
    assert_eq!(
        drawn.matches("class=\"line ").count(),
        2,
        "a line per curve"
    );
}

#[test]
fn every_cause_of_lateness_has_its_place_in_bar_and_key() {
    let page = html(&sample::record());
    let drawn = page.split("id=\"fig-causes-wide-t\"").nth(1).unwrap();
    let drawn = drawn.split("</svg>").next().unwrap();
    assert!(drawn.contains(">memory 62 %</text>") && drawn.contains(">interrupts</text>"));
    let mut record = sample::record();
    for subject in sample::subjects(record.result.as_mut().unwrap()) {
        subject.attribution = None;
    }
    let page = html(&record);
    sound(&page);
    assert!(!page.contains("Why it was late"));
}

#[test]
fn what_people_write_is_text_not_markup() {
    let mut record = sample::record();
    let result = record.result.as_mut().unwrap();
    result.title = Some("<b>\"a\" & 'b'".into());
    let page = html(&record);
    sound(&page);
    assert!(page.contains("<title>&lt;b&gt;&quot;a&quot; &amp; 'b'</title>"));
    assert!(page.contains("--on linux &amp;&amp; echo &lt;done&gt;"));
}

#[test]
fn a_result_with_nothing_measured_is_still_a_page() {
    let mut record = sample::record();
    for configuration in &mut record.result.as_mut().unwrap().configurations {
        configuration.subjects.clear();
    }
    record.spans.clear();
    let page = html(&record);
    sound(&page);
    assert!(page.contains("Nothing could be measured."));
}

/// Everything alike, nothing above zero, no times, no other subject: the hard cases of scales.
#[test]
fn odd_figures_make_sound_pages() {
    let flat = |value: f64| {
        let mut record = sample::record();
        for span in &mut record.spans {
            span.values.fill(value);
        }
        record
    };
    for value in [0.0, 1.0, -3.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        sound(&html(&flat(value)));
    }
    let mut record = sample::record();
    for span in &mut record.spans {
        span.at_ns = None;
    }
    record.cpu_times.clear();
    let page = html(&record);
    sound(&page);
    assert!(!page.contains("fig-series") && page.contains("not in this record"));
    let mut record = sample::record();
    let result = record.result.as_mut().unwrap();
    (result.frontier, result.baseline) = (None, None);
    for configuration in &mut result.configurations {
        configuration.subjects.truncate(1);
    }
    sound(&html(&record));
    let mut record = sample::record();
    for subject in sample::subjects(record.result.as_mut().unwrap()) {
        subject.figures.normalized_p50 = Some(26.0);
        subject.figures.normalized_p50_ci95 = Some([1.0, 400.0].into());
    }
    sound(&html(&record));
}

#[test]
fn a_page_stays_small_whatever_was_recorded() {
    let mut record = sample::record();
    for span in &mut record.spans {
        let begun = span.at_ns.as_ref().unwrap()[0];
        span.values = (0..100_000u32).map(|n| f64::from(n % 977) + 1.0).collect();
        span.at_ns = Some((0..100_000).map(|n| begun + n * 1_000_000).collect());
    }
    sound(&html(&record));
}

#[test]
fn the_record_of_a_run_makes_a_page_too() {
    let record = Record {
        result: None,
        spans: Vec::new(),
        ..sample::record()
    };
    let page = html(&record);
    sound(&page);
    for needed in [
        "How the run went",
        "policy neighbour",
        "It lasted 13.0 s.",
        "fig-whole",
        "AMD EPYC",
        "The policy, word for word",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    sound(&html(&Record::default()));
}

#[test]
fn what_was_done_about_memory_is_drawn_with_every_reason() {
    let mut record = sample::record();
    // Of all configurations one acts. The configurations before and after it do not.
    let at = |ms: u64, event| Stamped {
        at_ns: ms * 1_000_000,
        event,
    };
    let begins = |ms, round, configuration: &str| {
        let (configuration, subject) = (configuration.to_owned(), None);
        let of = 2;
        at(
            ms,
            Event::Cell {
                round,
                of,
                configuration,
                subject,
            },
        )
    };
    let waited = |memory_ns| Event::Waited {
        memory_full_ns: memory_ns / 2,
        group: "victim".into(),
        memory_ns,
        io_ns: 0,
        refaults: 0,
        bytes: 300 << 20,
        others_bytes: 212 << 20,
        available_bytes: 50 << 20,
        total_bytes: 1 << 30,
    };
    let did = |did| Event::Steered {
        group: "neighbour".into(),
        did,
        why: "the critical group waited 40% of the time".into(),
    };
    record.events = vec![
        begins(0, 0, "solo"),
        begins(5, 0, "none"),
        begins(10, 0, "regulated@10%"),
        at(10, waited(0)),
        at(
            20,
            did(Steering::Limit {
                bytes: Some(64 << 20),
            }),
        ),
        at(30, did(Steering::Freeze)),
        at(40, waited(400_000_000)),
        at(50, did(Steering::Kill { pid: 7 })),
        begins(60, 0, "regulated@30%"),
        begins(70, 1, "regulated@10%"),
        at(80, waited(0)),
        at(81, did(Steering::Freeze)),
        at(90, waited(0)),
    ];
    let page = html(&record);
    sound(&page);
    let shown = "Memory and what was done about it, under regulated@10%:";
    assert!(page.contains(shown), "one panel");
    assert!(page.contains(">3 acts<") && !page.contains(">4 acts<"));
    for needed in [
        "What was done about memory",
        "<title id=\"fig-pressure-wide-t\">",
        "neighbour may use 64 MiB, as the critical group waited 40% of the time",
        "neighbour is frozen",
        "regulated@10%, 50 % of memory used",
        "neighbour has process 7 killed",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    assert!(!html(&sample::record()).contains("fig-pressure"));
}

#[test]
fn memory_of_a_subject_is_drawn_for_every_configuration() {
    let mut record = sample::record();
    let course = |configuration: &str, resident_mb: f64, cache_misses: f64| MemorySeries {
        configuration: configuration.into(),
        subject: "victim".into(),
        round: 0,
        points: (0..40)
            .map(|n| MemoryPoint {
                at_ns: 5_000_000_000 + n * 50_000_000,
                resident_mb,
                cache_misses,
                major_faults: cache_misses * 8.0,
            })
            .collect(),
    };
    record.courses = vec![course("solo", 300.0, 0.0), course("none", 120.0, 0.25)];
    let page = html(&record);
    sound(&page);
    for needed in [
        "What victim had in memory, under solo, none:",
        "<title id=\"fig-course-wide-t\">",
        ">solo, 0.0 faults<",
        ">none, 2.0 faults<",
    ] {
        assert!(page.contains(needed), "{needed}");
    }
    assert!(!html(&sample::record()).contains("fig-course"));
}

/// What a reader reads, without drawings and markup.
fn words(page: &str) -> String {
    let body = page.split_once("<body>").unwrap().1;
    let drawn: String = body
        .split("<svg ")
        .enumerate()
        .map(|(n, part)| {
            if n == 0 {
                part
            } else {
                part.split_once("</svg>").unwrap().1
            }
        })
        .collect();
    let mut text = String::new();
    for part in drawn.split('<') {
        let (tag, words) = part.split_once('>').unwrap_or(("", part));
        let name = tag.split(' ').next().unwrap();
        match name.trim_start_matches('/') {
            "p" | "li" | "tr" | "h1" | "h2" | "h3" | "caption" | "pre" | "summary" | "section" => {
                text.push('\n');
            }
            "td" | "th" | "a" => text.push(' '),
            _ => {}
        }
        text.push_str(words);
    }
    let text = text.replace("&quot;", "\"").replace("&lt;", "<");
    let text = text.replace("&gt;", ">").replace("&amp;", "&");
    let lines = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = lines.filter(|l| !l.is_empty()).collect();
    lines.join("\n") + "\n"
}

#[test]
fn the_page_reads_as_a_person_would_say_it() {
    sample::golden("page", &words(&html(&sample::record())));
}

#[test]
fn who_may_fill_which_ways_is_drawn_with_names_and_evidence() {
    let record = crate::ways::tests::record();
    let page = html(&record);
    assert!(page.contains("<h2 id=\"ways\">Who may fill which ways</h2>"));
    assert!(page.contains("fig-ways-0-0-wide") && page.contains("fig-ways-0-0-narrow"));
    for named in [
        ">everybody else</text>",
        ">db</text>",
        ">core 0</text>",
        ">process 7 redis</text>",
        ">thread 7 redis</text>",
        "each class has of the cache, MiB",
        "what ran on each core",
        ">thread 8 cron</text>",
        "misses of each thread in the last-level cache",
        ">7 redis</text>",
        "<span class=\"bad\">overlap</span>",
        "class db is exclusive instead of shareable",
    ] {
        assert!(page.contains(named), "{named}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

/// The plans of a real comparison: one without limits, and two ways to limit at five caps each.
fn thirteen() -> Record {
    const CAPS: [u64; 5] = [10, 20, 30, 50, 70];
    let mut record = sample::record();
    let template = sample::plan();
    let limit = template.steps.len() - 1;
    let mut cores = template.clone();
    cores.steps.truncate(limit);
    cores.promises.truncate(1);
    let quota = |percent: u64| {
        let mut plan = template.clone();
        let share = Share::percent(percent);
        plan.steps[limit].mechanism = Mechanism::CpuMax;
        let period = Nanos::millis(100);
        plan.steps[limit].set = Setting::CpuMax { share, period };
        plan.steps[limit].because = "the kernel's own quota".into();
        plan.promises[1].promise = Promise::LimitCpuTime { share };
        plan.promises[1].level = Level::Enforced;
        plan.promises[1].weakest = None;
        (format!("cpu-max@{percent}%"), plan)
    };
    let regulated = |percent: u64| {
        let mut plan = template.clone();
        let rate = Rate(percent * 375_000_000);
        if let Setting::Regulate(regulation) = &mut plan.steps[limit].set {
            regulation.budget = Lines(rate.0 / 1_000 / 64);
        }
        plan.steps[limit].because = format!("{percent}% of what one CPU can draw");
        plan.promises[1].promise = Promise::LimitBandwidth { rate };
        (format!("regulated@{percent}%"), plan)
    };
    let mut plans = vec![("cores".to_owned(), cores)];
    plans.extend(CAPS.map(quota));
    plans.extend(CAPS.map(regulated));
    let result = record.result.as_mut().unwrap();
    let template = result.configurations[5].clone();
    result.configurations.truncate(2);
    for (name, plan) in &plans {
        let mut row = template.clone();
        row.name.clone_from(name);
        (row.family, row.cap) = (None, None);
        row.complete();
        row.guarantee = Some(plan.level());
        row.promises.clear();
        result.configurations.push(row);
    }
    record.refused.clear();
    record.plans.retain(|name, _| name == "none");
    record.plans.extend(plans);
    record
}

/// The section below a heading.
fn section_of<'p>(page: &'p str, id: &str) -> &'p str {
    let section = page.split(&format!("<h2 id=\"{id}\">")).nth(1).unwrap();
    section.split("</section>").next().unwrap()
}

#[test]
fn what_plans_share_is_said_once() {
    let page = html(&thirteen());
    let plans = words(&format!("<body>{}", section_of(&page, "plans")));
    let count = |text: &str| text.split_whitespace().count();
    let (part, whole) = (count(&plans), count(&words(&page)));
    assert!(part * 4 <= whole, "{part} of {whole} words: {plans}");
    for once in [
        "run on CPU 0, memory from node 0",
        "no counter counts here",
        "CPU 1 is shared",
    ] {
        assert_eq!(plans.matches(once).count(), 1, "{once}: {plans}");
    }
    for each in [
        "cores: level enforced",
        "at most 70% of one CPU's time",
        "neighbour: as under regulated@10%, but 410156 cache lines per 1ms",
        "neighbour: at most 26.25GB/s: estimated held by step 5",
    ] {
        assert!(plans.contains(each), "{each}: {plans}");
    }
}

/// Steps are numbered per plan. The page numbers first what all plans share.
#[test]
fn a_promise_names_its_steps_by_their_numbers_on_the_page() {
    let mut record = sample::record();
    let mut other = sample::plan();
    let own = other.steps.pop().unwrap();
    other.steps.insert(0, own);
    for (step, id) in other.steps.iter_mut().zip(1..) {
        step.id = StepId(id);
    }
    other.steps[0].because = "another reason".into();
    other.promises[0].held_by = vec![StepId(3), StepId(4)];
    other.promises[1].held_by = vec![StepId(1)];
    record.plans.insert("regulated@30%".into(), other);
    let page = html(&record);
    let plans = words(&format!("<body>{}", section_of(&page, "plans")));
    let shared = "victim: CPU 0 to itself: enforced held by steps 2 and 3";
    assert_eq!(plans.matches(shared).count(), 1, "{plans}");
    let own = "neighbour: at most 3.75GB/s: estimated held by step 5";
    assert_eq!(plans.matches(own).count(), 2, "{plans}");
    assert_eq!(page.matches("<ol start=\"5\">").count(), 2);
}

#[test]
fn configurations_that_overlap_are_one_row_that_opens() {
    let page = html(&thirteen());
    sound(&page);
    let table = section_of(&page, "result");
    let rows = table.split("<tr").filter(|row| row.contains("<summary>"));
    let summaries: Vec<&str> = rows
        .map(|r| r.split("</summary>").next().unwrap())
        .collect();
    assert_eq!(summaries.len(), 2, "{table}");
    assert!(summaries[0].contains("cores and cpu-max@10% to 70% (6)"));
    assert!(summaries[1].contains("regulated@10% to 70% (5)"));
    assert!(summaries[1].contains(">0.92</span>") && summaries[1].contains(">5.0 %</span>"));
    assert_eq!(table.matches("<th scope=\"row\">").count(), 13);
    let all_differ = html(&sample::record());
    assert!(!section_of(&all_differ, "result").contains("<details"));
}

#[test]
fn the_verdict_and_one_picture_come_first() {
    let page = html(&sample::record());
    let place = |what: &str| page.find(what).unwrap();
    let order = [
        "class=\"verdict\"",
        "id=\"fig-frontier\"",
        "<nav ",
        "id=\"result\"",
        "id=\"fig-bars\"",
    ];
    let places: Vec<usize> = order.into_iter().map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
}
