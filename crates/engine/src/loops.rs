//! The slow controllers that run while a plan holds, behind one trait.

use quell_plan::Plan;
use quell_record::backend::{Backend, Seen};
use quell_types::units::Nanos;

use crate::adapt::Adapt;
use crate::memory::Memory;
use crate::sink::Sink;
use crate::ways::Ways;
use crate::witness::Witness;

/// A slow controller. An error of any function ends the run, and everything is undone.
pub(crate) trait Loop {
    /// When [`Self::step`] is due. It is not called before.
    fn next(&self) -> Nanos;

    /// Something was seen: units of work that ended, or what a program declares of them.
    fn seen(
        &mut self,
        _backend: &mut dyn Backend,
        _now: Nanos,
        _seen: &Seen,
        _sink: &mut dyn Sink,
    ) -> Result<(), String> {
        Ok(())
    }

    /// One step of the controller, at or after [`Self::next`].
    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String>;

    /// The plan is about to be undone. Records what has not been recorded yet.
    fn end(&mut self, _backend: &mut dyn Backend, _sink: &mut dyn Sink) {}
}

/// The controllers that a plan wants. Called after its steps were applied.
pub(crate) fn begin(backend: &mut dyn Backend, plan: &Plan) -> Result<Vec<Box<dyn Loop>>, String> {
    let now = backend.now();
    let mut loops: Vec<Box<dyn Loop>> = Vec::new();
    if backend.can_look() {
        loops.push(Box::new(Witness::begin(now)));
    }
    if let Some(memory) = Memory::begin(backend, plan)? {
        loops.push(Box::new(memory));
    }
    if !plan.loops.observed.is_empty() || plan.loops.adapts.is_some() {
        loops.push(Box::new(Adapt::begin(plan, now)));
    }
    for following in &plan.loops.follows {
        if let Some(ways) = Ways::begin(following, now) {
            loops.push(Box::new(ways));
        }
    }
    Ok(loops)
}
