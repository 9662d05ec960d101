//! Which test begins next. Pure: no clock, no process.

use crate::class::Class;

/// A test that waits: what it needs, and how long it took last time.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting<T> {
    /// The test.
    pub test: T,
    /// What it needs of the machine.
    pub class: Class,
    /// Seconds that it took last time.
    pub seconds: f64,
}

/// The tests that wait and those that run. The longest begins first. Tests that change the machine
/// run one at a time. One pure test more than there are jobs takes what the others leave of the
/// CPUs. Tests that measure come last, each alone.
#[derive(Debug)]
pub struct Schedule<T> {
    /// The shortest first.
    waiting: Vec<Waiting<T>>,
    running: Vec<Class>,
    jobs: usize,
}

impl<T> Schedule<T> {
    /// For so many tests at a time, and a pure one.
    pub fn new(mut waiting: Vec<Waiting<T>>, jobs: usize) -> Self {
        waiting.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Self {
            waiting,
            running: Vec::new(),
            jobs: jobs.max(1),
        }
    }

    /// The next test that may begin now; it counts as running from here on.
    pub fn begin(&mut self) -> Option<Waiting<T>> {
        let at = self.next()?;
        let test = self.waiting.remove(at);
        self.running.push(test.class);
        Some(test)
    }

    /// A test of this class has ended.
    pub fn end(&mut self, class: Class) {
        let at = self.running.iter().position(|running| *running == class);
        if let Some(at) = at {
            self.running.swap_remove(at);
        }
    }

    /// Whether nothing waits or runs.
    pub fn done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn next(&self) -> Option<usize> {
        if self.running.contains(&Class::Measured) || self.running.len() > self.jobs {
            return None;
        }
        let longest = |may: &dyn Fn(Class) -> bool| self.waiting.iter().rposition(|t| may(t.class));
        let waits = self.running.iter().filter(|class| **class != Class::Pure);
        if waits.count() < self.jobs {
            // Live tests are a chain of their own: one begins as soon as the last has ended.
            let live = !self.running.contains(&Class::Live);
            let next = longest(&|class| live && class == Class::Live);
            if let Some(at) = next.or_else(|| longest(&|class| class == Class::Lab)) {
                return Some(at);
            }
        }
        let pure = longest(&|class| class == Class::Pure);
        if pure.is_some() || !self.running.is_empty() {
            return pure;
        }
        longest(&|class| class == Class::Measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(jobs: usize, tests: &[(Class, f64)]) -> Schedule<f64> {
        let waiting = tests.iter().map(|&(class, seconds)| Waiting {
            test: seconds,
            class,
            seconds,
        });
        Schedule::new(waiting.collect(), jobs)
    }

    fn begun(schedule: &mut Schedule<f64>) -> Option<(Class, f64)> {
        schedule.begin().map(|test| (test.class, test.test))
    }

    #[test]
    fn the_longest_first_and_a_pure_one_more_than_jobs() {
        let mut all = schedule(
            2,
            &[
                (Class::Pure, 1.0),
                (Class::Lab, 3.0),
                (Class::Lab, 2.0),
                (Class::Pure, 4.0),
                (Class::Lab, 5.0),
            ],
        );
        assert_eq!(begun(&mut all), Some((Class::Lab, 5.0)));
        assert_eq!(begun(&mut all), Some((Class::Lab, 3.0)));
        assert_eq!(begun(&mut all), Some((Class::Pure, 4.0)));
        assert_eq!(begun(&mut all), None);
        all.end(Class::Pure);
        assert_eq!(begun(&mut all), Some((Class::Pure, 1.0)));
        all.end(Class::Lab);
        assert_eq!(begun(&mut all), Some((Class::Lab, 2.0)));
        for class in [Class::Lab, Class::Lab, Class::Pure] {
            assert!(!all.done());
            all.end(class);
        }
        assert!(all.done());
    }

    #[test]
    fn live_tests_run_one_at_a_time_from_the_beginning() {
        let mut all = schedule(
            2,
            &[(Class::Live, 1.0), (Class::Live, 2.0), (Class::Lab, 9.0)],
        );
        assert_eq!(begun(&mut all), Some((Class::Live, 2.0)));
        assert_eq!(begun(&mut all), Some((Class::Lab, 9.0)));
        assert_eq!(begun(&mut all), None);
        all.end(Class::Live);
        assert_eq!(begun(&mut all), Some((Class::Live, 1.0)));
    }

    #[test]
    fn nothing_runs_next_to_a_measurement() {
        let mut all = schedule(
            2,
            &[
                (Class::Measured, 9.0),
                (Class::Measured, 8.0),
                (Class::Pure, 1.0),
            ],
        );
        assert_eq!(begun(&mut all), Some((Class::Pure, 1.0)));
        assert_eq!(begun(&mut all), None);
        all.end(Class::Pure);
        assert_eq!(begun(&mut all), Some((Class::Measured, 9.0)));
        assert_eq!(begun(&mut all), None);
        all.end(Class::Measured);
        assert_eq!(begun(&mut all), Some((Class::Measured, 8.0)));
    }

    #[test]
    fn no_jobs_is_one_job() {
        let mut all = schedule(0, &[(Class::Lab, 1.0), (Class::Lab, 1.0)]);
        assert!(begun(&mut all).is_some());
        assert!(begun(&mut all).is_none());
    }
}
