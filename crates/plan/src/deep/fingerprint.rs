//! Which machine figures belong to, and when they no longer hold.
//!
//! They hold as long as nothing changes that they depend on: processor, microcode, kernel,
//! hypervisor, usable CPUs, the caches that the kernel reports, and the size of memory. Memory may
//! differ by an eighth: kernels reserve more or less. A virtual machine's memory changes with its
//! balloon and does not count. Its boot does count: it may run on another host since.

use std::collections::BTreeMap;

use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hardware::{Cache, Cpu, Identity};

/// What figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Fingerprint {
    identity: Identity,
    cpus: Vec<Cpu>,
    caches: Vec<Cache>,
    /// By node; empty on virtual machines.
    memory: BTreeMap<u32, Bytes>,
    /// The boot, on virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl Fingerprint {
    /// The fingerprint of a machine with these parts. `memory` is by node.
    /// [`crate::inventory::Inventory::fingerprint`] decides when `memory` and `boot`
    /// (`/proc/sys/kernel/random/boot_id`) count.
    #[must_use]
    pub(crate) fn of(
        identity: &Identity,
        cpus: &[Cpu],
        caches: &[Cache],
        memory: BTreeMap<u32, Bytes>,
        boot: Option<String>,
    ) -> Self {
        Self {
            identity: identity.clone(),
            cpus: cpus.to_vec(),
            caches: caches.to_vec(),
            memory,
            boot,
        }
    }

    /// What differs now, each as half a sentence. Empty: the figures hold.
    #[must_use]
    pub fn changed(&self, now: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let mut differs = |what: &str, was: &str, is: &str| {
            if was != is {
                let named = |text: &str| match text {
                    "" => "none".to_owned(),
                    text => text.to_owned(),
                };
                all.push(format!(
                    "the {what} was {} and is {}",
                    named(was),
                    named(is)
                ));
            }
        };
        let (was, is) = (&self.identity, &now.identity);
        differs("architecture", &was.architecture, &is.architecture);
        differs("vendor", &was.vendor, &is.vendor);
        differs("processor", &was.model, &is.model);
        let text = |o: &Option<String>| o.clone().unwrap_or_default();
        differs("microcode", &text(&was.microcode), &text(&is.microcode));
        differs("kernel", &was.kernel, &is.kernel);
        differs("hypervisor", &text(&was.hypervisor), &text(&is.hypervisor));
        let ids = |print: &Self| {
            let set: quell_types::cpuset::CpuSet = print.cpus.iter().map(|c| c.id).collect();
            set.to_string()
        };
        differs("set of usable CPUs", &ids(self), &ids(now));
        if ids(self) == ids(now) && self.cpus != now.cpus {
            all.push("the CPUs are arranged in another way".to_owned());
        } else if self.caches != now.caches {
            all.push("the caches are others".to_owned());
        }
        let alike = |(a, b): (&Bytes, &Bytes)| a.0.abs_diff(b.0) <= a.0.max(b.0) / 8;
        if !(self.memory.keys().eq(now.memory.keys())
            && self.memory.values().zip(now.memory.values()).all(alike))
        {
            all.push("the memory is of another size".to_owned());
        }
        if self.boot != now.boot {
            all.push("the virtual machine was booted anew, maybe on another host".to_owned());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::planner::tests::machine;
    use proptest::prelude::*;

    fn print(change: impl FnOnce(&mut Inventory)) -> Fingerprint {
        let mut machine = machine(4, 1);
        machine.identity.model = "Fast CPU".to_owned();
        change(&mut machine);
        machine.fingerprint(Some("boot-1".to_owned()))
    }

    #[test]
    fn the_same_machine_is_the_same_even_when_booted_anew() {
        let mut again = print(|_| ());
        assert_eq!(print(|_| ()).changed(&again), Vec::<String>::new());
        again.boot = machine(4, 1).fingerprint(Some("boot-2".to_owned())).boot;
        assert_eq!(print(|_| ()).changed(&again), Vec::<String>::new());
    }

    #[test]
    fn every_change_that_matters_is_named() {
        let was = print(|_| ());
        let changed = |change: fn(&mut Inventory)| was.changed(&print(change)).join("; ");
        assert_eq!(
            changed(|m| m.identity.microcode = Some("0x2".to_owned())),
            "the microcode was none and is 0x2"
        );
        assert!(changed(|m| m.identity.model = "Slow CPU".to_owned()).contains("processor"));
        assert!(changed(|m| m.identity.kernel = "6.19".to_owned()).contains("kernel"));
        let fewer = changed(|m| {
            m.cpus.pop();
        });
        assert_eq!(fewer, "the set of usable CPUs was 0-3 and is 0-2");
        assert!(changed(|m| m.cpus[0].node = 1).contains("arranged"));
        assert!(changed(|m| m.caches[0].size = Bytes(1)).contains("caches"));
        assert!(changed(|m| m.nodes[0].memory = Bytes(9 << 30)).is_empty());
        assert!(changed(|m| m.nodes[0].memory = Bytes(16 << 30)).contains("memory"));
        assert!(changed(|m| m.nodes.clear()).contains("memory"));
    }

    #[test]
    fn a_virtual_machine_that_boots_anew_may_be_elsewhere() {
        let guest = |boot: &str| {
            let mut machine = machine(2, 1);
            // Its balloon is as large as the host likes.
            machine.nodes[0].memory = Bytes(boot.parse::<u64>().unwrap() << 30);
            machine.identity.hypervisor = Some("KVM".to_owned());
            machine.fingerprint(Some(boot.to_owned()))
        };
        assert!(guest("1").changed(&guest("1")).is_empty());
        assert!(guest("1").changed(&guest("2"))[0].contains("another host"));
    }

    proptest! {
        #[test]
        fn it_holds_both_ways_round(a in 1u64..1 << 40, b in 1u64..1 << 40) {
            let (a, b) = (print(|m| m.nodes[0].memory = Bytes(a)), print(|m| m.nodes[0].memory = Bytes(b)));
            prop_assert_eq!(a.changed(&b).is_empty(), b.changed(&a).is_empty());
            let json = serde_json::to_string(&a).unwrap();
            prop_assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), a);
        }
    }
}
