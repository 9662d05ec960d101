//! Reports for people: tables, verdicts, charts and one self-contained page, all as functions from
//! values to text. The numbers come from [`quell_record::result`]. Nothing here measures, or
//! decides anything but the wording.

mod alike;
mod attribution;
mod columns;
mod compare;
mod curve;
mod deep;
mod demo;
mod doctor;
mod frontier;
mod hold;
mod html;
mod ladder;
mod lost;
mod matrix;
mod memory;
mod outcome;
mod owners;
mod partitions;
mod perfetto;
mod plan;
mod preview;
mod profile;
mod programs;
mod published;
mod quanta;
mod status;
mod sweep;
mod text;
mod throttling;
mod verdict;
mod view;
mod ways;
mod windows;
mod worst;

#[cfg(test)]
mod sample;

pub use compare::compare_text;
pub use deep::{address_map_text, cache_sets_text, canary_text};
pub use demo::{DemoStory, demo_line, demo_text};
pub use doctor::{Measurements, age, doctor_text};
pub use hold::{Ends, closing, holding_line, status_line};
pub use html::{demo_html, html, profile_html};
pub use ladder::ladder_text;
pub use outcome::run_text;
pub use owners::owners_text;
pub use partitions::colour_lines;
pub use perfetto::perfetto;
pub use plan::{plan_steps_text, plan_text};
pub use preview::preview_text;
pub use profile::profile_text;
pub use published::published_faults;
pub use status::status_text;
pub use text::Style;
pub use verdict::verdict;
pub use ways::ways_text;
