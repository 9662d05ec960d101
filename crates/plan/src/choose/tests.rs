use proptest::prelude::*;
use quell_types::mechanism::Level;

use super::*;
use crate::inventory::Lack;
use crate::planner::tests::machine;

fn weighing(cores: u32, threads: u32) -> Inventory {
    let mut machine = machine(cores, threads);
    let yes = Availability::Yes {
        best: Level::Enforced,
        how: String::new(),
    };
    machine.mechanisms.insert(Mechanism::Weight, yes);
    machine
}

fn weightless(cores: u32) -> Inventory {
    let mut machine = machine(cores, 1);
    let no = Availability::No {
        why: "no cpu controller is mounted".to_owned(),
        lack: Lack::Machine,
        remedy: None,
    };
    machine.mechanisms.insert(Mechanism::Weight, no);
    machine
}

const ROOT: Known = Known {
    root: true,
    named: false,
    threads: None,
    waited: None,
    named_cpus: None,
    unnamed_cpus: None,
    sibling: None,
    traffic: Vec::new(),
};

fn named() -> Known {
    Known {
        named: true,
        ..ROOT
    }
}

fn slow(found: f64) -> Slowdown {
    Slowdown {
        found,
        least: found - 0.01,
    }
}

/// Reads at these rates in MB/s, with what each did.
fn reads(tried: &[(u64, f64)]) -> Vec<(String, Vec<Tried>)> {
    let tried = tried.iter().map(|(mb, found)| Tried {
        rate: Rate(mb * 1_000_000),
        slowdown: slow(*found),
    });
    vec![("reads".to_owned(), tried.collect())]
}

#[test]
fn named_neighbours_get_a_low_weight_and_nothing_else() {
    let choice = choose(&weighing(2, 1), &named());
    let low = Means {
        low: true,
        ..Means::default()
    };
    assert_eq!((choice.means, choice.left_out), (low, vec![]));
}

#[test]
fn against_everything_else_the_program_gets_a_high_weight() {
    // A server of two threads, its client, and two that are always busy, on two CPUs.
    let nginx = Known {
        threads: Some(2),
        waited: Some(0.3),
        unnamed_cpus: Some(1.2),
        ..ROOT
    };
    let high = Means {
        high: true,
        ..Means::default()
    };
    for known in [ROOT, nginx.clone()] {
        assert_eq!(choose(&weighing(2, 1), &known).means, high);
    }
    let why = &choose(&weighing(2, 1), &nginx).left_out[0].1;
    assert!(
        why.to_string().contains("half of the 2 cores here is 1"),
        "{why}"
    );
}

#[test]
fn own_cpus_come_where_it_waits_and_its_clients_keep_room() {
    let waits = Known {
        threads: Some(1),
        waited: Some(0.2),
        unnamed_cpus: Some(2.5),
        ..ROOT
    };
    let means = choose(&weighing(4, 1), &waits).means;
    let one = Cores {
        count: 1,
        alone: false,
    };
    assert_eq!((means.cores, means.high), (Some(one), false));
    // With three CPUs, those who are left would not fit on two.
    let means = choose(&weighing(3, 1), &waits).means;
    assert_eq!((means.cores, means.high), (None, true));
    let calm = Known {
        waited: Some(0.05),
        ..waits.clone()
    };
    assert_eq!(choose(&weighing(4, 1), &calm).means.cores, None);
    let others = Known {
        named: true,
        named_cpus: Some(3.0),
        ..waits
    };
    assert_eq!(choose(&weighing(4, 1), &others).means.cores, None);
}

/// PostgreSQL next to a backup: its client was what used the CPU. With a high weight its p99 was
/// three times as long.
#[test]
fn clients_lose_nothing_next_to_named_neighbours() {
    let waits = Known {
        named: true,
        threads: Some(8),
        waited: Some(0.5),
        named_cpus: Some(0.3),
        unnamed_cpus: Some(0.9),
        ..ROOT
    };
    let choice = choose(&weighing(2, 1), &waits);
    assert_eq!((choice.means.low, choice.means.high), (true, false));
    let why = choice.left_out.last().unwrap();
    assert!(
        matches!(why, (Mean::Weight, Why::PerhapsClients { .. })),
        "{why:?}"
    );
}

#[test]
fn whole_cores_come_where_the_other_thread_hurts() {
    let known = Known {
        threads: Some(1),
        unnamed_cpus: Some(0.2),
        sibling: Some(slow(1.5)),
        ..named()
    };
    let choice = choose(&weighing(2, 2), &known);
    let alone = Cores {
        count: 1,
        alone: true,
    };
    assert_eq!(choice.means.cores, Some(alone));
    assert!(choice.means.low);
    let little = Known {
        sibling: Some(slow(1.255)),
        ..known
    };
    assert_eq!(choose(&weighing(2, 2), &little).means.cores, None);
}

#[test]
fn without_a_weight_own_cpus_need_to_be_known_to_suit() {
    let choice = choose(&weightless(4), &ROOT);
    assert_eq!(choice.means, Means::default());
    assert_eq!(choice.left_out[0], (Mean::Cores, Why::Unknown));
    let known = Known {
        threads: Some(1),
        unnamed_cpus: Some(0.5),
        ..ROOT
    };
    assert!(choose(&weightless(4), &known).means.cores.is_some());
    // Without root the machine may have what it does not show.
    let user = Known {
        root: false,
        ..ROOT
    };
    assert!(choose(&weightless(4), &user).means.high);
}

