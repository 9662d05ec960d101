//! Whatever is asked of the model, its commands obey the data sheet, and every request is served
//! once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quell_model::dram::{Accepted, Channel, Command, Config, Kind, Request, Timing};

use super::replay::{check, check_refresh};
use super::run;

fn configs() -> impl Strategy<Value = Config> {
    let timing = prop_oneof![
        Just(Config::ddr3(Timing::ddr3_1066())),
        Just(Config::ddr3(Timing::ddr3_1333())),
        Just(Config::ddr4(Timing::ddr4_2400())),
        Just(Config::ddr4(Timing::ddr4_3200())),
    ];
    (timing, 1..3u32, 2..65u32, 4..65u32, 1..20u32).prop_map(
        |(config, ranks, reads, writes, streak)| Config {
            ranks,
            reads,
            writes,
            high: writes * 85 / 100 + 1,
            low: writes / 2,
            idle: writes / 3,
            streak,
            rank_streak: streak % 5,
            ..config
        },
    )
}

/// Requests with few rows and columns, so that hits, conflicts, merges and forwards all happen.
/// They come in bursts, with gaps that let refreshes become due.
fn requests(config: &Config) -> impl Strategy<Value = Vec<(u64, Request)>> + use<> {
    let one = (
        0..config.ranks,
        0..config.banks,
        0..4u32,
        0..16u32,
        any::<bool>(),
        0..40u64,
        0..200u64,
    );
    prop::collection::vec(one, 1..400).prop_map(|raw| {
        let mut at = 0;
        let mut requests = Vec::new();
        for (id, (rank, bank, row, column, write, burst, gap)) in (0..).zip(raw) {
            at += match burst {
                0 => gap * 100_000,
                1..10 => gap * 500,
                _ => 0,
            };
            requests.push((
                at,
                Request {
                    id,
                    write,
                    rank,
                    bank,
                    row,
                    column,
                },
            ));
        }
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn commands_obey_the_data_sheet((config, requests) in configs().prop_flat_map(|c| { let r = requests(&c); (Just(c), r) })) {
        let result = run(&config, &requests, true);
        prop_assert_eq!(check(&config, &result.log), Ok(()));
        prop_assert_eq!(check_refresh(&config, &result.log), Ok(()));

        let burst = config.timing.cycles(config.timing.cl + config.timing.burst);
        let mut served = BTreeMap::new();
        for command in result.log.iter().filter(|c| matches!(c.kind, Kind::Read | Kind::Write)) {
            prop_assert_eq!(served.insert(command.id, *command), None, "served twice");
        }
        let completed: BTreeMap<u64, u64> = result.completions.iter().map(|c| (c.id, c.at)).collect();
        prop_assert_eq!(completed.len(), result.completions.len());
        for ((_, request), &taken) in requests.iter().zip(&result.taken) {
            match served.get(&request.id) {
                Some(command) => {
                    prop_assert!(command.at >= taken, "served before it came");
                    prop_assert_eq!((command.rank, command.bank, command.row), (request.rank, request.bank, request.row));
                    prop_assert_eq!(command.kind == Kind::Write, request.write);
                    prop_assert_eq!(completed.get(&request.id).copied(), (!request.write).then_some(command.at + burst));
                }
                // Forwarded or merged: an older write to the same line was waiting.
                None => {
                    let place = |r: &Request| (r.rank, r.bank, r.row, r.column);
                    let older = requests.iter().any(|(_, o)| o.write && o.id < request.id && place(o) == place(request));
                    prop_assert!(older, "never served");
                }
            }
        }
        let counts = result.channel.counts();
        let reads: u64 = counts.iter().map(|c| c.reads).sum();
        prop_assert_eq!(reads, result.completions.len() as u64);
        prop_assert_eq!(result.channel.waiting(), (0, 0));
    }

    #[test]
    fn a_request_is_overtaken_within_its_bank_by_at_most_the_streak((config, requests) in configs().prop_flat_map(|c| { let r = requests(&c); (Just(c), r) })) {
        let result = run(&config, &requests, true);
        let by_id: BTreeMap<u64, &Request> = requests.iter().map(|(_, r)| (r.id, r)).collect();
        for direction in [Kind::Read, Kind::Write] {
            let order: Vec<&Request> = result.log.iter().filter(|c| c.kind == direction).map(|c| by_id[&c.id]).collect();
            for (i, request) in order.iter().enumerate() {
                // Between the arrival of a bank's oldest request and its service only a streak of
                // requests passes it. Requests that were ahead of it may have been passed, too,
                // each by a streak of its own.
                let ahead = order[..i].iter().filter(|o| (o.rank, o.bank) == (request.rank, request.bank) && o.id < request.id).count();
                let passed = order[..i].iter().filter(|o| (o.rank, o.bank) == (request.rank, request.bank) && o.id > request.id).count();
                prop_assert!(passed <= (ahead + 1) * config.streak as usize, "{request:?} was passed by {passed}");
            }
        }
    }

    #[test]
    fn advancing_in_steps_changes_nothing(config in configs(), seed in any::<u64>(), step in 1_000..5_000_000u64) {
        let mut rng = seed | 1;
        let mut channels = [Channel::new(&config).unwrap(), Channel::new(&config).unwrap()];
        let mut done = [Vec::new(), Vec::new()];
        let mut now = 0;
        channels.iter_mut().for_each(Channel::record);
        for id in 0..200u64 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            let before = now;
            now += rng % 100_000;
            let request = Request { id, write: rng >> 20 & 1 == 1, rank: 0, bank: (rng >> 24) as u32 % config.banks, row: (rng >> 32) as u32 % 4, column: (rng >> 40) as u32 % 8 };
            for at in (before..now).step_by(step as usize) {
                channels[1].advance(at, &mut done[1]);
            }
            for (channel, done) in channels.iter_mut().zip(&mut done) {
                channel.advance(now, done);
                let _: Result<Accepted, _> = channel.enqueue(request, now);
            }
        }
        let logs: Vec<Vec<Command>> = channels.iter_mut().map(Channel::take_log).collect();
        prop_assert_eq!(&logs[0], &logs[1]);
        prop_assert_eq!(&done[0], &done[1]);
    }
}

#[test]
fn the_checker_finds_what_it_is_there_for() {
    let config = Config::ddr3(Timing::ddr3_1333());
    let requests: Vec<(u64, Request)> = (0..64)
        .map(|id| {
            (
                0,
                Request {
                    id,
                    write: id % 3 == 0,
                    rank: 0,
                    bank: id as u32 % 8,
                    row: id as u32 / 16,
                    column: 0,
                },
            )
        })
        .collect();
    let log = run(&config, &requests, true).log;
    assert_eq!(check(&config, &log), Ok(()));
    // Every command moved forward by a clock, one at a time: most are as early as allowed.
    let caught = (0..log.len())
        .filter(|&i| {
            let mut wrong = log.clone();
            wrong[i].at = wrong[i].at.saturating_sub(config.timing.clock);
            check(&config, &wrong).is_err()
        })
        .count();
    assert!(caught * 2 > log.len(), "{caught} of {}", log.len());
    let mut wrong = log.clone();
    wrong.retain(|c| c.kind != Kind::Precharge);
    assert!(check(&config, &wrong).is_err());
}
