//! The bodies of resctrl under real kernels, in the lab: this program runs in a virtual machine
//! with an emulated processor.

use std::time::Duration;

use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::vm::Lab;
use quell_policy::lab::{Accelerator, Guest};

/// Boots a kernel on a processor and runs every body of a module there.
fn on(kernel: &str, profile: &str, bodies: &str, count: usize) {
    if !cfg!(target_arch = "x86_64") {
        return quell_testing::skip("its packages are for x86-64");
    }
    let exe = std::env::current_exe().unwrap().display().to_string();
    let script = format!(
        "lab-watch off; export QUELL_TEST_RESCTRL=1; exec {exe} {bodies}:: --ignored --test-threads=1 --nocapture"
    );
    let lab = Lab {
        guest: Guest {
            kernel: kernel.to_owned(),
            profile: Some(profile.to_owned()),
            accelerator: Accelerator::Tcg,
            with: vec![exe],
            ..Guest::default()
        },
        timeout: Some(Duration::from_secs(300)),
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        ..Lab::default()
    };
    let packages = Packages::new(|line| eprintln!("{line}")).unwrap();
    let (outcome, output, errors) = match lab.gather(&packages) {
        Ok(gathered) => gathered,
        Err(Error::Unavailable(reason)) => return quell_testing::skip(reason),
        Err(e) => panic!("{e}"),
    };
    println!("{output}{errors}");
    assert_eq!(outcome.status, 0);
    let passed = format!("test result: ok. {count} passed; 0 failed; 0 ignored");
    assert!(output.contains(&passed));
    assert!(!output.contains("SKIPPED"));
}

#[test]
fn resctrl_of_6_12_on_an_icelake() {
    on("6.12", "icelake", "divided", 8);
}

#[test]
fn resctrl_of_7_2_on_a_processor_with_sparse_masks() {
    on("7.2", "sparse", "divided", 8);
}

#[test]
fn memory_locked_by_6_12_on_a_goldmont() {
    on("6.12", "goldmont", "pseudo_locked", 3);
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn memory_locked_by_7_2_on_a_goldmont() {
        on("7.2", "goldmont", "pseudo_locked", 3);
    }
}
