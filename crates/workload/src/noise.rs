//! How tests of timings are judged on a machine with a hypervisor that sometimes takes a CPU away
//! for half a second. A stall spoils the try in which it happens, but not ten in a row. A defect
//! fails in each try.

/// Tries `what` up to ten times. Panics with the last try's reason if none succeeds.
pub fn in_one_of_ten(mut what: impl FnMut() -> Result<(), String>) {
    let mut last = String::new();
    for _ in 0..10 {
        match what() {
            Ok(()) => return,
            Err(why) => last = why,
        }
    }
    panic!("ten times in a row, the last time: {last}");
}

/// An expectation within a try.
pub fn expect(so: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    so.then_some(()).ok_or_else(why)
}
