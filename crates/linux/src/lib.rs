//! quell-linux
