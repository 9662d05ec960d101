//! Cells side by side on machines that are alike. Neither result, messages nor record depend on the
//! number of machines.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::*;
use quell_record::backend::Backend;

/// What is measured depends on the cell's number. How long it takes differs from cell to cell.
fn numbered() -> Fake {
    let mut fake = Fake::new();
    let drift = |scene: &Scene<'_>| 1.0 + (scene.number % 97) as f64 * 0.001;
    fake.generator("victim", move |scene| {
        std::thread::sleep(Duration::from_micros(scene.number % 3 * 500));
        steady(scene, "latency_ns", 15.0 * drift(scene), 0.0)
    });
    fake.generator("neighbour", move |scene| {
        let rate = PEAK * load(scene).0 * drift(scene) * 0.9;
        steady(scene, "bandwidth_mb_s", rate / 1e6, rate)
    });
    fake.report_throttling();
    fake
}

fn alike(
    fakes: &mut [Fake],
    options: &Options<'_>,
    progress: &mut dyn Progress,
) -> Result<Comparison, CompareError> {
    let all = fakes.iter_mut().map(|f| f as &mut (dyn Backend + Send));
    run(
        &neighbour(),
        Machines::Alike(all.collect()),
        &machine(2),
        &plan,
        options,
        progress,
    )
}

/// Every file of a record, by its path.
fn files(record: &Path) -> BTreeMap<String, String> {
    let in_samples = fs::read_dir(record.join("samples")).unwrap();
    let all = fs::read_dir(record).unwrap().chain(in_samples);
    all.map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.strip_prefix(record).unwrap().display().to_string();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn the_record_is_the_same_on_one_machine_on_two_and_on_five() {
    let runs = tempfile::tempdir().unwrap();
    let mut records = Vec::new();
    for machines in [1, 2, 5] {
        let mut fakes: Vec<Fake> = (0..machines).map(|_| numbered()).collect();
        let mut heard = Heard::default();
        let options = options(3, Some(runs.path()));
        let out = alike(&mut fakes, &options, &mut heard).unwrap();
        assert!(fakes.iter().all(Fake::clean));
        assert_eq!((heard.done, heard.total), (39, 39));
        let used = fakes.iter().filter(|f| !f.log.is_empty()).count();
        assert!(used > 1 || machines < 5, "{used} of {machines}");
        records.push((out.result, heard.cells, files(&out.folder.unwrap())));
    }
    let (first, others) = records.split_first().unwrap();
    assert!(first.2.contains_key("events.jsonl") && first.2.len() > 10);
    for other in others {
        assert_eq!(&first.0, &other.0);
        assert_eq!(&first.1, &other.1);
        assert_eq!(&first.2, &other.2);
    }
    // The same as on a single machine.
    let mut heard = Heard::default();
    let options = options(3, Some(runs.path()));
    let out = attempt(&mut numbered(), &options, &mut heard).unwrap();
    assert_eq!(first.0, out.result);
    assert_eq!(first.2, files(&out.folder.unwrap()));
}

#[test]
fn what_a_cell_gives_does_not_depend_on_what_else_is_run() {
    let all = alike(&mut [numbered()], &options(2, None), &mut NoProgress).unwrap();
    let only = ["cpu-max@20%".to_owned()];
    let mut fewer = options(2, None);
    fewer.only = &only;
    let few = alike(&mut [numbered()], &fewer, &mut NoProgress).unwrap();
    assert!(few.result.configurations.len() < all.result.configurations.len());
    for configuration in &few.result.configurations {
        assert_eq!(configuration, of(&all.result, &configuration.name));
    }
}

/// Asks to stop once so many cells are done.
struct Until(u32, Heard);

impl Progress for Until {
    fn cell(&mut self, cell: &str) {
        self.1.cell(cell);
    }
    fn done(&mut self, done: u32, cells: u32) {
        self.1.done(done, cells);
    }
    fn stop(&mut self) -> Option<i32> {
        (self.1.done >= self.0).then_some(2)
    }
}

#[test]
fn a_stopped_comparison_keeps_its_cells_and_can_go_on() {
    let runs = tempfile::tempdir().unwrap();
    let mut fakes = [numbered(), numbered()];
    let mut until = Until(7, Heard::default());
    let out = options(3, Some(runs.path()));
    let cut = alike(&mut fakes, &out, &mut until).unwrap();
    assert!(fakes.iter().all(Fake::clean));
    assert_eq!(
        cut.result.interrupted.as_deref(),
        Some("stopped by signal 2")
    );
    assert!((7..39).contains(&until.1.done), "{}", until.1.done);
    let folder = cut.folder.unwrap();
    let mut again = options(3, None);
    again.resume = Some(&folder);
    let resumed = alike(&mut fakes, &again, &mut NoProgress).unwrap();
    let whole = alike(&mut [numbered()], &options(3, None), &mut NoProgress).unwrap();
    assert_eq!(resumed.result, whole.result);
}

#[test]
fn a_cell_that_fails_is_tried_again_where_it_was() {
    let mut fakes = [numbered(), numbered()];
    fakes.iter_mut().for_each(|f| f.fail_once("start victim"));
    let mut heard = Heard::default();
    let out = alike(&mut fakes, &options(3, None), &mut heard).unwrap();
    assert!(out.result.failures.is_empty());
    let said = heard.notes.iter().filter(|n| n.contains("once more"));
    assert!((1..=2).contains(&said.count()), "{:?}", heard.notes);
}

#[test]
fn what_cannot_be_undone_ends_all_of_them() {
    let mut fakes = [numbered(), numbered()];
    fakes[0].fail_once("undo");
    let error = alike(&mut fakes, &options(3, None), &mut NoProgress).unwrap_err();
    assert!(error.to_string().contains("quell restore"), "{error}");
}
