//! quell-report
