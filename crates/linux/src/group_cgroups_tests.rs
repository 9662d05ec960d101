use super::*;

#[test]
fn a_directory_is_within_itself_and_what_is_above() {
    for (dir, above, expected) in [
        ("/a/b", "/a", true),
        ("/a", "/a", true),
        ("/ab", "/a", false),
        ("/a", "/a/b", false),
    ] {
        assert_eq!(within(dir, above), expected, "{dir} {above}");
    }
}

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
