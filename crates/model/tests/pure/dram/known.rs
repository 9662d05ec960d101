//! Cases with answers that follow from the data sheet by arithmetic, and comparisons with figures
//! of another model.

use quell_model::Picos;
use quell_model::address::{AddressMap, Field, Fields};
use quell_model::dram::{Channel, Config, Dram, Request, Timing};

use super::run;

fn all() -> [Config; 4] {
    [
        Config::ddr3(Timing::ddr3_1066()),
        Config::ddr3(Timing::ddr3_1333()),
        Config::ddr4(Timing::ddr4_2400()),
        Config::ddr4(Timing::ddr4_3200()),
    ]
}

fn read(id: u64, bank: u32, row: u32, column: u32) -> Request {
    Request {
        id,
        write: false,
        rank: 0,
        bank,
        row,
        column,
    }
}

/// The picoseconds per read of `n` reads by a requester with `outstanding` of them in flight, and
/// their mean latency.
fn closed_loop(
    config: &Config,
    n: u64,
    outstanding: u64,
    mut request: impl FnMut(u64) -> Request,
) -> (f64, f64) {
    let mut channel = Channel::new(config).unwrap();
    let mut in_flight = Vec::new();
    let mut done = Vec::new();
    let (mut id, mut now, mut latency, mut started) = (0, 0, 0, vec![0; n as usize]);
    while id < n || !in_flight.is_empty() {
        while id < n && (in_flight.len() as u64 + channel.waiting().0 as u64) < outstanding {
            channel.enqueue(request(id), now).unwrap();
            started[id as usize] = now;
            id += 1;
        }
        let next_return = in_flight.iter().copied().min();
        now = [next_return, channel.next_event()]
            .into_iter()
            .flatten()
            .min()
            .unwrap();
        channel.advance(now, &mut done);
        for completion in done.drain(..) {
            latency += completion.at - started[completion.id as usize];
            in_flight.push(completion.at);
        }
        in_flight.retain(|&at| at > now);
        if id == n && channel.waiting().0 == 0 {
            now = in_flight.iter().copied().max().unwrap_or(now);
            in_flight.clear();
        }
    }
    (now as f64 / n as f64, latency as f64 / n as f64)
}

