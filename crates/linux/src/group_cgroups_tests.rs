use super::*;

#[test]
fn names_that_would_be_kernel_files_are_refused() {
    for bad in [
        "",
        "a/b",
        "..",
        "tasks",
        "cgroup.procs",
        "_watchdog",
        "cpuset.x",
    ] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
    for good in ["victim", "db.2", "best-effort", "Ünï"] {
        assert!(check_name(good).is_ok(), "{good}");
    }
}
