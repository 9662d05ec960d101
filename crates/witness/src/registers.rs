//! Which CPUs fill which ways of the caches, as the processor's registers say now.

use quell_kernel::error::Result;
use quell_kernel::msr::{self, ASSOCIATION};
use quell_kernel::root::Files;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::Mask;

use quell_types::witness::Fault;

/// The ways that each of these CPUs fills. CPUs that are offline are left out.
///
/// # Errors
/// Registers that cannot be read.
pub(crate) fn fills(files: &dyn Files, cpus: &CpuSet, level: u32) -> Result<Vec<(CpuId, Mask)>> {
    let mut all = Vec::new();
    let Some((masks, _)) = msr::of_level(level) else {
        return Ok(all);
    };
    let value = |cpu: CpuId, number: u32| -> Result<Option<u64>> {
        let text = files.optional(&msr::path(&CpuSet::one(cpu), number))?;
        Ok(text.and_then(|text| msr::value(&text)))
    };
    for cpu in cpus.iter() {
        let Some(association) = value(cpu, ASSOCIATION)? else {
            continue;
        };
        let mask = value(cpu, masks + msr::class_in(association))?;
        all.extend(mask.map(|mask| (cpu, Mask(mask))));
    }
    Ok(all)
}

/// Judges what CPUs fill. `own` are those of the group, `shared` those of groups that share its
/// ways.
pub(crate) fn judged(
    level: u32,
    promised: Mask,
    own: &CpuSet,
    shared: &CpuSet,
    fills: &[(CpuId, Mask)],
) -> Option<Fault> {
    fills.iter().find_map(|(cpu, has)| {
        let is_own = own.contains(*cpu);
        let common = Mask(has.0 & promised.0);
        let (wrong, has) = match is_own {
            true => (*has != promised, *has),
            false => (!shared.contains(*cpu) && !common.is_empty(), common),
        };
        wrong.then_some(Fault::CpuFills {
            cpu: *cpu,
            level,
            has,
            promised,
            own: is_own,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpus_fill_what_was_promised_and_others_none_of_it() {
        let [own, shared] = ["2-3", "1"].map(|cpus| cpus.parse().unwrap());
        let judge = |fills: [u64; 4]| {
            let fills: Vec<_> = (0..).zip(fills.map(Mask)).collect();
            judged(3, Mask(0xf0), &own, &shared, &fills).map(|fault| fault.to_string())
        };
        assert_eq!(judge([0xf, 0x3f, 0xf0, 0xf0]), None);
        let told = judge([0xf, 0xf, 0xf0, 0x70]).unwrap();
        assert_eq!(
            told,
            "CPU 3 of the group fills ways 0x70 of L3, where 0xf0 was promised"
        );
        let told = judge([0x1f, 0xf, 0xf0, 0xf0]).unwrap();
        assert_eq!(
            told,
            "CPU 0 fills ways 0x10 of L3, which the group has to itself"
        );
    }
}