#[test]
fn a_limit_is_taken_where_it_helps_by_more_than_it_takes() {
    let limit = |tried: &[(u64, f64)]| {
        let known = Known {
            traffic: reads(tried),
            ..named()
        };
        let limit = choose(&weighing(2, 1), &known).means.limit;
        limit.map(|rate| rate.0 / 1_000_000)
    };
    assert_eq!(limit(&[(100, 1.0), (200, 1.1), (300, 1.2)]), None);
    assert_eq!(limit(&[(100, 1.0), (200, 1.1), (300, 1.6)]), Some(200));
    // Neighbours would get 1.5 times slower, the program 1.4 times faster.
    assert_eq!(limit(&[(100, 1.0), (200, 1.1), (300, 1.4)]), None);
    // Even the lowest rate hurts.
    assert_eq!(limit(&[(100, 2.5), (200, 2.6)]), Some(50));
    assert_eq!(limit(&[(100, 1.9), (200, 2.6)]), None);
    // What a higher rate does not do, a lower one does not do either.
    assert_eq!(limit(&[(100, 2.5), (200, 1.0), (300, 1.1)]), None);
    // A rate that was asked for last is not the highest that was reached.
    assert_eq!(limit(&[(4109, 4.0), (4613, 1.1)]), None);
    assert_eq!(limit(&[(4613, 4.0), (4109, 1.1)]), Some(4109));
    // Programs of no group cannot be limited.
    let known = Known {
        traffic: reads(&[(100, 2.5)]),
        ..ROOT
    };
    let choice = choose(&weighing(2, 1), &known);
    assert_eq!(choice.means.limit, None);
    assert_eq!(choice.left_out, [(Mean::Limit, Why::Unnamed)]);
}

fn slowdown() -> impl Strategy<Value = Slowdown> {
    (1.0..6.0f64, 0.0..0.5f64).prop_map(|(found, width)| Slowdown {
        found,
        least: found - width,
    })
}

fn known() -> impl Strategy<Value = Known> {
    let tried = (1u64..20_000, slowdown()).prop_map(|(mb, slowdown)| Tried {
        rate: Rate(mb * 1_000_000),
        slowdown,
    });
    let traffic = prop::collection::vec(tried, 0..5);
    let cpus = || prop::option::of(0.0..9.0f64);
    (
        any::<(bool, bool)>(),
        prop::option::of(1usize..40),
        prop::option::of(0.0..1.0f64),
        (cpus(), cpus()),
        prop::option::of(slowdown()),
        traffic,
    )
        .prop_map(|(is, threads, waited, used, sibling, traffic)| Known {
            root: is.0,
            named: is.1,
            threads,
            waited,
            named_cpus: used.0,
            unnamed_cpus: used.1,
            sibling,
            traffic: vec![("writes".to_owned(), traffic)],
        })
}

proptest! {
    #[test]
    fn no_choice_is_worse_than_nothing_done(
        known in known(), cores in 1u32..17, smt in 1u32..3, weighs: bool,
    ) {
        let machine = if weighs { weighing(cores, smt) } else { weightless(cores) };
        let choice = choose(&machine, &known);
        let means = choice.means;
        if let Some(own) = means.cores {
            // As many CPUs as it works on, and room for its clients and all others.
            prop_assert_eq!(Some(own.count), known.threads);
            prop_assert!(own.count <= cores as usize / 2);
            let taken = if own.alone && weighs { own.count * smt as usize } else { own.count };
            let left = machine.cpus.len() - taken;
            prop_assert!(left > 0 && known.unnamed_cpus.unwrap() < left as f64);
        }
        // A limit takes less than it helps, from named neighbours only.
        if let Some(limit) = means.limit {
            prop_assert!(known.named);
            let hurting = known.traffic[0].1.iter().filter(|one| one.rate > limit);
            let helps = hurting.map(|one| one.slowdown.least * limit.0 as f64 / one.rate.0 as f64);
            prop_assert!(helps.fold(0.0, f64::max) > 1.0);
        }
        // Its clients may be among programs of no group.
        prop_assert!(!(means.high && known.named));
        // A weight comes first wherever there is one.
        let weight = means.low || means.high;
        prop_assert!(weight || means.cores.is_some() || (!weighs && known.root));
        prop_assert!(!(means.high && means.cores.is_some()));
        // What is not taken has a reason.
        let nothing = means == Means::default();
        prop_assert!(!nothing || !choice.left_out.is_empty());
    }

    #[test]
    fn who_learns_more_never_loses_the_weight(known in known(), cores in 1u32..17) {
        let machine = weighing(cores, 1);
        let little = Known { root: known.root, named: known.named, ..Known::default() };
        let first = choose(&machine, &little).means;
        prop_assert!(first.low == known.named && first.high != known.named);
        prop_assert_eq!(first.cores, None);
        let later = choose(&machine, &known).means;
        prop_assert_eq!(later.low, first.low);
    }
}
