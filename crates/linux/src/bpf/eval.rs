//! An evaluator of eBPF instructions. It runs the program against the regulator.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use quell_control::bandwidth::{CpuRegulator, Verdict};
use quell_types::units::{Lines, Nanos};

use super::insn::*;
use super::program::{self, NOW, READ_EVENT, SLEEP_ON, VALUE_BYTES, WAKE};
use super::{Budget, SLACK, State};

/// Addresses of the state and of the end of the stack in the evaluator. They are far from each
/// other and from other numbers in use.
const STATE: u64 = 1 << 40;
const STACK: u64 = 1 << 41;
const STACK_WORDS: usize = 4;

/// The registers and memory of one run of the program.
struct Machine<'a> {
    registers: [u64; 11],
    stack: [u64; STACK_WORDS],
    state: &'a mut [u64; size_of::<State>() / 8],
    now: u64,
    /// What reading the event returns. `None` makes the read fail.
    used: Option<u64>,
}

impl Machine<'_> {
    fn word(&mut self, address: u64, offset: i16) -> &mut u64 {
        let at = address.wrapping_add_signed(offset.into());
        assert_eq!(at % 8, 0);
        if at >= STATE && at < STACK - 8 * STACK_WORDS as u64 {
            &mut self.state[(at - STATE) as usize / 8]
        } else {
            let below = (STACK - at) as usize / 8;
            &mut self.stack[STACK_WORDS - below]
        }
    }

    fn call(&mut self, helper: i32) {
        self.registers[0] = match helper {
            NOW => self.now,
            READ_EVENT => {
                assert_eq!(self.registers[3], VALUE_BYTES as u64);
                match self.used {
                    Some(used) => {
                        *self.word(self.registers[2], 0) = used;
                        0
                    }
                    None => u64::MAX,
                }
            }
            other => unreachable!("helper {other}"),
        };
        // A call may leave anything in the argument registers, so the program must not use them.
        self.registers[1..6].fill(0xdead_beef_dead_beef);
    }

    fn run(&mut self, code: &[Insn]) -> i32 {
        let mut at = 0;
        loop {
            let i = code[at];
            at += 1;
            let (d, s) = (usize::from(i.destination()), usize::from(i.source()));
            let (left, right, imm) = (
                self.registers[d],
                self.registers[s],
                i64::from(i.imm).cast_unsigned(),
            );
            let jumps = match i.code {
                LOAD => {
                    self.registers[d] = *self.word(right, i.offset);
                    false
                }
                STORE => {
                    *self.word(left, i.offset) = right;
                    false
                }
                LOAD_WIDE => {
                    assert_eq!((i.source(), code[at].code), (2, 0));
                    at += 1;
                    self.registers[d] = STATE;
                    false
                }
                MOVE | MOVE_IMM | ADD | ADD_IMM | SUB => {
                    self.registers[d] = match i.code {
                        MOVE => right,
                        MOVE_IMM => imm,
                        ADD => left.wrapping_add(right),
                        ADD_IMM => left.wrapping_add(imm),
                        _ => left.wrapping_sub(right),
                    };
                    false
                }
                IF_EQUAL_IMM => left == imm,
                IF_NOT_EQUAL_IMM => left != imm,
                IF_LESS => left < right,
                IF_MORE => left > right,
                CALL => {
                    self.call(i.imm);
                    false
                }
                EXIT => return i32::try_from(self.registers[0]).unwrap(),
                other => unreachable!("operation {other:#x}"),
            };
            if jumps {
                at += usize::try_from(i.offset).unwrap();
            }
        }
    }
}

/// The state as the evaluator has it, and the program that works on it.
#[derive(Clone, Debug)]
struct Copy {
    state: [u64; size_of::<State>() / 8],
}

macro_rules! at {
    ($name:ident) => {
        std::mem::offset_of!(State, $name) / 8
    };
}

impl Copy {
    fn of(regulator: &CpuRegulator, slack: u64) -> Self {
        let account = regulator.account().unwrap();
        let mut state = [0; size_of::<State>() / 8];
        state[at!(start)] = account.start.0;
        state[at!(base)] = account.base.0;
        state[at!(budget)] = account.budget.0;
        state[at!(period)] = account.period.0;
        state[at!(slack)] = slack;
        Self { state }
    }

    fn overflow(&mut self, now: u64, used: Option<u64>) -> i32 {
        let mut machine = Machine {
            registers: [0xdead_beef_dead_beef; 11],
            stack: [0xdead_beef_dead_beef; STACK_WORDS],
            state: &mut self.state,
            now,
            used,
        };
        machine.registers[10] = STACK;
        machine.run(&program::instructions(7))
    }
}

#[test]
fn the_state_begins_with_the_account() {
    let state = State::default();
    assert_eq!((at!(start), at!(renewed)), (0, 5));
    assert_eq!(state.renewed.load(Ordering::Relaxed), 0);
}

#[test]
fn what_cannot_be_read_wakes_the_thread() {
    let regulator = CpuRegulator::new(Lines(100), Nanos(1_000), Nanos(0), Lines(0));
    let mut copy = Copy::of(&regulator, 25);
    let before = copy.state;
    assert_eq!(copy.overflow(5_000, None), WAKE);
    assert_eq!(copy.state, before);
}

#[test]
fn without_a_budget_the_thread_decides() {
    let regulator = CpuRegulator::new(Lines(100), Nanos(1_000), Nanos(0), Lines(0));
    let mut copy = Copy::of(&regulator, 25);
    copy.state[at!(budget)] = 0;
    assert_eq!(copy.overflow(5_000, Some(100)), WAKE);
    assert_eq!(copy.state[at!(renewed)], 0);
}

