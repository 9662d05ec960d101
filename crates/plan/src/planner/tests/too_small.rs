//! Parts of a cache that are smaller than what the program of their group works on.

use super::boards::icelake_sp;
use super::*;

#[test]
fn a_part_smaller_than_what_the_program_works_on_is_named() {
    let text = PAIR.replace("cpus = 1\n", "cpus = 1\nreserve.cache = { ways = 2 }\n");
    let machine = icelake_sp();
    let with = |works_on: Option<Bytes>, curve: Option<WaysCurve>| {
        let solo = Solo {
            profile: "list".to_owned(),
            took: Err("no units".to_owned()),
            works_on,
            curve,
            demand: Err("not asked for".to_owned()),
        };
        let solos = Solos::from([("victim".to_owned(), solo)]);
        plan_beside(&policy(&text), &machine, &solos).unwrap().acts
    };
    let said = |works_on| with(works_on, None);
    let l3 = machine.caches.iter().find(|c| c.level == 3).unwrap();
    let way = l3.size.0 / u64::from(machine.partitions.ways[0].bits);
    let [part, more] = [2, 3].map(|ways| Bytes(ways * way));
    let found = said(Some(Bytes(part.0 + 1)));
    let [found] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(found.contains(&format!("its part of {part} is smaller")));
    assert!(found.ends_with("6 ways of L3 would hold that"), "{found}");
    // Pages lie anywhere: a part of their size has too few ways for some.
    let found = said(Some(part));
    let [found] = &found[..] else {
        panic!("{found:?}")
    };
    let end = "about 59% of them share a set with more lines than it has ways; with 6 ways, 2%";
    assert!(found.ends_with(end), "{found}");
    assert_eq!(said(Some(more)).len(), 1);
    for fits in [None, Some(Bytes(way / 3)), Some(Bytes(2 * l3.size.0))] {
        assert!(said(fits).is_empty(), "{fits:?}");
    }
    let untold = plan_beside(&policy(&text), &machine, &Solos::new()).unwrap();
    let told = format!("nothing tells whether {part} is enough");
    assert!(untold.notes.iter().any(|note| note.contains(&told)));
    // A sweep that tried two ways goes before that.
    let curve = |level, missed: &[u32], enough| {
        let speed = Share::percent(70);
        Some(WaysCurve {
            level,
            goal: "keep 95% of its speed alone".to_owned(),
            missed: missed.iter().map(|ways| (*ways, speed)).collect(),
            enough,
        })
    };
    for (enough, end) in [(Some(5), "; 5 ways were enough"), (None, "alone)")] {
        let found = with(Some(part), curve(3, &[1, 2], enough));
        assert!(found.len() == 1 && found[0].ends_with(end), "{found:?}");
        assert!(found[0].contains("with 2 ways its program had 70% of its speed alone"));
    }
    assert!(with(Some(more), curve(3, &[1], Some(2))).is_empty());
    // It left two ways open, or is of another cache.
    for undecided in [curve(3, &[1], Some(3)), curve(2, &[1, 2], Some(3))] {
        assert_eq!(with(Some(more), undecided), said(Some(more)));
    }
}
