//! The lines of `schemata` and `size`: how the kernel writes them, and what it accepts.

use super::locked::Lock;
use super::shape::{GRANULARITY, LEAST_BANDWIDTH};
use super::{Control, Resctrl, Resource};
use crate::fake::Answer;

/// Width of names: that of the longest possible one.
const NAME: usize = "L3CODE".len();

pub(super) fn lines(resources: &[Resource], control: &Control, newer: bool) -> String {
    let digits = |r: &Resource| r.bits.map_or(3, |bits| bits.div_ceil(4) as usize);
    let width = match newer {
        true => 0,
        false => resources.iter().map(digits).max().unwrap_or(0),
    };
    each(resources, control, |r, value| match r.bits {
        Some(_) => format!("{value:0width$x}"),
        None => format!("{value:width$}"),
    })
}

pub(super) fn sizes(resources: &[Resource], control: &Control) -> String {
    each(resources, control, |r, value| match r.bits {
        Some(_) => (r.way * u64::from(value.count_ones())).to_string(),
        None => value.to_string(),
    })
}

fn each(
    resources: &[Resource],
    control: &Control,
    text: impl Fn(&Resource, u32) -> String,
) -> String {
    let line = |r: &Resource| {
        let values = &control.values[&r.name];
        let values: Vec<String> = values
            .iter()
            .map(|(d, v)| format!("{d}={}", text(r, *v)))
            .collect();
        format!("{:>NAME$}:{}\n", r.name, values.join(";"))
    };
    resources.iter().map(line).collect()
}

impl Resctrl {
    /// Writes all lines, or none of them.
    pub(super) fn schemata(&mut self, group: &str, text: &str) -> Answer<()> {
        let lock = self.groups[group].lock.clone();
        if lock == Some(Lock::Held) {
            return self.fail(libc::EINVAL, "Resource group is pseudo-locked");
        }
        let mut staged: Vec<(String, u32, u32)> = Vec::new();
        let lines: Vec<&str> = match text.trim().is_empty() {
            true => vec![""],
            false => text.lines().collect(),
        };
        for line in lines {
            self.line(group, line, &mut staged)?;
        }
        if lock == Some(Lock::Setup) {
            // Only the first domain that is named.
            if let Some((name, domain, mask)) = staged.first() {
                self.lock(group, name, *domain, *mask);
            }
            return Ok(());
        }
        for (name, domain, value) in staged {
            let control = self.groups.get_mut(group);
            if let Some(values) = control.and_then(|c| c.values.get_mut(&name)) {
                values.insert(domain, value);
            }
        }
        Ok(())
    }

    fn line(
        &mut self,
        group: &str,
        line: &str,
        staged: &mut Vec<(String, u32, u32)>,
    ) -> Answer<()> {
        let Some((name, domains)) = line.split_once(':') else {
            return self.fail(libc::EINVAL, "Missing ':'");
        };
        let name = name.trim();
        if domains.trim().is_empty() {
            return self.fail(libc::EINVAL, format!("Missing '{name}' value"));
        }
        let Some(resource) = self.resources.iter().find(|r| r.name == name).cloned() else {
            return self.fail(
                libc::EINVAL,
                format!("Unknown or unsupported resource name '{name}'"),
            );
        };
        let lock = self.groups[group].lock.is_some();
        if lock && resource.bits.is_none() {
            return self.fail(libc::EINVAL, "Cannot pseudo-lock MBA resource");
        }
        for part in domains.split(';') {
            let parsed = part
                .split_once('=')
                .and_then(|(d, v)| Some((d.trim().parse::<u32>().ok()?, v.trim())));
            let Some((domain, value)) = parsed else {
                return self.fail(libc::EINVAL, "Missing '=' or non-numeric domain");
            };
            // Refused without a status text.
            if !resource.domains.contains(&domain) {
                return Err(libc::EINVAL);
            }
            if staged.iter().any(|(n, d, _)| n == name && *d == domain) {
                return self.fail(libc::EINVAL, format!("Duplicate domain {domain}"));
            }
            let value = match resource.bits {
                Some(bits) => self.mask(group, &resource, bits, domain, value)?,
                None => self.bandwidth(&resource, value)?,
            };
            staged.push((name.to_owned(), domain, value));
            if lock {
                break;
            }
        }
        Ok(())
    }

    fn bandwidth(&mut self, resource: &Resource, value: &str) -> Answer<u32> {
        let Ok(number) = value.parse::<u32>() else {
            return self.fail(libc::EINVAL, format!("Invalid MB value {value}"));
        };
        if resource.mib_s {
            return Ok(number);
        }
        if !(LEAST_BANDWIDTH..=100).contains(&number) {
            let why = format!("MB value {number} out of range [{LEAST_BANDWIDTH},100]");
            return self.fail(libc::EINVAL, why);
        }
        Ok(number.next_multiple_of(GRANULARITY))
    }

    fn mask(
        &mut self,
        group: &str,
        resource: &Resource,
        bits: u32,
        domain: u32,
        value: &str,
    ) -> Answer<u32> {
        let lock = self.groups[group].lock.is_some();
        if lock && self.locked_near(&resource.name, domain) {
            return self.fail(libc::EINVAL, "Pseudo-locked region in hierarchy");
        }
        let Ok(mask) = u64::from_str_radix(value, 16) else {
            return self.fail(
                libc::EINVAL,
                format!("Non-hex character in the mask {value}"),
            );
        };
        let full = super::shape::full(bits);
        let Some(mask) = u32::try_from(mask)
            .ok()
            .filter(|m| *m != 0 && m & !full == 0)
        else {
            return self.fail(libc::EINVAL, "Mask out of range");
        };
        if !self.rdt.sparse && super::shape::lowest_run(mask) != mask {
            let why = format!("The mask {mask:x} has non-consecutive 1-bits");
            return self.fail(libc::EINVAL, why);
        }
        if mask.count_ones() < self.rdt.least {
            let why = format!("Need at least {} bits in the mask", self.rdt.least);
            return self.fail(libc::EINVAL, why);
        }
        if !lock && self.locked_ways(&resource.name, domain) & mask != 0 {
            return self.fail(libc::EINVAL, "CBM overlaps with pseudo-locked region");
        }
        if self.overlaps(group, resource, domain, mask, true) {
            return self.fail(libc::EINVAL, "Overlaps with exclusive group");
        }
        if (lock || self.groups[group].exclusive)
            && self.overlaps(group, resource, domain, mask, false)
        {
            return self.fail(libc::EINVAL, "Overlaps with other group");
        }
        Ok(mask)
    }
}
