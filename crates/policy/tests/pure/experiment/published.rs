//! Published figures: what is read, and what is answered to mistakes.

use quell_policy::experiment::PublishedFigure;

use super::{answers, below};

const CONFIGURATIONS: &str = "[configuration.solo]\nalone = true\n[configuration.none]\n";
const SOLO: &str =
    "[[published]]\nsubject = \"hog\"\nconfiguration = \"solo\"\nvalue = 5\nsource = \"T1\"\n";

fn row(rest: &str) -> String {
    format!("[[published]]\nsubject = \"hog\"\nconfiguration = \"none\"\nsource = \"T1\"\n{rest}\n")
}

#[test]
fn a_published_row_reads_with_its_defaults() {
    let text = format!(
        "{CONFIGURATIONS}{SOLO}{}",
        row("value = 2.5\nagainst = \"solo\"")
    );
    let experiment = below(&text).unwrap();
    let [solo, none] = &experiment.published[..] else {
        panic!("{:?}", experiment.published);
    };
    assert_eq!((solo.value, solo.figure), (5.0, PublishedFigure::Value));
    assert_eq!((none.flat, none.size), (0.03, None));
    assert_eq!(none.against.as_deref(), Some("solo"));
    let hog = &experiment.subjects["hog"];
    assert_eq!(none.metric(hog), "bandwidth_mb_s");
}

#[test]
fn a_note_may_be_about_one_kind_of_backend() {
    let known = "value = 2\nagainst = \"solo\"\nknown = \"so it is\"\n";
    let read = |more: &str| {
        let text = format!("{CONFIGURATIONS}{SOLO}{}", row(&format!("{known}{more}")));
        let row = below(&text).unwrap().published.remove(1);
        ["linux", "sim:./tiny.toml", "lab"].map(|backend| row.known(backend).is_some())
    };
    assert_eq!(read(""), [true; 3]);
    assert_eq!(read("known_on = [\"sim\"]"), [false, true, false]);
    assert_eq!(read("known_on = [\"linux\", \"lab\"]"), [true, false, true]);
}

#[test]
fn a_mistake_in_a_published_row_is_answered_where_it_stands() {
    // The configurations are lines 10 to 12; a row's fourth key is on line 17.
    for (rows, answer) in [
        (
            row("value = 1").replace("hog", "hgo"),
            "14:11: published[0].subject: there is no subject 'hgo'; did you mean 'hog'?",
        ),
        (
            row("value = 1").replace("\"none\"", "\"nine\""),
            "15:17: published[0].configuration: there is no configuration 'nine'; did you mean 'none'?",
        ),
        (
            row("value = 1\nmetric = \"latency_s\""),
            "18:10: published[0].metric: the subject has no metric 'latency_s'; did you mean 'latency_ns'?",
        ),
        (
            row("value = 1\nagainst = \"solo\""),
            "18:11: published[0].against: there is no published value of bandwidth_mb_s of 'hog' under 'solo'; add a [[published]] row for 'solo'",
        ),
        (
            row("value = 1\nagainst = \"sole\""),
            "18:11: published[0].against: there is no configuration 'sole'; did you mean 'solo'?",
        ),
        (
            row("value = 1\nagainst = \"none\""),
            "18:11: published[0].against: a row has no direction against itself; name another configuration",
        ),
        (
            row("value = nan"),
            "17:9: published[0].value: NaN is not a number above 0",
        ),
        (
            row("value = inf"),
            "17:9: published[0].value: inf is not a number above 0",
        ),
        (
            row("value = 0"),
            "17:9: published[0].value: 0 is not a number above 0",
        ),
        (
            row("value = 1\nsize = inf"),
            "18:8: published[0].size: inf is not a number above 0",
        ),
        (
            row("value = 1\nflat = 1.5"),
            "18:8: published[0].flat: 1.5 is not a fraction from 0 to below 1; 0.03 is the default",
        ),
        (
            row("value = 1").replace("T1", " "),
            "16:10: published[0].source: the source is not named; name paper and table",
        ),
        (
            row("value = 1\nknown = \"x\""),
            "18:9: published[0].known: no direction is judged without `against`; give `against`, or remove `known`",
        ),
        (
            row("value = 1\nknown_on = [\"sim\"]"),
            "18:12: published[0].known_on: nothing is known to be wrong; give `known`",
        ),
        (
            row("value = 1\nfigure = \"p50\"")
                + &row("value = 2\nmetric = \"bandwidth_mb_s\"\nfigure = \"p50\""),
            "19:1: published[1]: published[0] has the same subject, configuration, metric and figure; remove one",
        ),
        (
            row("value = 1\nmetric = \"ipc\"\nfigure = \"normalized\""),
            "19:10: published[0].figure: nothing is normalized: which direction of ipc is good is not known",
        ),
    ] {
        let found = answers(&format!("{CONFIGURATIONS}{rows}"));
        assert_eq!(found, [format!("e.toml:{answer}")], "{rows}");
    }
}

#[test]
fn what_is_missing_of_a_row_is_named() {
    let found = answers(&format!("{CONFIGURATIONS}{}", row("")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("published") && found[0].contains("value"),
        "{found:?}"
    );
    let without = "[configuration.none]\n";
    let found = answers(&format!(
        "{without}{}",
        row("value = 1\nfigure = \"normalized\"")
    ));
    assert_eq!(
        found,
        ["e.toml:16:10: published[0].figure: nothing is normalized: no configuration is alone"]
    );
}
