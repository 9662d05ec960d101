//! An independent checker: replays a command log in order of time and compares every pair of
//! commands with the data sheet. It shares only the parameters with the scheduler, and is slow and
//! simple.

use quell_model::dram::{Command, Config, Kind};

/// What is wrong with a log.
pub fn check(config: &Config, log: &[Command]) -> Result<(), String> {
    let t = &config.timing;
    let c = |cycles: u32| u64::from(cycles) * t.clock;
    let rc = c(t.ras + t.rp);
    let mut log = log.to_vec();
    log.sort_by_key(|command| command.at);
    // The open rows, replayed in order.
    let mut open = vec![None; (config.ranks * config.banks) as usize];
    for (i, new) in log.iter().enumerate() {
        let bank = (new.rank * config.banks + new.bank) as usize;
        let fail = |why: &str| Err(format!("{new:?}: {why}"));
        match new.kind {
            Kind::Activate if open[bank].replace(new.row).is_some() => return fail("bank is open"),
            Kind::Precharge if open[bank].take() != Some(new.row) => {
                return fail("that row is not open");
            }
            Kind::Read | Kind::Write if open[bank] != Some(new.row) => {
                return fail("row is not open");
            }
            Kind::Refresh
                if open[(new.rank * config.banks) as usize..][..config.banks as usize]
                    .iter()
                    .any(Option::is_some) =>
            {
                return fail("a bank is open");
            }
            _ => {}
        }
        let column = |k: Kind| matches!(k, Kind::Read | Kind::Write);
        let latency = |k: Kind| if k == Kind::Read { c(t.cl) } else { c(t.cwl) };
        let mut activations = 0;
        for old in log[..i].iter().rev() {
            let apart = new.at - old.at;
            if apart > rc + c(t.rfc) + c(t.faw) + c(t.cwl + t.burst + t.wr) {
                break;
            }
            let same_rank = old.rank == new.rank;
            let same_bank = same_rank && old.bank == new.bank;
            let same_group = same_rank && old.bank % config.groups == new.bank % config.groups;
            let mut need = 0;
            let mut name = "";
            let mut demand = |when: bool, span: u64, what: &'static str| {
                if when && span > need {
                    (need, name) = (span, what);
                }
            };
            use Kind::{Activate, Precharge, Read, Refresh, Write};
            let (o, n) = (old.kind, new.kind);
            demand(same_bank && o == Activate && column(n), c(t.rcd), "tRCD");
            demand(
                same_bank && o == Activate && n == Precharge,
                c(t.ras),
                "tRAS",
            );
            demand(same_bank && o == Activate && n == Activate, rc, "tRC");
            demand(same_bank && o == Precharge && n == Activate, c(t.rp), "tRP");
            demand(
                same_rank && o == Precharge && n == Refresh,
                c(t.rp),
                "tRP before refresh",
            );
            demand(same_bank && o == Read && n == Precharge, c(t.rtp), "tRTP");
            demand(
                same_bank && o == Write && n == Precharge,
                c(t.cwl + t.burst + t.wr),
                "tWR",
            );
            demand(same_rank && o == Refresh, c(t.rfc), "tRFC");
            demand(
                same_rank && o == Activate && n == Activate,
                c(t.rrd_s),
                "tRRD_S",
            );
            demand(
                same_group && o == Activate && n == Activate,
                c(t.rrd_l),
                "tRRD_L",
            );
            demand(same_rank && column(o) && o == n, c(t.ccd_s), "tCCD_S");
            demand(same_group && column(o) && o == n, c(t.ccd_l), "tCCD_L");
            demand(
                same_rank && o == Write && n == Read,
                c(t.cwl + t.burst + t.wtr_s),
                "tWTR_S",
            );
            demand(
                same_group && o == Write && n == Read,
                c(t.cwl + t.burst + t.wtr_l),
                "tWTR_L",
            );
            if same_rank && o == Activate && n == Activate {
                activations += 1;
                demand(activations == 4, c(t.faw), "tFAW");
            }
            if column(o) && column(n) {
                // The data of both, on the one bus.
                let mut gap = if same_rank { 0 } else { c(t.rank_switch) };
                if o == Read && n == Write {
                    gap = gap.max(c(t.rtw));
                }
                let old_end = old.at + latency(o) + c(t.burst);
                if new.at + latency(n) < old_end + gap {
                    return fail(&format!(
                        "data overlaps or follows too closely that of {old:?}"
                    ));
                }
            }
            if apart < need {
                return fail(&format!("{name} from {old:?}: {apart} ps of {need}"));
            }
        }
    }
    Ok(())
}

/// For each rank: REFRESH commands are no further from each other than allowed, including a delay
/// by work in progress.
pub fn check_refresh(config: &Config, log: &[Command]) -> Result<(), String> {
    let t = &config.timing;
    let late = u64::from(t.ras + t.rp + t.rp + t.rcd + t.cwl + t.burst + t.wr) * t.clock;
    let interval = u64::from(t.refi) * t.clock;
    let end = log.iter().map(|command| command.at).max().unwrap_or(0);
    for rank in 0..config.ranks {
        let mut last = 0;
        for refresh in log
            .iter()
            .filter(|command| command.kind == Kind::Refresh && command.rank == rank)
        {
            if refresh.at > last + interval + late {
                return Err(format!(
                    "rank {rank}: {} ps from refresh to refresh",
                    refresh.at - last
                ));
            }
            last = refresh.at;
        }
        if end > last + interval + late {
            return Err(format!("rank {rank}: no refresh since {last}"));
        }
    }
    Ok(())
}
