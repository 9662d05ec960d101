//! What an independent look at the machine says of each promise, on record where it changes.

use std::collections::{BTreeMap, BTreeSet};

use quell_record::backend::Backend;
use quell_record::events::Event;
use quell_types::ids::PromiseId;
use quell_types::units::Nanos;
use quell_types::witness::Verdict;

use crate::loops::Loop;
use crate::sink::Sink;

/// Time between two looks. A promise is called broken at the second look that finds it so: after
/// less than 1.5 s.
const EVERY: Nanos = Nanos::millis(700);

/// The loop that looks.
#[derive(Debug)]
pub(crate) struct Witness {
    next: Nanos,
    said: BTreeMap<PromiseId, Verdict>,
    /// Promises that the last look found broken.
    doubted: BTreeSet<PromiseId>,
}

impl Witness {
    pub(crate) fn begin(now: Nanos) -> Self {
        Self {
            next: now.plus(EVERY),
            said: BTreeMap::new(),
            doubted: BTreeSet::new(),
        }
    }

    /// What a look says that is news. A task between its birth and its group's cgroup, or a value
    /// between two writes, is no fault yet.
    fn news(&mut self, seen: Vec<(PromiseId, Verdict)>) -> Vec<(PromiseId, Verdict)> {
        let doubted = std::mem::take(&mut self.doubted);
        let mut news = Vec::new();
        for (id, verdict) in seen {
            if matches!(verdict, Verdict::Broken(_)) {
                self.doubted.insert(id);
                if !doubted.contains(&id) {
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
        for (id, verdict) in self.news(backend.look()) {
            sink.put(now, &Event::Witnessed { id, verdict });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
