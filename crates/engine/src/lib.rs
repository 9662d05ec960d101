//! quell-engine
