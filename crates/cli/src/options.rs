//! What several commands' options have in common.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quell_policy::workload::{Pages, Word};
use quell_types::units::Nanos;

/// What generators have in common.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// The CPU to run on
    #[arg(long)]
    pub cpu: Option<u32>,
    /// Load before measuring
    #[arg(long, default_value = "200ms")]
    pub warmup: Nanos,
    /// The measured span
    #[arg(long, default_value = "1s")]
    pub duration: Nanos,
    /// The window that percentiles are over
    #[arg(long, default_value = "1ms")]
    pub window: Nanos,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What generators with a buffer have in common: its pages, and the rest.
#[derive(Debug, clap::Args)]
pub struct Buffer {
    /// The pages memory is taken in
    #[arg(long, value_parser = word::<Pages>(), default_value_t, conflicts_with = "huge")]
    pages: Pages,
    /// The same as --pages 2MiB
    #[arg(long)]
    huge: bool,
    /// What all generators have
    #[command(flatten)]
    pub common: Common,
}

impl Buffer {
    /// The pages asked for.
    pub const fn pages(&self) -> Pages {
        if self.huge { Pages::Huge } else { self.pages }
    }
}

/// What measurements of the machine itself have in common.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// For so long
    #[arg(long, default_value = "2s")]
    pub duration: Nanos,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A word of a known list, with its meaning in the help.
pub fn word<T: Word + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let known = T::WORDS.iter();
    PossibleValuesParser::new(known.map(|w| PossibleValue::new(w.name()).help(w.about())))
        .try_map(|name| T::named(&name).ok_or("it is not one of these"))
}
