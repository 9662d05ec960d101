use quell_kernel::fake::{Fake, Flavour, Rdt, Spec};

use super::*;

fn class(name: &str, masks: &[(u32, u64)], tasks: &[u32]) -> Class {
    let masks: BTreeMap<u32, Mask> = masks.iter().map(|(c, m)| (*c, Mask(*m))).collect();
    Class {
        name: name.to_owned(),
        fills: masks.clone(),
        keeps: masks,
        tasks: tasks.to_vec(),
        ..Class::default()
    }
}

fn thread(tid: u32, group: usize, may: &str) -> Thread {
    Thread {
        tid,
        pid: tid,
        cpus: may.parse().unwrap(),
        groups: vec![group],
        ..Thread::default()
    }
}

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

fn judge(classes: &[Class], own: &[&str], shared: &[&str], caches: Option<&[u32]>) -> String {
    let caches: Option<BTreeSet<u32>> = caches.map(|all| all.iter().copied().collect());
    let wanted = Wanted {
        level: 3,
        mask: Mask(0xf0),
        caches: caches.as_ref(),
    };
    let fault = judged(&wanted, classes, &names(own), &names(shared));
    fault.map_or_else(String::new, |fault| fault.to_string())
}

#[test]
fn another_class_in_the_groups_ways_is_reported() {
    let own = class("own", &[(0, 0xf0), (1, 0xf0)], &[1]);
    let rest = |mask| class("", &[(0, 0xf), (1, mask)], &[]);
    assert_eq!(judge(&[rest(0xf), own.clone()], &["own"], &[], None), "");
    let mixed = [rest(0x1f), own.clone()];
    let expected =
        "the default resctrl group fills ways 0x10 of L3 1, which the group has to itself";
    assert_eq!(judge(&mixed, &["own"], &[], None), expected);
    assert_eq!(
        judge(&mixed, &["own"], &[], Some(&[0])),
        "",
        "it runs on cache 0"
    );
    let others = [rest(0xf), own, class("b", &[(0, 0xff)], &[7])];
    assert!(judge(&others, &["own"], &[], None).contains("resctrl group b fills ways 0xf0"));
    assert_eq!(judge(&others, &["own"], &["b"], None), "", "they share");
}

#[test]
fn an_empty_class_fills_nothing() {
    let own = class("own", &[(0, 0xf0)], &[1]);
    let empty = class("e", &[(0, 0xff)], &[]);
    assert_eq!(
        judge(&[own.clone(), empty.clone()], &["own"], &[], None),
        ""
    );
    let with_cpus = Class {
        cpus: CpuSet::one(3),
        ..empty
    };
    assert!(judge(&[own, with_cpus], &["own"], &[], None).contains("resctrl group e"));
}

#[test]
fn a_mask_that_was_changed_is_reported() {
    let own = class("own", &[(0, 0xf0), (1, 0xc0)], &[1]);
    let expected = "tasks of the group are in resctrl group own, which has ways 0xc0 of L3 1, \
                    where 0xf0 was promised";
    assert_eq!(
        judge(std::slice::from_ref(&own), &["own"], &[], None),
        expected
    );
    // Data has all of its ways, code does not.
    let mut divided = class("own", &[(0, 0xf0)], &[1]);
    divided.keeps.insert(0, Mask(0x30));
    assert!(judge(&[divided], &["own"], &[], None).contains("has ways 0x30"));
    // A thread that was moved to the default group.
    let default = class("", &[(0, 0xff)], &[]);
    assert!(judge(&[default, own], &["", "own"], &[], None).contains("default resctrl group"));
}

#[test]
fn a_thread_has_the_class_of_its_cpu_unless_it_has_one() {
    let by_cpu = Class {
        cpus: "2-3".parse().unwrap(),
        ..class("cpu", &[(0, 0xf)], &[])
    };
    let default = Class {
        cpus: "0-1".parse().unwrap(),
        ..class("", &[(0, 0xf)], &[])
    };
    let classes = [default, class("task", &[(0, 0xf)], &[5]), by_cpu];
    let of = |threads: &[Thread]| classes_of(&classes, threads, &[0]);
    assert_eq!(of(&[thread(5, 0, "0-3")]), names(&["task"]));
    assert_eq!(of(&[thread(6, 0, "2")]), names(&["cpu"]));
    assert_eq!(of(&[thread(6, 0, "1-2")]), names(&["", "cpu"]));
    assert_eq!(of(&[thread(6, 0, "9")]), names(&[""]));
    assert_eq!(of(&[thread(5, 1, "0-3")]), names(&[]), "another group");
}

#[test]
fn classes_are_read_from_resctrl() {
    let spec = Spec {
        rdt: Some(Rdt::icelake()),
        ..Spec::new(Flavour::V2)
    };
    let fake = Fake::new(&spec);
    let files: &dyn Files = &fake;
    fake.with(|m| m.resctrl_mounted(None));
    assert_eq!(classes(files, 3).unwrap(), None);
    fake.with(|m| m.resctrl_mounted(Some("")));
    let pid = fake.with(|m| m.spawn("own"));
    files.mkdir("/sys/fs/resctrl/own").unwrap();
    files
        .write("/sys/fs/resctrl/own/schemata", "L3:0=f0")
        .unwrap();
    files
        .write("/sys/fs/resctrl/own/tasks", &pid.to_string())
        .unwrap();
    let found = classes(files, 3).unwrap().unwrap();
    let own = found.iter().find(|class| class.name == "own").unwrap();
    assert_eq!((own.fills[&0], own.keeps[&0]), (Mask(0xf0), Mask(0xf0)));
    assert_eq!(own.tasks, [pid]);
    assert!(found[0].name.is_empty() && found[0].tasks.is_empty());
    assert_eq!(classes(files, 7).unwrap(), None, "no such level");
}