fn xorshift(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Checks that `found` is within `percent` of `expected`.
fn near(what: &str, found: f64, expected: f64, percent: f64) {
    assert!(
        (found / expected - 1.0).abs() * 100.0 <= percent,
        "{what}: {found} where {expected} was expected (± {percent} %)"
    );
}

#[test]
fn a_single_read_takes_activation_column_latency_and_burst() {
    for config in all() {
        let t = &config.timing;
        let first = run(&config, &[(1000, read(0, 3, 5, 7))], false).completions[0].at - 1000;
        assert_eq!(first, t.cycles(t.rcd + t.cl + t.burst));
        // Row open: no activation. Another row open: it is closed first.
        let later = 10_000_000 / 8;
        let hit = run(
            &config,
            &[(0, read(0, 3, 5, 7)), (later, read(1, 3, 5, 8))],
            false,
        )
        .completions[1]
            .at
            - later;
        assert_eq!(hit, t.cycles(t.cl + t.burst));
        let conflict = run(
            &config,
            &[(0, read(0, 3, 5, 7)), (later, read(1, 3, 6, 8))],
            false,
        )
        .completions[1]
            .at
            - later;
        assert_eq!(conflict, t.cycles(t.rp + t.rcd + t.cl + t.burst));
    }
}

#[test]
fn row_hits_reach_the_peak_of_the_bus_less_refresh() {
    for config in all() {
        let t = &config.timing;
        // Over all bank groups, since otherwise tCCD_L is the bound.
        let (per_read, _) = closed_loop(&config, 200_000, 40, |id| {
            read(
                id,
                id as u32 % config.banks,
                (id / 1024) as u32,
                id as u32 / 16 % 64,
            )
        });
        let lost = f64::from(t.rfc) / f64::from(t.refi);
        near(
            "time per read",
            per_read * (1.0 - lost),
            t.cycles(t.burst) as f64,
            3.0,
        );
        // Within one bank: tCCD_L.
        let (per_read, _) = closed_loop(&config, 100_000, 40, |id| {
            read(id, 1, (id / 128) as u32, id as u32 % 128)
        });
        near(
            "time per read in one bank",
            per_read * (1.0 - lost),
            t.cycles(t.ccd_l) as f64,
            10.0,
        );
    }
}

#[test]
fn random_rows_of_one_bank_are_bound_by_the_row_cycle() {
    for config in all() {
        let t = &config.timing;
        let mut row = 0;
        let (per_read, _) = closed_loop(&config, 50_000, 8, |id| {
            row += 1;
            read(id, 2, row, 0)
        });
        near(
            "time per read",
            per_read * (1.0 - f64::from(t.rfc) / f64::from(t.refi)),
            t.cycles(t.ras + t.rp) as f64,
            2.0,
        );
    }
}

#[test]
fn activations_of_a_rank_are_bound_by_their_window() {
    // tFAW of DDR3-1333 x16, where the window is the bound and not the bus: four lines per 30
    // clocks instead of 16.
    let timing = Timing {
        faw: 30,
        rrd_s: 5,
        rrd_l: 5,
        ..Timing::ddr3_1333()
    };
    let config = Config {
        banks: 8,
        ..Config::ddr3(timing)
    };
    let t = &config.timing;
    let served = 1.0 - f64::from(t.rfc) / f64::from(t.refi);
    let (per_read, _) = closed_loop(&config, 50_000, 64, |id| {
        read(id, id as u32 % 8, id as u32 / 8, 0)
    });
    near(
        "one rank",
        per_read * served,
        t.cycles(t.faw) as f64 / 4.0,
        3.0,
    );
    let two = Config {
        ranks: 2,
        ..config.clone()
    };
    let (both, _) = closed_loop(&two, 50_000, 64, |id| Request {
        rank: id as u32 / 8 % 2,
        ..read(id, id as u32 % 8, id as u32 / 16, 0)
    });
    assert!(
        both < 0.75 * per_read,
        "{both} with two ranks, {per_read} with one"
    );
}

/// The patterns, with DRAMsim3's answers as recorded when the method was chosen (same DDR3-1066
/// timings, reads only).
#[test]
fn patterns_known_from_another_model() {
    let config = Config::ddr3(Timing::ddr3_1066());
    let mut seed = 1;
    let mut random_row = move |id, banks: u64| {
        let r = xorshift(&mut seed);
        read(
            id,
            (r % banks) as u32,
            (r >> 16) as u32 & 0x3fff,
            (r >> 40) as u32 & 0x7f,
        )
    };
    let (_, alone) = closed_loop(&config, 50_000, 1, |id| random_row(id, 1));
    near("one bank, one outstanding, ns", alone / 1000.0, 49.6, 5.0);
    let (_, seven) = closed_loop(&config, 50_000, 7, |id| random_row(id, 1));
    near(
        "one bank, seven outstanding, ns",
        seven / 1000.0,
        358.0,
        5.0,
    );
    let (per_read, four) = closed_loop(&config, 50_000, 7, |id| random_row(id, 4));
    near(
        "four banks, seven outstanding, ns",
        four / 1000.0,
        116.0,
        5.0,
    );
    near(
        "four banks, seven outstanding, GB/s",
        64_000.0 / per_read,
        3.80,
        5.0,
    );
    let (per_read, _) = closed_loop(&config, 50_000, 40, |id| {
        read(id, id as u32 / 128 % 8, id as u32 / 1024, id as u32 % 128)
    });
    near(
        "stream, forty outstanding, GB/s",
        64_000.0 / per_read,
        8.40,
        5.0,
    );
    // Two ranks from here on, as in that model's file. They have separate activation windows.
    let config = Config { ranks: 2, ..config };
    let mut seed = 1;
    let mut anywhere = |id| {
        let r = xorshift(&mut seed);
        Request {
            rank: r as u32 >> 3 & 1,
            ..read(
                id,
                r as u32 & 7,
                (r >> 16) as u32 & 0x3fff,
                (r >> 40) as u32 & 0x7f,
            )
        }
    };
    let (_, one) = closed_loop(&config, 50_000, 1, &mut anywhere);
    near("all banks, one outstanding, ns", one / 1000.0, 48.8, 5.0);
    let (per_read, _) = closed_loop(&config, 50_000, 40, &mut anywhere);
    near(
        "all banks, forty outstanding, GB/s",
        64_000.0 / per_read,
        7.51,
        5.0,
    );
}

/// The purpose of bank partitioning, which a preference for open rows across banks would hide.
#[test]
fn a_bank_of_its_own_protects_from_conflicts_and_from_streams() {
    let config = Config::ddr3(Timing::ddr3_1066());
    // A chase with one access outstanding. Next to it run three requesters with one outstanding
    // each. All go to random rows.
    let victim = |attackers: &dyn Fn(u64) -> u32| {
        let mut channel = Channel::new(&config).unwrap();
        let (mut seed, mut now, mut done, mut due) =
            (7, 0, Vec::new(), vec![(0, 0u64), (0, 1), (0, 2), (0, 3)]);
        let (mut started, mut sum, mut count) = (0, 0, 0);
        while count < 20_000 {
            let next_due = due.iter().map(|&(at, _)| at).min();
            now = [next_due, channel.next_event()]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(now)
                .max(now);
            channel.advance(now, &mut done);
            for completion in done.drain(..) {
                due.push((completion.at, completion.id));
                if completion.id == 0 {
                    sum += completion.at - started;
                    count += 1;
                }
            }
            for who in due
                .extract_if(.., |&mut (at, _)| at <= now)
                .map(|(_, who)| who)
                .collect::<Vec<_>>()
            {
                let bank = if who == 0 { 0 } else { attackers(who) };
                if who == 0 {
                    started = now;
                }
                channel
                    .enqueue(read(who, bank, xorshift(&mut seed) as u32 & 0xffff, 0), now)
                    .unwrap();
            }
        }
        sum as f64 / f64::from(count)
    };
    let shared = victim(&|_| 0);
    let own = victim(&|who| who as u32);
    assert!(
        shared > 3.0 * own,
        "{shared} in one bank, {own} in banks of their own"
    );
}

/// A stream of row hits in another bank, or on another rank, keeps the bus busy, but never delays
/// the victim's turn. The victim waits for the forty requests before it and little else.
#[test]
fn streams_elsewhere_never_starve_a_bank() {
    let config = Config {
        ranks: 2,
        ..Config::ddr3(Timing::ddr3_1066())
    };
    for rank in [0, 1] {
        let mut seed = 3;
        let mut stream = 0;
        let (mut slowest, mut count): (Picos, u32) = (0, 0);
        let mut channel = Channel::new(&config).unwrap();
        let (mut now, mut done, mut victim_due, mut started, mut waiting) =
            (0, Vec::new(), Some(0), 0, 0);
        for _ in 0..200_000 {
            channel.advance(now, &mut done);
            for completion in done.drain(..) {
                if completion.id == 0 {
                    slowest = slowest.max(completion.at - started);
                    count += 1;
                    victim_due = Some(completion.at);
                } else {
                    waiting -= 1;
                }
            }
            if victim_due.is_some_and(|at| at <= now) {
                channel
                    .enqueue(
                        Request {
                            rank,
                            ..read(0, 0, xorshift(&mut seed) as u32 & 0xffff, 0)
                        },
                        now,
                    )
                    .unwrap();
                (victim_due, started) = (None, now);
            }
            while waiting < 40 {
                stream += 1;
                channel
                    .enqueue(
                        read(stream, 1, stream as u32 / 128, stream as u32 % 128),
                        now,
                    )
                    .unwrap();
                waiting += 1;
            }
            now = [channel.next_event(), victim_due]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(now)
                .max(now);
        }
        assert!(
            slowest < 1_000_000 && count > 1000,
            "{count} times, at most {slowest} ps, beside a stream, rank {rank}"
        );
    }
}

#[test]
fn writes_wait_for_the_high_watermark_and_drain_to_the_low() {
    let config = Config::ddr3(Timing::ddr3_1333());
    let write = |id: u64| Request {
        write: true,
        ..read(id, id as u32 % 8, 1, id as u32 / 8)
    };
    let mut channel = Channel::new(&config).unwrap();
    let mut done = Vec::new();
    // At or below the low watermark nothing happens, however long it takes.
    for id in 0..32 {
        channel.enqueue(write(id), 0).unwrap();
    }
    assert_eq!(channel.next_event(), None);
    // While reads wait, nothing happens below the high watermark either.
    channel.enqueue(read(99, 7, 1, 60), 0).unwrap();
    for id in 32..53 {
        channel.enqueue(write(id), 0).unwrap();
    }
    channel.advance(10, &mut done);
    assert_eq!(channel.counts().iter().map(|c| c.writes).sum::<u64>(), 0);
    channel.enqueue(write(53), 10).unwrap();
    while done.is_empty() {
        channel.advance(channel.next_event().unwrap(), &mut done);
    }
    assert_eq!(channel.waiting(), (0, 32));
}

#[test]
fn impossible_configurations_say_what_is_wrong() {
    let good = Config::ddr3(Timing::ddr3_1333());
    for (config, text) in [
        (
            Config {
                ranks: 16,
                ..good.clone()
            },
            "16 ranks of 8 banks",
        ),
        (
            Config {
                groups: 3,
                ..good.clone()
            },
            "3 groups",
        ),
        (
            Config {
                low: 60,
                ..good.clone()
            },
            "watermarks",
        ),
        (
            Config {
                timing: Timing {
                    refi: 100,
                    ..Timing::ddr3_1333()
                },
                ..good.clone()
            },
            "tREFI",
        ),
        (
            Config {
                timing: Timing {
                    clock: 0,
                    ..Timing::ddr3_1333()
                },
                ..good.clone()
            },
            "clock",
        ),
    ] {
        let error = Channel::new(&config).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn channels_work_side_by_side() {
    let map = |channel_bits| {
        let fields = Fields::plain(
            6,
            &[
                (Field::Channel, channel_bits),
                (Field::Column, 7),
                (Field::Bank, 3),
                (Field::Row, 14),
            ],
        );
        AddressMap::new(fields).unwrap()
    };
    let time = |channel_bits| {
        let mut dram = Dram::new(map(channel_bits), &Config::ddr3(Timing::ddr3_1333())).unwrap();
        let (mut now, mut done, mut line) = (0, Vec::new(), 0);
        while done.len() < 20_000 {
            while dram.enqueue(line, line * 64, false, now).is_ok() {
                line += 1;
            }
            now = dram.next_event().unwrap();
            dram.advance(now, &mut done);
        }
        now as f64
    };
    near("two channels", time(0) / time(1), 2.0, 2.0);
}
