//! Which generator belongs to a workload.

use crate::frames::{Call, Display};
use crate::generator::Generator;
use crate::periodic::Task;
use crate::requests::Server;
use crate::resolved::{Load, ResolvedWorkload};
use crate::{Error, frames, pressure};

/// Takes and touches the memory of a generator, on the calling thread's CPU and memory node.
///
/// # Errors
/// When a parameter makes no sense, a resource cannot be had, or the processor lacks the operation.
pub(crate) fn generator(workload: &ResolvedWorkload) -> Result<Box<dyn Generator>, Error> {
    if let Some(fault) = workload.fault() {
        let what = format!("{}: `{}`", workload.kind(), fault.key);
        return Err(Error::refused(what, fault.why, fault.remedy));
    }
    Ok(match workload {
        ResolvedWorkload::Latency { .. }
        | ResolvedWorkload::Bandwidth { .. }
        | ResolvedWorkload::ParallelLists { .. }
        | ResolvedWorkload::CacheChurn { .. }
        | ResolvedWorkload::Stores { .. }
        | ResolvedWorkload::Lattice { .. } => Box::new(Load::driver(workload)?),
        ResolvedWorkload::Trace { file } => {
            return Err(Error::refused(
                format!("replaying the trace '{file}'"),
                "a recorded program is replayed on the simulated machine only",
                "use --on sim, or run the program itself by `command`",
            ));
        }
        ResolvedWorkload::Recorded { program, .. } => {
            return Err(Error::refused(
                format!("running the recorded program '{program}'"),
                "only its figures are known, which the coarse machine runs",
                "use --on coarse, or run the program itself by `command`",
            ));
        }
        ResolvedWorkload::Periodic { .. } => Box::new(Task::new(workload)?),
        ResolvedWorkload::FramesCall { .. } => {
            Box::new(Call::new(workload, &frames::meeting_point())?)
        }
        ResolvedWorkload::FramesDisplay { .. } => {
            Box::new(Display::new(workload, &frames::meeting_point())?)
        }
        ResolvedWorkload::Detector(spec) => Box::new(pressure::Detector::new(spec)?),
        ResolvedWorkload::AnonHog(spec) => Box::new(pressure::AnonHog::new(spec)?),
        ResolvedWorkload::FileHog(spec) => Box::new(pressure::FileHog::new(spec)?),
        ResolvedWorkload::DirtyWriter(spec) => Box::new(pressure::Writer::new(spec)?),
        ResolvedWorkload::Requests(spec) => Box::new(Server::new(spec)?),
    })
}
