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

/// Whether these cgroups have the weight, and all above each, or the first of those. The kernel
/// weighs siblings: what one of them lacks counts against the programs beside that one.
///
/// # Errors
/// Why that cannot be seen.
pub(crate) fn judged(
    files: &dyn Files,
    homes: &[Dir],
    wanted: CpuWeight,
    levels: Option<usize>,
) -> Result<Option<Fault>, String> {
    let holds = |one: &Weighed| match wanted {
        CpuWeight::Idle => one.weight == 0,
        CpuWeight::Of(weight) if u64::from(weight) < USUAL => one.weight <= u64::from(weight),
        CpuWeight::Of(weight) => one.weight >= u64::from(weight),
    };
    let mut seen = false;
    for home in homes {
        let mut dirs = chain(&home.mount, &home.dir).split_off(1);
        dirs.reverse();
        dirs.truncate(levels.unwrap_or(usize::MAX));
        for one in dirs.iter().filter_map(|dir| weighed(files, dir)) {
            seen = true;
            if !holds(&one) {
                return Ok(Some(Fault::Reads {
                    file: one.file,
                    value: one.value,
                    promised: match wanted {
                        CpuWeight::Idle => "cpu.idle".to_owned(),
                        CpuWeight::Of(weight) => format!("weight {weight}"),
                    },
                }));
            }
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
    fn said(files: &[(&str, &str)], wanted: CpuWeight, levels: Option<usize>) -> String {
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
        match judged(&Kernel::at(dir.path()), &[home], wanted, levels) {
            Ok(None) => "holds".to_owned(),
            Ok(Some(fault)) => fault.to_string(),
            Err(why) => why,
        }
    }

    #[test]
    fn a_low_weight_counts_where_each_cgroup_has_it() {
        let above = [("slice/cpu.idle", "1\n"), ("slice/own/cpu.weight", "100\n")];
        let own = [("slice/cpu.weight", "100\n"), ("slice/own/cpu.idle", "1\n")];
        let both = [("slice/cpu.idle", "1\n"), ("slice/own/cpu.weight", "2\n")];
        for wanted in [CpuWeight::Idle, CpuWeight::Of(2)] {
            let told = said(&above, wanted, None);
            assert!(told.starts_with("/c/slice/own/cpu.weight reads '100'"));
            assert!(said(&own, wanted, None).starts_with("/c/slice/cpu.weight reads '100'"));
            assert_eq!(said(&own, wanted, Some(1)), "holds");
        }
        assert_eq!(said(&both, CpuWeight::Of(2), None), "holds");
        assert_eq!(
            said(&both, CpuWeight::Idle, None),
            "/c/slice/own/cpu.weight reads '2', where cpu.idle was promised"
        );
    }

    #[test]
    fn a_high_weight_counts_where_each_cgroup_has_it() {
        let high = CpuWeight::Of(1000);
        let both = [
            ("slice/cpu.shares", "10240"),
            ("slice/own/cpu.shares", "10240"),
        ];
        assert_eq!(said(&both, high, None), "holds");
        let usual = [
            ("slice/cpu.shares", "1024"),
            ("slice/own/cpu.shares", "10240"),
        ];
        assert_eq!(
            said(&usual, high, None),
            "/c/slice/cpu.shares reads '1024', where weight 1000 was promised"
        );
        assert_eq!(said(&usual, high, Some(1)), "holds");
        let none = "no cgroup of the group has a weight";
        assert_eq!(said(&[], high, None), none);
        assert_eq!(said(&usual[..1], high, Some(1)), none);
        // 2 of 100, as v1 has it.
        let two = [("slice/own/cpu.shares", "20")];
        assert_eq!(said(&two, CpuWeight::Of(2), None), "holds");
    }
}
