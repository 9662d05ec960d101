//! quell-workload
