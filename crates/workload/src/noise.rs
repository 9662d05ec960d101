//! What tests of timings say on a machine whose hypervisor takes a CPU away for half a second now
//! and then: a stall spoils the try it falls into and not ten in a row; what is broken fails in
//! each.

/// Tries `what` up to ten times; panics with the last try's reason if none is right.
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

/// An expectation of a try.
pub fn expect(so: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    so.then_some(()).ok_or_else(why)
}
