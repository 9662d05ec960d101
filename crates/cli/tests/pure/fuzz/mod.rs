//! Every parser of what comes from outside, on damaged input: it reads it or refuses it. It does
//! not panic, take memory without bound, or go on for ever. What it has read it writes so that it
//! reads the same again, where there is a writer.
//!
//! A target damages valid input from the repository ([`damage`]): random bytes do not get past the
//! first key. `make test` tries a fixed number of inputs of each, `make soak` a minute of each, and
//! ten of what users without rights can write.
//!
//! - `QUELL_SOAK=1`: so many minutes of each target, from a seed of the clock, which is printed.
//! - `QUELL_FUZZ_SECONDS=600 cargo test -p quell --test pure fuzz::NAME`: longer, of one target.
//! - `QUELL_FUZZ_SEED=N`: the inputs of that seed again.
//!
//! An input that fails is written to a file and printed as a line for `regressions.rs`, where it
//! is tried first from then on.

mod covered;
mod damage;
mod driver;
mod files;
mod kernel;
mod memory;
mod regressions;
mod seeds;
mod texts;

use driver::Target;

/// What is covered. `few` is how many inputs `make test` tries: well under a second of each.
#[rustfmt::skip]
const TARGETS: &[Target] = &[
    // Words of policies, experiments and the command line.
    Target { name: "quantities", reads: "times, sizes, rates, shares", seeds: seeds::quantities, check: texts::quantities, few: 4_000, minutes: 1 },
    Target { name: "sets", reads: "lists and masks of CPUs and ways, caches by name", seeds: seeds::sets, check: texts::sets, few: 2_000, minutes: 1 },
    Target { name: "task_match", reads: "`exe=…,user=…`", seeds: seeds::task_match, check: texts::task_match, few: 2_000, minutes: 1 },
    Target { name: "pattern", reads: "a pattern, and a line of a program's output", seeds: seeds::pattern, check: texts::pattern, few: 300, minutes: 1 },
    Target { name: "generator", reads: "`bandwidth:write,size=…`", seeds: seeds::generator, check: texts::generator, few: 1_000, minutes: 1 },
    Target { name: "lab_key", reads: "`--lab KEY=VALUE`", seeds: seeds::lab_key, check: texts::lab_key, few: 500, minutes: 1 },
    // Files that people write.
    Target { name: "policy", reads: "policies, and plans them", seeds: seeds::policies, check: files::policy, few: 200, minutes: 1 },
    Target { name: "experiment", reads: "experiments", seeds: seeds::experiments, check: files::experiment, few: 150, minutes: 1 },
    Target { name: "machine_profile", reads: "profiles of simulated machines", seeds: seeds::machine_profiles, check: files::machine_profile, few: 200, minutes: 1 },
    Target { name: "processor_profile", reads: "profiles of the lab's processors", seeds: seeds::processor_profiles, check: files::processor_profile, few: 300, minutes: 1 },
    Target { name: "capture", reads: "captured machines, and probes and plans on them", seeds: seeds::captures, check: files::capture, few: 100, minutes: 1 },
    Target { name: "address_map", reads: "address maps, and which one was declared", seeds: seeds::address_maps, check: files::address_map, few: 1_000, minutes: 1 },
    // Files that Quell writes, and reads again.
    Target { name: "lying_machine", reads: "captured machines whose files say something else", seeds: seeds::lies, check: files::lying_machine, few: 100, minutes: 1 },
    Target { name: "inventory", reads: "`doctor --json`, and plans on it", seeds: seeds::inventories, check: files::inventory, few: 100, minutes: 1 },
    Target { name: "journal", reads: "the undo journal", seeds: seeds::journals, check: files::journal, few: 500, minutes: 10 },
    Target { name: "lease", reads: "the lease's page", seeds: seeds::leases, check: files::lease, few: 300, minutes: 10 },
    Target { name: "record", reads: "records, and renders them", seeds: seeds::records, check: files::record, few: 60, minutes: 10 },
    Target { name: "run_state", reads: "plan, standing, units said, measurements, events", seeds: seeds::run_state, check: files::run_state, few: 300, minutes: 10 },
    Target { name: "trace", reads: "recorded programs", seeds: seeds::traces, check: files::trace, few: 2_000, minutes: 1 },
    Target { name: "lackey", reads: "what valgrind's lackey prints", seeds: seeds::lackey, check: files::lackey, few: 1_000, minutes: 1 },
    Target { name: "hoard", reads: "what a hoard's keeper is asked for and reports", seeds: seeds::hoards, check: texts::hoard, few: 2_000, minutes: 1 },
    // What the kernel and other programs write, and what they run.
    Target { name: "kernel_file", reads: "every file of /proc, /sys and cgroups", seeds: seeds::kernel_files, check: kernel::kernel_file, few: 100, minutes: 10 },
    Target { name: "schemata", reads: "lines of resctrl", seeds: seeds::schemata, check: kernel::schemata, few: 2_000, minutes: 1 },
    Target { name: "operand", reads: "the memory operand of an instruction that a guest of the lab runs", seeds: seeds::operands, check: memory::operand, few: 4_000, minutes: 1 },
    Target { name: "session", reads: "the memory that a program shares", seeds: seeds::sessions, check: memory::session, few: 300, minutes: 10 },
];

/// A test of each target, so that one can be named, and they run next to each other.
macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            driver::run(target(stringify!($name)));
        })*

        #[test]
        fn every_target_has_its_test() {
            let tests = [$(stringify!($name)),*];
            let targets: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
            assert_eq!(targets, tests);
        }
    };
}

tests! {
    quantities sets task_match pattern generator lab_key
    policy experiment machine_profile processor_profile capture address_map
    lying_machine inventory journal lease record run_state trace lackey hoard
    kernel_file schemata operand session
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).unwrap()
}

#[test]
fn every_regression_is_of_a_target() {
    for (name, _) in regressions::REGRESSIONS {
        assert!(TARGETS.iter().any(|t| t.name == *name), "{name}");
    }
}
