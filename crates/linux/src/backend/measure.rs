//! What a deep look measures on this machine.

use quell_kernel::error::{Error, Result};
use quell_kernel::pmu;
use quell_plan::inventory::Measured;

use super::Linux;

impl Linux {
    /// The rates, and whether counters count right. Changes nothing.
    pub(super) fn measure(&mut self) -> Result<Measured> {
        let (cpus, llc) = (self.all_cpus()?, self.caches(None)?.llc);
        let refused = |e| {
            Error::refused(format!(
                "the rates of this machine could not be measured: {e}"
            ))
        };
        let mut measured = (self.tools.rates)(&cpus, llc).map_err(refused)?;
        let vendor = self.cached_inventory()?.identity.vendor.clone();
        let traffic = self.tools.traffic;
        measured.counters = pmu::check(&self.files, &vendor, &|write| traffic(write, llc))?;
        Ok(measured)
    }
}
