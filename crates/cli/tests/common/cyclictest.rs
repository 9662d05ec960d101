//! `cyclictest` next to a test: how late a real-time thread wakes up on this machine meanwhile.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::common::{eventually, send, status_of};

/// `cyclictest` on a CPU, at the dispatcher's priority, 1,000 times a second. It ends with this.
pub struct Waking(Child);

impl Waking {
    /// `None`, said aloud, where it is not installed.
    pub fn start(cpu: u32) -> Option<Self> {
        let mut command = Command::new("cyclictest");
        let words = format!("-q -m -p 80 -i 1000 -h 60000 -a {cpu} -t 1");
        command.args(words.split(' '));
        let Ok(child) = command.stdout(Stdio::piped()).spawn() else {
            quell_testing::skip("no cyclictest (apt-get install rt-tests)");
            return None;
        };
        let waking = Self(child);
        // What is pinned to another CPU leaves a CPU that is emptied only when the run begins.
        let tasks = format!("/proc/{}/task", waking.0.id());
        let cpu = cpu.to_string();
        let pinned = |tid: u32| status_of(tid, "Cpus_allowed_list") == Some(cpu.clone());
        eventually("cyclictest is on its CPU", || {
            let tids = std::fs::read_dir(&tasks).unwrap();
            let tids = tids.filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
            let tids: Vec<u32> = tids.collect();
            tids.len() > 1 && tids.into_iter().all(pinned)
        });
        Some(waking)
    }

    /// Ends it. Microseconds at these parts of the wake-ups. Its lines of a histogram have
    /// microseconds and how many times it woke up so late.
    pub fn lateness<const N: usize>(mut self, parts: [f64; N]) -> [i64; N] {
        send(self.0.id(), Signal::INT);
        let mut text = String::new();
        let mut told = self.0.stdout.take().unwrap();
        told.read_to_string(&mut text).unwrap();
        let counted = text.lines().filter_map(|line| {
            let (late, times) = line.split_once(' ')?;
            Some((late.parse::<i64>().ok()?, times.trim().parse::<u64>().ok()?))
        });
        let counted: Vec<(i64, u64)> = counted.collect();
        let all: u64 = counted.iter().map(|(_, times)| times).sum();
        assert!(all > 1_000, "{text}");
        parts.map(|part| {
            let mut upto = 0;
            let within = |(_, times): &&(i64, u64)| {
                upto += times;
                upto as f64 >= all as f64 * part
            };
            counted.iter().find(within).unwrap().0
        })
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
