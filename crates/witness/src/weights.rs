//! The weight that a group's CPU time has next to others, as the kernel's files say now.

use quell_kernel::cgroup::chain;
use quell_kernel::root::Files;
use quell_types::options::CpuWeight;

use crate::limits::Dir;
use quell_types::witness::Fault;

/// `cpu.shares` of the kernel's default weight, 100.
const USUAL_SHARES: u64 = 1024;
/// The kernel's default weight.
const USUAL: u64 = 100;

/// The weight of one cgroup.
struct Weighed {
    file: String,
    value: String,
    /// 0: it is idle.
    weight: u64,
}

/// The weight of a cgroup. `None` where it has none.
fn weighed(files: &dyn Files, dir: &str) -> Option<Weighed> {
    let read = |name: &str| {
        let file = format!("{dir}/{name}");
        let text = files.read(&file).ok()?.trim().to_owned();
        Some((file, text.parse::<u64>().ok()?, text))
    };
    let (file, weight, value) = match (read("cpu.idle"), read("cpu.weight"), read("cpu.shares")) {
        (Some((file, 1, value)), ..) => (file, 0, value),
        (_, Some((file, weight, value)), _) => (file, weight, value),
        // Rounded as it was when it was written.
        (_, _, Some((file, shares, value))) => {
            let weight = (shares.saturating_mul(USUAL) + USUAL_SHARES / 2) / USUAL_SHARES;
            (file, weight, value)
        }
        _ => return None,
    };
    Some(Weighed {
        file,
        value,
        weight,
    })
}

/// Whether these cgroups, or one above each, have the weight. A low one bounds all below it; a high
/// one counts where none above it is low.
///
/// # Errors
/// Why that cannot be seen.
pub(crate) fn judged(
    files: &dyn Files,
    homes: &[Dir],
    wanted: CpuWeight,
) -> Result<Option<Fault>, String> {
    let mut seen = false;
    for home in homes {
        let below_the_root = chain(&home.mount, &home.dir).into_iter().skip(1);
        let all: Vec<Weighed> = below_the_root.filter_map(|d| weighed(files, &d)).collect();
        let Some(own) = all.last() else {
            continue;
        };
        seen = true;
        let most = all.iter().map(|one| one.weight).max().unwrap_or(USUAL);
        let least = all.iter().map(|one| one.weight).min().unwrap_or(USUAL);
        let holds = match wanted {
            CpuWeight::Idle => least == 0,
            CpuWeight::Of(weight) if u64::from(weight) < USUAL => least <= u64::from(weight),
            CpuWeight::Of(weight) => most >= u64::from(weight) && least >= USUAL,
        };
        if !holds {
            return Ok(Some(Fault::Reads {
                file: own.file.clone(),
                value: own.value.clone(),
                promised: match wanted {
                    CpuWeight::Idle => "cpu.idle".to_owned(),
                    CpuWeight::Of(weight) => format!("weight {weight}"),
                },
            }));
        }
    }
    match seen {
        true => Ok(None),
        false => Err("no cgroup of the group has a weight".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    /// What is said of a group in `/c/slice/own`, with these files there.
    fn said(files: &[(&str, &str)], wanted: CpuWeight) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join("c").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let home = Dir {
            mount: "/c".to_owned(),
            dir: "/c/slice/own".to_owned(),
        };
        match judged(&Kernel::at(dir.path()), &[home], wanted) {
            Ok(None) => "holds".to_owned(),
            Ok(Some(fault)) => fault.to_string(),
            Err(why) => why,
        }
    }

    #[test]
    fn an_idle_cgroup_above_makes_a_group_idle() {
        let idle = [("slice/cpu.idle", "1\n"), ("slice/own/cpu.weight", "100\n")];
        assert_eq!(said(&idle, CpuWeight::Idle), "holds");
        assert_eq!(said(&idle, CpuWeight::Of(2)), "holds");
        let busy = [("slice/cpu.idle", "0\n"), ("slice/own/cpu.weight", "100\n")];
        assert_eq!(
            said(&busy, CpuWeight::Idle),
            "/c/slice/own/cpu.weight reads '100', where cpu.idle was promised"
        );
    }

    #[test]
    fn a_high_weight_counts_where_none_above_is_low() {
        let high = CpuWeight::Of(1000);
        let both = [
            ("slice/cpu.shares", "10240"),
            ("slice/own/cpu.shares", "10240"),
        ];
        assert_eq!(said(&both, high), "holds");
        let low = [
            ("slice/cpu.shares", "20"),
            ("slice/own/cpu.shares", "10240"),
        ];
        assert!(said(&low, high).ends_with("where weight 1000 was promised"));
        let usual = [("slice/own/cpu.shares", "1024")];
        assert!(said(&usual, high).starts_with("/c/slice/own/cpu.shares reads '1024'"));
        assert_eq!(said(&[], high), "no cgroup of the group has a weight");
        // 2 of 100, as v1 has it.
        assert_eq!(
            said(&[("slice/own/cpu.shares", "20")], CpuWeight::Of(2)),
            "holds"
        );
    }
}
