use super::anonymous::without;
use super::*;
use quell_plan::inventory::{Availability, Lack};
use quell_types::mechanism::Mechanism;

const SMALL: &str = r#"
schema = "quell.capture/1"
[tried]
root = true
counters = ["cpu/LONGEST_LAT_CACHE.MISS"]
[files]
"/proc/self/mountinfo" = "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
"/proc/self/cgroup" = "0::/"
"/proc/cpuinfo" = '''
processor : 0
vendor_id : GenuineIntel
model name : Small'''
"/proc/sys/kernel/arch" = "x86_64"
"/proc/sys/kernel/osrelease" = "6.1.0"
"/proc/irq/{0-2}/smp_affinity_list" = { mode = 0o644 }
"/proc/irq/3/smp_affinity_list" = { mode = 0o444 }
"/sys/fs/cgroup/cgroup.controllers" = "cpuset cpu"
"/sys/bus/event_source/devices/cpu/type" = "4"
"/sys/devices/system/cpu/online" = "0-3"
"/sys/devices/system/cpu/cpu{0-3}/topology/thread_siblings_list" = "{}"
"#;

#[test]
fn a_capture_goes_through_the_probe_of_the_living() {
    let machine = Capture::parse(SMALL).unwrap().inventory().unwrap();
    assert_eq!(machine.cpus.len(), 4);
    assert_eq!(machine.cpus[2].siblings.to_string(), "2");
    assert_eq!(
        (machine.means.movable_irqs, machine.means.fixed_irqs),
        (3, 1)
    );
    assert_eq!(
        machine.means.meter,
        quell_plan::inventory::MeterKind::Hardware {
            events: vec!["cpu/LONGEST_LAT_CACHE.MISS".to_owned()],
            fills_only: machine.cpu_set(),
            apart: CpuSet::EMPTY,
        }
    );
    assert_eq!(machine.identity.architecture, "x86_64");
}

#[test]
fn memory_is_locked_by_root_where_the_kernel_can() {
    let divides =
        "root = true\ndivides = { ways = [{ level = 2, bits = 8, least = 1, classes = 4 }] }";
    let flags = "cpu family : 6\nmodel : 92\nflags : cat_l2\nmodel name : Small";
    let goldmont = SMALL.replace("root = true", divides);
    let goldmont = goldmont.replace("model name : Small", flags);
    let locks = |text: &str| {
        let machine = Capture::parse(text).unwrap().inventory().unwrap();
        machine.mechanisms[&Mechanism::PseudoLock].clone()
    };
    let found = locks(&goldmont);
    assert!(matches!(found, Availability::Yes { .. }), "{found:?}");
    let plain = locks(&goldmont.replace("root = true", "root = false"));
    let Availability::No { lack, .. } = plain else {
        panic!("{plain:?}")
    };
    assert_eq!(lack, Lack::Rights);
    let other = locks(&goldmont.replace("model : 92", "model : 106"));
    let Availability::No { lack, .. } = other else {
        panic!("{other:?}")
    };
    assert_eq!(lack, Lack::Machine);
}

#[test]
fn a_capture_that_makes_no_sense_is_refused_with_the_place() {
    let refused = |text: &str| Capture::parse(text).unwrap_err();
    assert!(refused("schema = 'x/1'").contains("reads 'quell.capture/1'"));
    let unknown = refused(&SMALL.replace("root = true", "rot = true"));
    assert!(
        unknown.contains("line 4") && unknown.contains("rot"),
        "{unknown}"
    );
    let twice = refused(&SMALL.replace("irq/3", "irq/{2-3}"));
    assert!(twice.contains("given twice"), "{twice}");
    let error = refused(&SMALL.replace("\"0::/\"", "{ error = 'EWHAT' }"));
    assert!(error.contains("EWHAT"), "{error}");
}

#[test]
fn any_path_is_written_so_that_it_is_read() {
    for path in ["/a'\"b", "/a\nb", "/a\\b\t\u{7f}", ""] {
        let files = BTreeMap::from([(path.to_owned(), Entry::Text("x\ny'".to_owned()))]);
        let capture = Capture {
            files,
            ..Capture::parse(SMALL).unwrap()
        };
        let again = Capture::parse(&capture.to_string()).unwrap();
        assert_eq!(again.files, capture.files, "{path:?}");
    }
}

#[test]
fn lists_in_braces_that_multiply_are_refused() {
    let brace = "{0-8191}";
    let text = format!(
        "schema = '{SCHEMA}'\n[files]\n\"/a{}\" = ''\n",
        brace.repeat(40)
    );
    let refused = Capture::parse(&text).unwrap_err();
    assert!(
        refused.contains("more than 50331648 bytes of files"),
        "{refused}"
    );
    let one = text.replace(&brace.repeat(40), brace);
    assert!(Capture::parse(&one).is_ok());
}

#[test]
fn this_machine_captured_written_and_read_is_this_machine() {
    let Ok(kernel) = Kernel::new() else {
        return quell_testing::skip("no /proc or /sys here");
    };
    let text = take(Before::default()).unwrap().to_string();
    let read = Capture::parse(&text).unwrap();
    assert_eq!(read.to_string(), text, "written as it was read");
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let live = probe::probe(&kernel, &Live, &cgroups, Before::default()).unwrap();
    let captured = read.inventory().unwrap();
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    assert_eq!(
        serde_json::to_string(&captured).unwrap(),
        without(&serde_json::to_string(&live.inventory).unwrap(), &name)
    );
}

#[test]
fn alike_files_fold_into_one_line() {
    let file = |text: &str| File {
        text: Some(text.to_owned()),
        ..File::default()
    };
    let dir = "/sys/devices/system/cpu";
    let seen = (0..4)
        .flat_map(|n| {
            [
                (
                    format!("{dir}/cpu{n}/cache/index3/shared_cpu_list"),
                    file("0-3"),
                ),
                (
                    format!("{dir}/cpu{n}/topology/thread_siblings_list"),
                    file(&n.to_string()),
                ),
            ]
        })
        .collect();
    let folded: Vec<(String, Entry)> = folded(seen).into_iter().collect();
    assert_eq!(
        folded,
        [
            (
                format!("{dir}/cpu{{0-3}}/cache/index3/shared_cpu_list"),
                Entry::Text("0-3".into())
            ),
            (
                format!("{dir}/cpu{{0-3}}/topology/thread_siblings_list"),
                Entry::Text("{}".into())
            ),
        ]
    );
}
