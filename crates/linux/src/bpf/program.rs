//! The program: `CpuRegulator::overflow` for the one case that a budget lasted a period.
//!
//! It answers only where at least one budget, and less than two, has been used up. Then there is
//! nothing to divide, and no debt to forgive. It leaves everything else to the thread, with nothing
//! changed.

use std::mem::offset_of;
use std::os::fd::RawFd;

use super::State;
use super::insn::{
    ADD, ADD_IMM, Assembler, IF_EQUAL_IMM, IF_LESS, IF_MORE, IF_NOT_EQUAL_IMM, Insn, MOVE,
    MOVE_IMM, R0, R1, R2, R3, R6, R7, R8, R10, SUB,
};

/// Helper `bpf_ktime_get_ns`: CLOCK_MONOTONIC in nanoseconds.
pub(super) const NOW: i32 = 5;
/// `bpf_perf_prog_read_value`: the count of the event that overflowed.
pub(super) const READ_EVENT: i32 = 56;

/// `struct bpf_perf_event_value`: the count, and the times enabled and running.
pub(super) const VALUE_BYTES: i16 = 24;

/// Returned to keep the thread asleep. No sample is taken.
pub(super) const SLEEP_ON: i32 = 0;
/// Returned to wake the thread, as an event without a program does.
pub(super) const WAKE: i32 = 1;

macro_rules! field {
    ($name:ident) => {
        near(offset_of!(State, $name))
    };
}

#[expect(clippy::cast_possible_wrap, reason = "a few dozen bytes")]
const fn near(offset: usize) -> i16 {
    offset as i16
}

/// The instructions, for the state in the array map `map`.
pub(super) fn instructions(map: RawFd) -> Vec<Insn> {
    let mut a = Assembler::default();
    // r7 = the count, read through the stack.
    a.registers(MOVE, R2, R10);
    a.number(ADD_IMM, R2, -i32::from(VALUE_BYTES));
    a.number(MOVE_IMM, R3, i32::from(VALUE_BYTES));
    a.call(READ_EVENT);
    a.jump_if_number(IF_NOT_EQUAL_IMM, R0, 0);
    a.load(R7, R10, -VALUE_BYTES);
    a.map_value(R6, map);
    // A budget of zero means that the thread decides.
    a.load(R8, R6, field!(budget));
    a.jump_if_number(IF_EQUAL_IMM, R8, 0);
    // r7 = the count since base. Wake if that is less than the budget, or so much more that the
    // event has to be armed anew.
    a.load(R1, R6, field!(base));
    a.jump_if(IF_LESS, R7, R1);
    a.registers(SUB, R7, R1);
    a.jump_if(IF_LESS, R7, R8);
    a.registers(SUB, R7, R8);
    a.load(R2, R6, field!(slack));
    a.jump_if(IF_MORE, R7, R2);
    // r8 = the next base, kept over the call.
    a.registers(ADD, R8, R1);
    // Wake if less than a period has passed since the budget began. The difference does not
    // overflow; the end of the period might.
    a.call(NOW);
    a.load(R1, R6, field!(start));
    a.jump_if(IF_LESS, R0, R1);
    a.registers(MOVE, R2, R0);
    a.registers(SUB, R2, R1);
    a.load(R3, R6, field!(period));
    a.jump_if(IF_LESS, R2, R3);
    // A new period.
    a.store(R6, field!(start), R0);
    a.store(R6, field!(base), R8);
    a.load(R1, R6, field!(renewed));
    a.number(ADD_IMM, R1, 1);
    a.store(R6, field!(renewed), R1);
    a.return_number(SLEEP_ON);
    a.land();
    a.return_number(WAKE);
    a.finish()
}