proptest! {
    /// Over any sequence of overflows. Where the program lets the thread sleep, the regulator says
    /// that a new period begins, and both come to the same budget. Where it wakes the thread,
    /// nothing has changed. If the regulator says then that a new period begins, it was too late to
    /// leave the event armed as it is.
    #[test]
    fn the_program_decides_as_the_regulator(
        budget in 1u64..5_000,
        period in 1u64..5_000,
        begin in 0u64..10_000,
        steps in proptest::collection::vec((0u64..12_000, 0u64..12_000), 1..60),
    ) {
        let mut regulator =
            CpuRegulator::new(Lines(budget), Nanos(period), Nanos(begin), Lines(begin));
        let slack = budget / SLACK;
        let mut copy = Copy::of(&regulator, slack);
        let (mut now, mut used, mut renewed) = (begin, begin, 0);
        for (later, more) in steps {
            now += later;
            used += more;
            let before = copy.state;
            let verdict = copy.overflow(now, Some(used));
            let base = regulator.account().unwrap().base.0;
            let wanted = regulator.overflow(Nanos(now), Lines(used));
            let account = regulator.account().unwrap();
            if verdict == SLEEP_ON {
                renewed += 1;
                prop_assert!(matches!(wanted, Verdict::NewPeriod(_)), "{:?}", wanted);
            } else {
                prop_assert_eq!(verdict, WAKE);
                prop_assert_eq!(copy.state, before);
                if matches!(wanted, Verdict::NewPeriod(_)) {
                    prop_assert!(used - base - budget > slack);
                }
                // The thread takes over, with the regulator's account.
                copy.state[at!(start)] = account.start.0;
                copy.state[at!(base)] = account.base.0;
            }
            prop_assert_eq!(copy.state[at!(start)], account.start.0);
            prop_assert_eq!(copy.state[at!(base)], account.base.0);
            prop_assert_eq!(copy.state[at!(renewed)], renewed);
        }
    }

    /// The program leaves an event armed, and a thread takes over where it is woken. The use by any
    /// time t is bounded. The bound is the budgets of the periods begun, the slack, and what one
    /// reaction and one budget's switching let through.
    #[test]
    fn with_the_thread_the_average_never_exceeds_the_budget(
        spells in proptest::collection::vec((1u64..50, 0u64..3_000, 0u64..400, 0u64..20), 1..200),
    ) {
        const BUDGET: u64 = 100;
        const PERIOD: u64 = 1_000;
        let mut regulator =
            CpuRegulator::new(Lines(BUDGET), Nanos(PERIOD), Nanos(0), Lines(0));
        let mut delegated = Some(Copy::of(&regulator, BUDGET / SLACK));
        let (mut now, mut used, mut rings) = (0, 0, BUDGET);
        for (gap, idle, late, switching) in spells {
            // One count every `gap` until the event overflows. The program or the thread sees the
            // overflow `late`.
            let (before, through) = (used, late / gap);
            used = rings + through;
            now += idle + (used - before) * gap;
            let most = (now / PERIOD + 1) * BUDGET + BUDGET / SLACK + through + 20;
            prop_assert!(used <= most, "used {} by {}, at most {}", used, now, most);
            if let Some(copy) = &mut delegated {
                if copy.overflow(now, Some(used)) == SLEEP_ON {
                    rings = (rings + BUDGET + switching).max(used);
                    continue;
                }
                let (start, base) = (copy.state[at!(start)], copy.state[at!(base)]);
                regulator.resume(Nanos(start), Lines(base));
                delegated = None;
            }
            let left = match regulator.overflow(Nanos(now), Lines(used)) {
                Verdict::NewPeriod(left) => {
                    let account = regulator.account().unwrap();
                    let (base, budget) = (account.base.0, account.budget.0);
                    let (start, period) = (account.start, account.period);
                    if (Budget { start, base, budget, period }).is_whole(used) {
                        delegated = Some(Copy::of(&regulator, BUDGET / SLACK));
                        Lines(BUDGET)
                    } else {
                        left
                    }
                }
                Verdict::Rearm(left) => left,
                Verdict::ThrottleUntil(until) => {
                    now = until.0;
                    regulator.begin(until, Lines(used))
                }
                shared @ Verdict::RunFreeUntil(_) => unreachable!("{shared:?} without a pool"),
            };
            rings = used + left.0;
        }
    }

    /// The same for any numbers, also where time and count go back. Where the program lets the
    /// thread sleep, the regulator agrees.
    #[test]
    fn whatever_the_numbers_it_never_sleeps_through_a_stop(
        (budget, period, slack) in (any::<u64>(), any::<u64>(), any::<u64>()),
        (start, base, now, used) in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()),
        near in any::<bool>(),
    ) {
        // Two random numbers are hardly ever within a budget of each other.
        let used = if near { base.saturating_add(budget).saturating_add(used >> 60) } else { used };
        let now = if near { start.saturating_add(period).saturating_add(now >> 60) } else { now };
        let mut regulator =
            CpuRegulator::new(Lines(budget), Nanos(period), Nanos(start), Lines(base));
        let slack = slack.min(regulator.budget().0 / SLACK);
        let mut copy = Copy::of(&regulator, slack);
        let verdict = copy.overflow(now, Some(used));
        let wanted = regulator.overflow(Nanos(now), Lines(used));
        if verdict == SLEEP_ON {
            prop_assert!(matches!(wanted, Verdict::NewPeriod(_)), "{:?}", wanted);
            let account = regulator.account().unwrap();
            prop_assert_eq!(copy.state[at!(start)], account.start.0);
            prop_assert_eq!(copy.state[at!(base)], account.base.0);
        }
    }
}
