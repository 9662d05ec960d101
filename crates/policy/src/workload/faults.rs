//! Parameters that make no sense although they have the right type.

use quell_types::units::{LINE_BYTES, Nanos, Rate};

use super::Workload;

/// The most parallel lists that are accepted: more than any core follows at once.
pub const MOST_LISTS: u32 = 64;
/// The highest priority of a periodic task. It is below Quell's watchdog, which has to run whatever
/// the task does.
pub const MOST_PRIORITY: u32 = 79;

/// What is wrong with a generator's parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}; {remedy}")]
pub struct Fault {
    /// Name of the parameter.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: String,
    /// What to write instead.
    pub remedy: &'static str,
}

impl<S> Workload<S> {
    /// The first mistake in its parameters, if there is one.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        let fault = |key, why: &str, remedy| {
            Some(Fault {
                key,
                why: why.to_owned(),
                remedy,
            })
        };
        let outside = |key, value: String, low: &str, high: &str| {
            let why = format!("{value} is not between {low} and {high}");
            fault(key, &why, "choose another value")
        };
        if self.rate() == Some(Rate(0)) {
            let remedy = "give a rate such as 600MB/s, or none for full speed";
            return fault("rate", "a target rate of nothing does nothing", remedy);
        }
        match self {
            Self::ParallelLists { lists, .. } if !(1..=MOST_LISTS).contains(lists) => fault(
                "lists",
                &format!("{lists} lists cannot be walked side by side"),
                "give 1 to 64",
            ),
            Self::CacheChurn { operations, .. } if operations.is_empty() => fault(
                "operations",
                "nothing is done",
                "write [\"read\", \"write\"]",
            ),
            Self::Stores { stride, .. }
                if ![8, 16, 32].contains(&stride.0)
                    && (stride.0 == 0 || !stride.0.is_multiple_of(LINE_BYTES)) =>
            {
                fault(
                    "stride",
                    &format!("a stride of {stride} splits lines unevenly"),
                    "give 8B, 16B, 32B or a multiple of 64B",
                )
            }
            Self::Trace { file } if file.is_empty() => fault(
                "file",
                "no trace is named",
                "give a file that `quell trace import` wrote",
            ),
            Self::Periodic { step, .. } if !(1..=4096).contains(&step.0) => {
                outside("step", step.to_string(), "1B", "4KiB")
            }
            Self::Periodic { compute, .. } if *compute > 1_000_000 => {
                outside("compute", compute.to_string(), "0", "1000000")
            }
            Self::Periodic { period, .. }
                if !(Nanos::micros(50)..=Nanos::secs(10)).contains(period) =>
            {
                outside("period", period.to_string(), "50us", "10s")
            }
            Self::Periodic {
                period,
                phase: Some(phase),
                ..
            } if phase >= period => fault(
                "phase",
                &format!("{phase} is not below the period of {period}"),
                "give the time from a multiple of the period to the release",
            ),
            Self::Periodic { passes, .. } if !(1..=10_000).contains(passes) => {
                outside("passes", passes.to_string(), "1", "10000")
            }
            Self::Periodic {
                deadline: Some(deadline),
                ..
            } if !(Nanos(1)..=Nanos::secs(10)).contains(deadline) => {
                outside("deadline", deadline.to_string(), "1ns", "10s")
            }
            Self::Periodic {
                priority: Some(priority),
                ..
            } if !(1..=MOST_PRIORITY).contains(priority) => fault(
                "priority",
                &format!("{priority} is not between 1 and {MOST_PRIORITY}"),
                "stay below Quell's watchdog (SCHED_FIFO 85)",
            ),
            Self::FramesCall { frame, .. } | Self::FramesDisplay { frame, .. }
                if !(16 << 10..=64 << 20).contains(&frame.0) =>
            {
                outside("frame", frame.to_string(), "16KiB", "64MiB")
            }
            Self::FramesCall { fps, .. } | Self::FramesDisplay { fps, .. }
                if !(1..=240).contains(fps) =>
            {
                outside("fps", fps.to_string(), "1", "240")
            }
            Self::FramesCall { ring, .. } | Self::FramesDisplay { ring, .. }
                if !(1..=1024).contains(ring) =>
            {
                outside("ring", ring.to_string(), "1", "1024")
            }
            Self::FramesCall { search, .. } if !(1..=64).contains(search) => {
                outside("search", search.to_string(), "1", "64")
            }
            Self::FramesCall { rate, .. } if !(100_000..=50_000_000).contains(&rate.0) => {
                outside("rate", rate.to_string(), "100kB/s", "50MB/s")
            }
            Self::Detector(detector) => detector.fault(),
            Self::AnonHog(hog) => hog.fault(),
            Self::FileHog(hog) => hog.fault(),
            Self::DirtyWriter(writer) => writer.fault(),
            Self::Requests(requests) => requests.fault(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Workload {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn kinds_say_what_they_report_and_what_they_are_judged_by() {
        let task = read(r#"{"kind":"periodic","size":"128KiB"}"#);
        assert_eq!((task.kind(), task.primary()), ("periodic", "cycles"));
        let call = read(r#"{"kind":"frames-call"}"#);
        assert_eq!(
            (call.kind(), call.primary()),
            ("frames-call", "bandwidth_mb_s")
        );
        let names: Vec<&str> = call.metrics().iter().map(|m| m.name).collect();
        for wanted in ["rtt_ms", "frames_per_s", "media_kb_s"] {
            assert!(names.contains(&wanted), "{wanted}");
        }
        assert_eq!(read(r#"{"kind":"frames-display"}"#).fault(), None);
    }

    #[test]
    fn what_the_generators_of_pressure_do_is_read_strictly() {
        let hog = read(r#"{"kind":"file-hog","size":"1GiB","reading":"mmap","passes":"once"}"#);
        assert_eq!((hog.kind(), hog.primary()), ("file-hog", "bandwidth_mb_s"));
        assert!(hog.kernel_only());
        let again: Workload = serde_json::from_value(serde_json::to_value(&hog).unwrap()).unwrap();
        assert_eq!(again, hog);
        let wrong = r#"{"kind":"file-hog","size":"1GiB","fps":4}"#;
        let wrong = serde_json::from_str::<Workload>(wrong).unwrap_err();
        assert!(wrong.to_string().contains("fps"), "{wrong}");
        assert_eq!(read(r#"{"kind":"detector"}"#).primary(), "frame_ms");
        assert_eq!(read(r#"{"kind":"anon-hog","size":"1GiB"}"#).fault(), None);
    }

    #[test]
    fn a_key_of_another_stage_is_refused() {
        let wrong = serde_json::from_str::<Workload>(r#"{"kind":"frames-display","search":4}"#);
        assert!(wrong.unwrap_err().to_string().contains("search"));
    }

    #[test]
    fn parameters_that_make_no_sense_are_named() {
        for (json, key) in [
            (r#"{"kind":"periodic","size":"1MiB","step":"0B"}"#, "step"),
            (
                r#"{"kind":"periodic","size":"1MiB","period":"1us"}"#,
                "period",
            ),
            (r#"{"kind":"periodic","size":"1MiB","passes":0}"#, "passes"),
            (
                r#"{"kind":"periodic","size":"1MiB","deadline":"0s"}"#,
                "deadline",
            ),
            (
                r#"{"kind":"periodic","size":"1MiB","priority":80}"#,
                "priority",
            ),
            (r#"{"kind":"frames-call","frame":"1KiB"}"#, "frame"),
            (r#"{"kind":"frames-call","fps":0}"#, "fps"),
            (r#"{"kind":"frames-call","search":0}"#, "search"),
            (r#"{"kind":"frames-call","rate":"1kB/s"}"#, "rate"),
            (r#"{"kind":"frames-display","ring":0}"#, "ring"),
            (
                r#"{"kind":"bandwidth","operation":"read","size":"1MiB","rate":"0B/s"}"#,
                "rate",
            ),
            (r#"{"kind":"lattice","size":"1MiB","rate":"0B/s"}"#, "rate"),
            (r#"{"kind":"trace","file":""}"#, "file"),
            (r#"{"kind":"detector","per-page":"100B"}"#, "per-page"),
            (r#"{"kind":"detector","images":0}"#, "images"),
            (r#"{"kind":"detector","uncached":"101%"}"#, "uncached"),
            (r#"{"kind":"detector","fps":0}"#, "fps"),
            (r#"{"kind":"detector","weights":"4KiB"}"#, "weights"),
            (r#"{"kind":"anon-hog","size":"0B"}"#, "size"),
            (
                r#"{"kind":"anon-hog","size":"1GiB","ramp":"7200s"}"#,
                "ramp",
            ),
            (r#"{"kind":"file-hog","size":"0B"}"#, "size"),
            (r#"{"kind":"file-hog","size":"1GiB","rate":"0B/s"}"#, "rate"),
            (r#"{"kind":"dirty-writer","size":"0B"}"#, "size"),
            (r#"{"kind":"requests","per-second":0}"#, "per-second"),
            (r#"{"kind":"requests","work":"0B"}"#, "work"),
            (r#"{"kind":"requests","commit":"0B"}"#, "commit"),
        ] {
            assert_eq!(read(json).fault().map(|f| f.key), Some(key), "{json}");
        }
    }
}
