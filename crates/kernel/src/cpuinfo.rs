//! What the kernel reports of the processor (`/proc/cpuinfo`, proc_cpuinfo(5)). Keys differ between
//! architectures.

use crate::error::Result;
use crate::root::Files;

const PATH: &str = "/proc/cpuinfo";

/// The text of `/proc/cpuinfo`. Empty where there is none.
#[derive(Clone, Debug, Default)]
pub struct Cpuinfo(pub(crate) String);

impl Cpuinfo {
    /// Reads `/proc/cpuinfo`.
    ///
    /// # Errors
    /// [`crate::error::Error::File`] when it is there and cannot be read.
    pub fn read(files: &dyn Files) -> Result<Self> {
        Ok(Self(files.optional(PATH)?.unwrap_or_default()))
    }

    /// The values of a key, in the order of the CPUs.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.lines().filter_map(|line| line.split_once(':'));
        let of_key = lines.filter(move |(found, _)| found.trim() == key);
        of_key.map(|(_, value)| value.trim())
    }

    /// The value of a key on the first CPU that has it.
    #[must_use]
    pub fn first(&self, key: &str) -> Option<&str> {
        self.values(key).next()
    }

    /// Whether the first CPU has this x86 flag, as far as the kernel believes the processor.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        let flags = self.first("flags").unwrap_or_default();
        flags.split_ascii_whitespace().any(|f| f == flag)
    }

    /// Whether the vendor is Intel; always false on Arm.
    #[must_use]
    pub fn is_intel(&self) -> bool {
        self.first("vendor_id") == Some("GenuineIntel")
    }

    /// Whether the processor reports a virtual machine. Arm's never do.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        self.has("hypervisor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn keys_and_flags_are_those_of_the_first_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let none = Cpuinfo::read(&kernel).unwrap();
        assert!(!none.is_intel() && none.first("flags").is_none());
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nvmx flags\t: mba\n\
                    flags\t\t: fpu cat_l3 hypervisor\n\nprocessor\t: 1\nflags\t\t: fpu mba\n";
        std::fs::write(dir.path().join("proc/cpuinfo"), text).unwrap();
        let found = Cpuinfo::read(&kernel).unwrap();
        assert!(found.is_intel() && found.is_guest() && found.has("cat_l3"));
        assert!(!found.has("cat") && !found.has("mba"));
        assert_eq!(found.values("processor").collect::<Vec<_>>(), ["0", "1"]);
    }
}
