//! Text that people write: where a problem is, and what they probably meant.
