//! Whether pages of a group have its colours: a sample of its private memory, page by page.

use std::collections::VecDeque;

use quell_kernel::maps::{self, Backing, Mapping};
use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Colouring;

use quell_types::witness::Fault;

/// Pages of one process that are looked at in one look.
const PAGES: usize = 256;
/// Neighbouring pages that are read at once.
const RUN: usize = 16;
/// Looks whose samples are judged together: new pages get their colours only a moment later.
const LOOKS: usize = 10;
/// The same where the kernel gives none but pages of these colours.
const LOOKS_AT_BIRTH: usize = 2;
/// The fewest pages that say something.
const FEWEST: u64 = 128;
/// The part of the pages that may have other colours, in percent.
const OTHERS: u64 = 20;

/// The colour of the page at a physical address.
fn colour(colouring: &Colouring, address: u64) -> u32 {
    let functions = colouring.functions.iter().zip(0..);
    functions.fold(0, |colour, (function, bit)| {
        colour | ((function.0 & address).count_ones() & 1) << bit
    })
}

/// Whether a mapping is memory of the program's own.
fn is_private(mapping: &Mapping) -> bool {
    let plain = matches!(
        mapping.backing,
        Backing::Nothing | Backing::Heap | Backing::Stack
    );
    plain && mapping.writable && !mapping.shared
}

/// Samples of a group's pages.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    /// Pages with other colours, and all, by process and look.
    looks: VecDeque<Vec<(u32, u64, u64)>>,
    /// Where the next sample begins.
    turn: u64,
}

impl Sampled {
    /// Looks at some pages of these processes.
    ///
    /// # Errors
    /// Why nothing can be seen.
    pub fn look(
        &mut self,
        files: &dyn Files,
        pids: &[u32],
        colouring: &Colouring,
        colours: &CpuSet,
        at_birth: bool,
    ) -> Result<(), String> {
        self.turn = self
            .turn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut seen = Vec::new();
        for pid in pids {
            let pages = self.sample(files, *pid, colouring.page.0)?;
            let wrong = pages.iter().filter(|frame| {
                let colour = colour(colouring, **frame * colouring.page.0);
                !colours.contains(colour)
            });
            seen.push((*pid, wrong.count() as u64, pages.len() as u64));
        }
        self.looks.push_back(seen);
        let most = match at_birth {
            true => LOOKS_AT_BIRTH,
            false => LOOKS,
        };
        if self.looks.len() > most {
            self.looks.pop_front();
        }
        Ok(())
    }

    /// Frames of some private pages of a process.
    fn sample(&self, files: &dyn Files, pid: u32, page: u64) -> Result<Vec<u64>, String> {
        let Ok(Some(all)) = maps::of(files, pid) else {
            return Ok(Vec::new());
        };
        let Ok(pagemap) = Pagemap::open(files, &pid.to_string()) else {
            return Ok(Vec::new());
        };
        let private = all.iter().filter(|m| is_private(m));
        let ranges: Vec<_> = private.map(|m| m.range.clone()).collect();
        let pages = |range: &std::ops::Range<u64>| (range.end - range.start) / page;
        let sum: u64 = ranges.iter().map(pages).sum();
        let mut found = Vec::new();
        let runs = PAGES / RUN;
        for run in 0..runs as u64 {
            // Evenly spread, from another beginning each time.
            let spread = sum / runs as u64;
            let mut at = run * spread + self.turn % spread.max(1);
            let place = ranges.iter().find_map(|range| {
                let inside = at < pages(range);
                let first = range.start / page + at;
                at = at.saturating_sub(pages(range));
                inside.then_some((first, range.end / page))
            });
            let Some((first, end)) = place else {
                continue;
            };
            let mut room = [Page::default(); RUN];
            let most = usize::try_from(end - first).unwrap_or(RUN).min(RUN);
            let Ok(read) = pagemap.read(first, &mut room[..most]) else {
                continue;
            };
            let there = room[..read]
                .iter()
                .filter(|p| p.is_present() && p.is_exclusive() && !p.is_of_file());
            let frames: Vec<u64> = there.map(|page| page.frame()).collect();
            if !frames.is_empty() && frames.iter().all(|frame| *frame == 0) {
                return Err("the kernel hides where pages lie".to_owned());
            }
            found.extend(frames);
        }
        Ok(found)
    }

    /// Judges the last looks.
    pub fn judge(&self) -> Option<Fault> {
        let all = || self.looks.iter().flatten();
        let (pages, of) = all().fold((0, 0), |(w, n), (_, wrong, seen)| (w + wrong, n + seen));
        let (worst, ..) = all().max_by_key(|(_, wrong, _)| *wrong)?;
        (of >= FEWEST && pages * 100 > of * OTHERS).then_some(Fault::Misplaced {
            pid: *worst,
            pages,
            of,
        })
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn a_colour_is_the_parity_of_each_function() {
        let colouring = Colouring::of_pages([0x1000, 0x6000], 0);
        let colours = [0, 0x1000, 0x2000, 0x4000, 0x6000, 0x7000].map(|a| colour(&colouring, a));
        assert_eq!(colours, [0, 1, 2, 2, 0, 1]);
    }

    #[test]
    fn a_fifth_of_other_colours_is_too_much() {
        let judge = |wrong| {
            let looks = vec![vec![(7, wrong, 100), (8, 0, 100)]; 3];
            let (looks, turn) = (looks.into(), 0);
            Sampled { looks, turn }.judge()
        };
        assert_eq!(judge(40), None);
        let fault = judge(41).unwrap().to_string();
        assert!(fault.starts_with("123 of 600 pages"), "{fault}");
        assert_eq!(Sampled::default().judge(), None);
    }

    #[test]
    fn own_pages_are_found_or_the_reason() {
        let memory = vec![7_u8; 8 << 20];
        let kernel = Kernel::at("/");
        let mut sampled = Sampled::default();
        let any = Colouring::of_pages([0x1000], 0);
        let [all, none] = ["0-1", ""].map(|colours| colours.parse().unwrap());
        let own = [std::process::id()];
        match sampled.look(&kernel, &own, &any, &all, false) {
            Err(why) => assert!(why.contains("hides"), "{why}"),
            Ok(()) => {
                assert_eq!(sampled.judge(), None);
                for _ in 0..30 {
                    sampled.look(&kernel, &own, &any, &none, false).unwrap();
                }
                assert!(sampled.judge().is_some(), "{sampled:?}");
            }
        }
        drop(memory);
    }
}
