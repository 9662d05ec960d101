//! What an independent look at the machine says of each promise, on record where it changes: at the
//! beginning of each plan, in equal steps while it holds, and before it is undone.

use std::collections::BTreeMap;

use quell_record::backend::Backend;
use quell_record::events::Event;
use quell_types::ids::PromiseId;
use quell_types::units::Nanos;
use quell_types::witness::{Fault, Verdict};

use crate::loops::Loop;
use crate::sink::Sink;

/// Time between two looks. A promise is called broken at the second look that finds it so: after
/// less than 1.5 s.
const EVERY: Nanos = Nanos::millis(700);
/// Time after which a fault that only the last look has found is looked for once more.
const AGAIN: Nanos = Nanos::millis(100);

/// The loop that looks.
#[derive(Debug)]
pub(crate) struct Witness {
    next: Nanos,
    said: BTreeMap<PromiseId, Verdict>,
    /// Promises that the last look at them found broken, and how.
    doubted: BTreeMap<PromiseId, Fault>,
}

impl Witness {
    pub(crate) fn begin(now: Nanos) -> Self {
        Self {
            next: now,
            said: BTreeMap::new(),
            doubted: BTreeMap::new(),
        }
    }

    /// Looks, and records what is news.
    fn look(&mut self, backend: &mut dyn Backend, sink: &mut dyn Sink) {
        let seen = backend.look();
        for (id, verdict) in self.news(seen) {
            sink.put(backend.now(), &Event::Witnessed { id, verdict });
        }
    }

    /// Faults that were found once and not told.
    fn suspects(&self) -> impl Iterator<Item = (PromiseId, &Fault)> {
        let told = |id: &PromiseId| matches!(self.said.get(id), Some(Verdict::Broken(_)));
        let all = self.doubted.iter().map(|(id, fault)| (*id, fault));
        all.filter(move |(id, _)| !told(id))
    }

    /// What a look says that is news. A task between its birth and its group's cgroup, or a value
    /// between two writes, is no fault yet. Of a promise that the look says nothing of, a fault
    /// stays in doubt.
    fn news(&mut self, seen: Vec<(PromiseId, Verdict)>) -> Vec<(PromiseId, Verdict)> {
        let mut news = Vec::new();
        for (id, verdict) in seen {
            let before = self.doubted.remove(&id);
            if let Verdict::Broken(fault) = &verdict {
                self.doubted.insert(id, fault.clone());
                if before.is_none() {
                    continue;
                }
            }
            let known = self.said.get(&id);
            let still = matches!(
                (known, &verdict),
                (Some(Verdict::Broken(_)), Verdict::Broken(_))
            );
            if still || known == Some(&verdict) {
                continue;
            }
            self.said.insert(id, verdict.clone());
            news.push((id, verdict));
        }
        news
    }
}

impl Loop for Witness {
    fn next(&self) -> Nanos {
        self.next
    }

    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        self.next = now.plus(EVERY);
        self.look(backend, sink);
        Ok(())
    }

    fn end(&mut self, backend: &mut dyn Backend, sink: &mut dyn Sink) {
        self.look(backend, sink);
        if self.suspects().next().is_some()
            && backend
                .wait(backend.now().plus(AGAIN), &mut Vec::new())
                .is_ok()
        {
            self.look(backend, sink);
        }
        // What has ended since could not be looked at twice.
        for (id, fault) in self.suspects() {
            let why = format!("one look found that {fault}, and none could look again");
            let verdict = Verdict::Unseen(why);
            sink.put(backend.now(), &Event::Witnessed { id, verdict });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;
    use quell_types::witness::Fault;

    const ID: PromiseId = PromiseId(1);

    fn broken(group: &str) -> Verdict {
        Verdict::Broken(Fault::NoProcess {
            group: group.to_owned(),
        })
    }

    #[test]
    fn a_fault_is_news_at_the_second_look_and_once() {
        let mut witness = Witness::begin(Nanos(0));
        let mut looks = |verdict: Verdict| {
            let news = witness.news(vec![(ID, verdict)]);
            news.into_iter().next().map(|(_, verdict)| verdict)
        };
        assert_eq!(looks(Verdict::Holds), Some(Verdict::Holds));
        assert_eq!(looks(Verdict::Holds), None);
        // Once is no fault.
        assert_eq!(looks(broken("a")), None);
        assert_eq!(looks(Verdict::Holds), None);
        assert_eq!(looks(broken("a")), None);
        assert_eq!(looks(broken("a")), Some(broken("a")));
        // It is told once, whatever else is wrong meanwhile.
        assert_eq!(looks(broken("b")), None);
        assert_eq!(looks(Verdict::Holds), Some(Verdict::Holds));
        let unseen = Verdict::Unseen("why".to_owned());
        assert_eq!(looks(unseen.clone()), Some(unseen));
    }

    #[test]
    fn a_fault_of_which_no_second_look_can_tell_is_not_seen_to_hold() {
        let mut fake = Fake::new();
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        let mut witness = Witness::begin(Nanos(0));
        witness.news(vec![(ID, Verdict::Holds)]);
        assert_eq!(witness.news(vec![(ID, broken("a"))]), []);
        // Its program has ended: later looks do not judge it.
        assert_eq!(witness.news(Vec::new()), []);
        witness.end(&mut fake, &mut sink);
        let unseen = |event: &Event| match event {
            Event::Witnessed {
                id: ID,
                verdict: Verdict::Unseen(why),
            } => why.contains("one look"),
            _ => false,
        };
        assert!(sink.iter().any(|(_, event)| unseen(event)), "{sink:?}");
    }

    /// When a promise that is broken in a span is said to be, in a hold of `length`.
    fn said_broken(span: std::ops::Range<Nanos>, length: Nanos) -> Vec<Nanos> {
        let mut fake = Fake::new();
        fake.break_promise(span);
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        let mut witness = Witness::begin(Nanos(0));
        while witness.next() < length {
            let now = fake.wait(witness.next(), &mut Vec::new()).unwrap();
            witness.step(&mut fake, now, &mut sink).unwrap();
        }
        fake.wait(length, &mut Vec::new()).unwrap();
        witness.end(&mut fake, &mut sink);
        let verdict = |(at, event)| match event {
            Event::Witnessed { verdict, .. } => (at, verdict),
            other => panic!("{other:?}"),
        };
        let all = sink.into_iter().map(verdict);
        all.filter(|(_, verdict)| *verdict != Verdict::Holds)
            .map(|(at, _)| at)
            .collect()
    }

    proptest! {
        #[test]
        fn a_fault_is_told_once_within_a_second_and_a_half(
            from in 0_u64..5_000,
            length in 5_000_u64..9_000,
        ) {
            let ever = Nanos::millis(from)..Nanos(u64::MAX);
            let said = said_broken(ever, Nanos::millis(length));
            prop_assert_eq!(said.len(), 1);
            prop_assert!(said[0].since(Nanos::millis(from)) < Nanos::millis(1_500));
        }
    }

    #[test]
    fn a_fault_of_the_last_moment_is_told_unless_it_passes() {
        let end = Nanos::secs(3);
        assert_eq!(
            said_broken(Nanos::millis(2_999)..Nanos::secs(9), end).len(),
            1
        );
        assert_eq!(
            said_broken(Nanos::millis(2_999)..Nanos::millis(3_050), end),
            []
        );
        // At the beginning nothing is waited for.
        assert_eq!(said_broken(Nanos(0)..end, end), [Nanos::millis(700)]);
    }
}
